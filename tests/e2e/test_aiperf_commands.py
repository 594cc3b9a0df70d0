"""Migrated command lines from AIPerf's documentation measure a server. Lengths and counts are
reduced so that each run takes some seconds. `AIPERF_COMMANDS=all` runs all of them."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiperf_svc.cli.commands.migrate import migrated
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.documented import documented, write_inputs
from tests.support.running_command import FINISHED, Command

SMALLER = {
    "--benchmark-duration": "60",
    "--duration": "60",
    "--warmup-duration": "0.3",
    "--slice-duration": "0.5",
    "--request-rate": "50",
    "--request-rate-ramp-duration": "0.5",
    "--concurrency-ramp-duration": "0.5",
    "--user-centric-rate": "30",
    "--session-turns-mean": "4",
    "--user-context-prompt-length": "100",
    "--num-dataset-entries": "30",
    "--request-count": "20",
    "--fixed-schedule-start-offset": "2000",
    "--fixed-schedule-end-offset": "2200",
}
"""Values that replace those of the documentation."""
RUN = documented()[:: 1 if os.environ.get("AIPERF_COMMANDS") == "all" else 3]
"""The command lines that are run. `tests/unit/cli/test_migrate.py` checks all without a run."""


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMockServer]:
    with running(MockServerConfig(ttft="5ms", itl="1ms", tokens=8)) as server:
        yield server


def smaller(arguments: list[str], url: str) -> Iterator[str]:
    """Yield the arguments of a command with smaller values and without a tokenizer from a hub."""
    values = {**SMALLER, "--url": url}
    words = iter(arguments)
    for word in words:
        if word == "--tokenizer":
            next(words)
            continue
        yield word
        if word in values:
            next(words)
            yield values[word]


@pytest.mark.parametrize("command", RUN)
def test_a_documented_command_of_aiperf_measures(
    mock: RunningMockServer, tmp_path: Path, command: str
) -> None:
    write_inputs(tmp_path)
    arguments = migrated(shlex.split(command)[2:]).arguments
    words = list(smaller(arguments, mock.url))
    if "--request-count" not in words and {"--benchmark-duration", "--duration"} & {*words}:
        words += ["--request-count", "60"]  # the same requests on a busy machine
    run = Command(tmp_path, None, words=["profile", *words])
    results = run.finish()["results"]
    assert run.code in FINISHED, run.errors
    assert results["request_count"]["avg"] > 0
    assert "error_request_count" not in results or results["error_request_count"]["avg"] == 0
