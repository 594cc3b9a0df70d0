"""Whole runs over HTTP/2, compared with the mock server's own record."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.running_command import FINISHED, Command

REQUESTS = 60


@pytest.mark.parametrize("has_tls", [False, True])
def test_http2_run_matches_the_servers_responses(
    tmp_path: Path, certificate: tuple[Path, Path], has_tls: bool
) -> None:
    tls: dict[str, Any] = {}
    flags: tuple[str, ...] = ()
    if has_tls:
        cert, key = certificate
        tls = {"tls_cert": str(cert), "tls_key": str(key)}
        flags = ("--tls-ca-file", str(cert))
    config = MockServerConfig(http2=True, truth=True, ttft="5ms", itl="1ms", tokens=8, **tls)
    with running(config) as server:
        command = Command(
            tmp_path,
            server.url,
            *("--http2", "--concurrency", "6", "--request-count", str(REQUESTS), *flags),
        )
        results = command.finish()["results"]
        truth = server.truth()
    assert command.code in FINISHED, command.errors
    assert results["request_count"]["avg"] == truth["completed"] == REQUESTS
    assert results["total_osl"]["avg"] == 8 * REQUESTS
    assert results["time_to_first_token"]["min"] >= 5
    assert results["aiperf_svc"]["accounts"]["violations"] == []
    command.assert_nothing_is_left()


def test_http2_faults_match_the_counts_of_the_server(tmp_path: Path) -> None:
    config = MockServerConfig(
        http2=True, truth=True, tokens=4, itl="1ms", error_rate=0.2, cut_rate=0.2
    )
    with running(config) as server:
        flags = ("--http2", "--concurrency", "4", "--request-count", "100")
        results = Command(tmp_path, server.url, *flags).finish()["results"]
        truth = server.truth()
    kinds = {each["error_details"]["type"]: each["count"] for each in results["error_summary"]}
    assert kinds["Status"] == truth["errors"] > 0
    assert sum(kinds.values()) - kinds["Status"] == truth["cuts"] > 0
    assert results["request_count"]["avg"] == truth["completed"]
