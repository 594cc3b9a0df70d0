"""The mock server's record matches what its clients observed."""

import contextlib
import json
import threading
import time
from typing import Any

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.faults import HUGE_BYTES
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.bare_client import HANG_GUARD_S, Client, connected, request_bytes


def test_rows_agree_with_the_clients_times(witness: RunningMockServer) -> None:
    witness.reset()
    seen: dict[str, list[int]] = {}
    for index in range(5):
        request_id = f"row-{index}"
        with connected(witness) as client:
            before_ns = time.time_ns()
            client.send(request_bytes(headers={"X-Request-ID": request_id}))
            client.until(b"\r\n\r\n")
            stamps = [before_ns, time.time_ns()]
            for _ in range(4):
                client.until(b'"content":')
                stamps.append(time.time_ns())
            client.until(b"0\r\n\r\n")
            seen[request_id] = [*stamps, time.time_ns()]
    rows = {row["request_id"]: row for row in witness.truth(rows=True)["rows"]}
    assert rows.keys() == seen.keys()
    for request_id, (before_ns, head_ns, *chunk_ns, after_ns) in seen.items():
        row = rows[request_id]
        assert before_ns <= row["arrival_wall_ns"] <= row["head_wall_ns"] <= head_ns
        assert len(row["chunk_wall_ns"]) == 4
        assert all(sent <= got for sent, got in zip(row["chunk_wall_ns"], chunk_ns, strict=True))
        assert row["end_wall_ns"] == row["chunk_wall_ns"][-1] <= after_ns
        assert row["outcome"] == "completed"


def test_no_token_is_sent_early(witness: RunningMockServer) -> None:
    witness.reset()
    with connected(witness) as client:
        client.send(request_bytes()).response()
    [row] = witness.truth(rows=True)["rows"]
    first, *_, last = row["chunk_wall_ns"]
    assert first - row["arrival_wall_ns"] >= 20_000_000
    assert last - row["arrival_wall_ns"] >= 20_000_000 + 3 * 3_000_000


def test_totals_over_processes_are_exact() -> None:
    config = MockServerConfig(processes=3, tokens=2, ttft="1ms", itl="1ms", truth=True)
    clients, each = 30, 5
    with running(config) as server:
        truths: list[dict[str, Any]] = []
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connected(server)) for _ in range(clients)]
            for round_index in range(each):
                for connection in connections:
                    connection.send(request_bytes())
                if round_index == each // 2:
                    truths.append(server.truth())  # available during the load
                for connection in connections:
                    assert connection.response()[0] == 200
        truth = server.truth(rows=True)
    total = clients * each
    assert truths[0]["requests"] <= total
    assert (truth["requests"], truth["completed"], truth["in_flight"]) == (total, total, 0)
    assert sum(process["requests"] for process in truth["processes"]) == total
    assert len(truth["rows"]) == total
    assert truth["writes"] == total * 3
    assert truth["max_in_flight_is_exact"]
    assert 2 <= truth["max_in_flight"] <= clients
    assert {row["process"] for row in truth["rows"]} == {
        index for index, process in enumerate(truth["processes"]) if process["requests"]
    }


def test_concurrent_truth_requests_across_processes_are_complete() -> None:
    with running(MockServerConfig(processes=3)) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(24)]
        for connection in connections:
            connection.send(b"GET /truth HTTP/1.1\r\n\r\n" * 3)
        for connection in connections:
            for _ in range(3):
                status, body = connection.response()
                assert status == 200
                assert len(json.loads(body)["processes"]) == 3


def test_a_client_that_leaves_is_accounted_as_disconnected() -> None:
    # Even a late client cannot receive the whole response.
    with running(MockServerConfig(tokens=2, itl="1h", truth=True)) as server:
        with connected(server) as client:
            client.send(request_bytes(headers={"X-Request-Id": "gone"}))
            client.until(b"\r\n\r\n")
        for fault in ("hang", "cut"):
            with connected(server) as client:
                names = {"X-Request-Id": fault, "X-Mock-Fault": fault}
                client.send(request_bytes(headers=names, max_tokens=1))
                if fault == "cut":
                    client.rest()
        truth = _settled(server, requests=3)
    outcomes = {row["request_id"]: row["outcome"] for row in truth["rows"]}
    assert outcomes == {"gone": "disconnected", "hang": "disconnected", "cut": "cut"}
    counted = {name: truth[name] for name in ("disconnected", "cuts", "completed", "hangs")}
    assert counted == {"disconnected": 2, "cuts": 1, "completed": 0, "hangs": 1}


def test_threads_of_clients_never_exceed_their_own_concurrency(witness: RunningMockServer) -> None:
    witness.reset()
    threads, each = 6, 4

    def client() -> None:
        with connected(witness) as connection:
            for _ in range(each):
                connection.send(request_bytes()).response()

    running_threads = [threading.Thread(target=client) for _ in range(threads)]
    for thread in running_threads:
        thread.start()
    for thread in running_threads:
        thread.join()
    truth = witness.truth(rows=True)
    assert truth["requests"] == threads * each
    assert 1 <= truth["max_in_flight"] <= threads


def test_a_slow_reader_gets_every_byte(witness: RunningMockServer) -> None:
    witness.reset()
    with connected(witness) as client:
        client.send(request_bytes(headers={"X-Mock-Fault": "huge-chunk"}))
        client.until(b"\r\n\r\n")
        second = Client(witness)
        second.send(request_bytes()).response()  # keeps the server busy meanwhile
        second.close()
        body_size = 0
        while size := int(client.until(b"\r\n"), 16):
            body_size += len(client.exactly(size))
            client.exactly(2)
    assert body_size > HUGE_BYTES
    assert _settled(witness, requests=2)["bytes_out"] > HUGE_BYTES


def _settled(server: RunningMockServer, *, requests: int) -> dict[str, Any]:
    """Wait until this many requests have arrived and none is in flight. Return the record."""
    deadline = time.monotonic() + HANG_GUARD_S
    while True:
        truth = server.truth(rows=True)
        if truth["requests"] == requests and truth["in_flight"] == 0:
            return truth
        assert time.monotonic() < deadline, truth
