"""A mock server with slots is the queue that its settings say: M/D/c or M/M/c."""

import contextlib
import heapq
import random
from typing import Any

import pytest
from bare_client import connected, request_bytes

from aiperf_svc.mock_server.accounts import max_overlap
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.delays import parse_delay
from aiperf_svc.mock_server.running import running

SLOTS, CLIENTS, ROUNDS = 3, 10, 6


def load(config: MockServerConfig) -> dict[str, Any]:
    """The account of a server that ten clients keep busy."""
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


def test_no_more_responses_than_slots_are_made_at_once() -> None:
    truth = load(MockServerConfig(slots=SLOTS, ttft="20ms", itl="5ms", tokens=3, truth=True))
    rows = truth["rows"]
    total = CLIENTS * ROUNDS
    assert (truth["completed"], truth["in_flight"], len(rows)) == (total, 0, total)
    # The head goes out when a response gets its slot.
    starts = sorted(row["head_wall_ns"] for row in rows)
    ends = sorted(row["end_wall_ns"] for row in rows)
    assert max_overlap(starts, ends) == SLOTS
    assert truth["max_in_flight"] > SLOTS
    assert truth["waited"] >= total - SLOTS - CLIENTS


@pytest.mark.parametrize("ttft", ["20ms", "exp:20ms"])
def test_nothing_ends_before_the_queue_would_let_it(ttft: str) -> None:
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
