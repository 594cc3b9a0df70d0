"""The mock server's `/metrics` page matches the requests that it served."""

import contextlib
import time
from typing import Any
from urllib.request import urlopen

import pytest

from aiperf_svc.core.telemetry.page import PageReader
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.bare_client import connected, request_bytes

TTFT = "vllm:time_to_first_token_seconds"


def page_of(server: RunningMockServer) -> dict[str, float]:
    """Return the values of the page by name, without histogram buckets."""
    with urlopen(f"{server.urls[0]}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = PageReader().read(response.read().decode())
    return {s.name.removeprefix("vllm:"): v for s, v in page.values.items() if not s.label("le")}


def serve(server: RunningMockServer, clients: int, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(clients)]
        for _ in range(rounds):
            for client in connections:
                client.send(request_bytes(stream=True))
            for client in connections:
                assert client.response()[0] == 200


@pytest.mark.parametrize("processes", [1, 2])
def test_counters_equal_the_account(processes: int) -> None:
    config = MockServerConfig(
        ttft="30ms",
        itl="2ms",
        tokens=5,
        # With several processes, requests do not queue.
        slots=2 if processes == 1 else 0,
        truth=True,
        processes=processes,
    )
    with running(config) as server:
        before = page_of(server)
        assert (before["num_requests_running"], before["generation_tokens_total"]) == (0, 0)
        serve(server, clients=6, rounds=3)
        page, truth = page_of(server), server.truth(rows=True)
    assert page["request_success_total"] == truth["completed"] == 18
    assert page["generation_tokens_total"] == 18 * 5
    assert page["time_to_first_token_seconds_count"] == 18
    # From the rows: the time from the request's arrival to the send of its first token.
    seen_s = sum(_ttft_ns(row) for row in truth["rows"]) / 1e9
    counted_s = page["time_to_first_token_seconds_sum"]
    assert 18 * 0.030 <= counted_s <= seen_s


def _ttft_ns(row: dict[str, Any]) -> int:
    return int(row["chunk_wall_ns"][0] - row["arrival_wall_ns"])


def test_running_and_waiting_are_separate() -> None:
    with running(MockServerConfig(ttft="1h", tokens=1, slots=2)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(connected(server)).send(request_bytes())
            while server.truth()["in_flight"] < 5:
                time.sleep(0.01)
            page = page_of(server)
        assert (page["num_requests_running"], page["num_requests_waiting"]) == (2, 3)


def test_server_without_delays_reports_only_counts() -> None:
    with running(MockServerConfig(tokens=3)) as server:
        serve(server, clients=1, rounds=2)
        page = page_of(server)
        assert page.pop("request_success_created") == page_of(server)["request_success_created"]
    assert page == {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "request_success_total": 2.0,
    }
