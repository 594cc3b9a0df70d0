"""A mock server with slots behaves like the queue of its settings: M/D/c or M/M/c."""

import contextlib
import heapq
import random
import time
from typing import Any

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.delays import parse_delay
from aiperf_svc.mock_server.running import running
from tests.support.bare_client import connected, request_bytes

SLOTS, CLIENTS, ROUNDS = 3, 10, 6


def load(config: MockServerConfig) -> dict[str, Any]:
    """Return the counters of a server that ten clients keep busy."""
    with running(config) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(CLIENTS)]
        for client in clients:
            client.send(request_bytes())
        for number in range(CLIENTS * (ROUNDS - 1)):
            client = clients[number % CLIENTS]
            assert client.response()[0] == 200
            client.send(request_bytes())
        for client in clients:
            assert client.response()[0] == 200
        return server.truth(rows=True)


def test_every_request_is_served_and_counted_once() -> None:
    truth = load(MockServerConfig(slots=SLOTS, ttft="20ms", itl="5ms", tokens=3, truth=True))
    total = CLIENTS * ROUNDS
    assert (truth["completed"], truth["in_flight"], len(truth["rows"])) == (total, 0, total)
    assert truth["max_in_flight"] > SLOTS
    assert truth["waited"] >= total - SLOTS - CLIENTS


@pytest.mark.parametrize("truth", [True, False])
def test_response_has_its_delays_after_waiting(truth: bool) -> None:
    config = MockServerConfig(slots=1, ttft="40ms", itl="20ms", tokens=3, truth=truth)
    with running(config) as server, connected(server) as one, connected(server) as two:
        before = time.monotonic()
        one.send(request_bytes())
        two.send(request_bytes())
        times = []
        for client in (one, two):
            client.until(b'"content":')
            times.append(time.monotonic() - before)
            client.until(b"0\r\n\r\n")
            times.append(time.monotonic() - before)
    assert all(seen >= due for seen, due in zip(times, (0.04, 0.08, 0.12, 0.16), strict=True))


@pytest.mark.parametrize("ttft", ["20ms", "exp:20ms"])
def test_no_response_ends_before_its_queue_time(ttft: str) -> None:
    truth = load(MockServerConfig(slots=SLOTS, ttft=ttft, tokens=1, seed=7, truth=True))
    draw_ns = parse_delay(ttft).sampler(random.Random("7/0"))
    free = [0] * SLOTS
    earliest = []
    for arrival in sorted(row["arrival_wall_ns"] for row in truth["rows"]):
        end = max(arrival, heapq.heappop(free)) + draw_ns()
        heapq.heappush(free, end)
        earliest.append(end)
    ends = sorted(row["end_wall_ns"] for row in truth["rows"])
    bounds = sorted(earliest)
    assert all(end >= bound for end, bound in zip(ends, bounds, strict=True))
