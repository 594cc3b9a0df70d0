"""Clients that disconnect before their response has ended, compared with the server's own count."""

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.core.load.abandonment import Abandonment
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.services.abandonments import MIN_CHECK_NS, PRUNED_AT, Abandonments
from tests.support.in_one_loop import config, lines, results_of, server, stack


def chosen(count: int, share: float, turns: int = 1) -> set[tuple[int, int]]:
    """Return conversation and turn of the requests to abandon with seed 0."""
    choice = Abandonment(share=share, delay_ns=0, seed=0)
    return {(i, turn) for i in range(count) for turn in range(turns) if choice.is_chosen(i, turn)}


def stalling_dataset(
    folder: Path, leaving: set[tuple[int, int]], count: int, turns: int = 1
) -> Any:
    """Return a dataset of `count` conversations to which a mock server responds immediately. It
    sends only one half of responses to `leaving`, so they cannot end before their clients
    disconnect."""
    rows = []
    for conversation, turn in itertools.product(range(count), range(turns)):
        model = "mock-stall" if (conversation, turn) in leaving else "mock"
        payload = {"model": model, "messages": [{"role": "user", "content": "a"}], "stream": True}
        rows.append(json.dumps({"session_id": f"s{conversation}", "payload": payload}))
    path = folder / "requests.jsonl"
    path.write_text("\n".join(rows))
    return {"kind": "mooncake_trace", "file": str(path)}


async def test_server_sees_exactly_the_chosen_abandonments(tmp_path: Path) -> None:
    leaving = chosen(120, 0.2)
    with server(tokens=25) as mock:
        load: dict[str, Any] = {"concurrency": 60, "requests": 120}
        load["cancellation"] = {"rate": "20%", "delay": "100ms"}
        settings = config(mock.url, dataset=stalling_dataset(tmp_path, leaving, 120), **load)
        async with stack(settings | {"workers": {"min": 2}}, tmp_path, workers=2) as run:
            assert run.topology.workers == 2
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["disconnected"] == accounts["abandoned"] == len(leaving)
    assert accounts["issued"] == accounts["completed"] + accounts["abandoned"] == 120
    assert (accounts["errored"], accounts["violations"]) == (0, [])
    assert truth["requests"] == accounts["requests_sent"] == 120
    assert summary["abandoned_request_count"]["avg"] == len(leaving)
    assert summary["error_request_count"]["avg"] == summary["cancelled_request_count"]["avg"] == 0
    # Latencies exclude requests that were to be abandoned but completed first.
    assert summary["request_latency"]["count"] == 120 - len(leaving)
    by_index = {line["metadata"]["session_num"]: line for line in lines(tmp_path / "artifacts")}
    cancelled = {i for i, line in by_index.items() if line["metadata"]["was_cancelled"]}
    assert cancelled == {index for index, _ in leaving}
    for index in cancelled:
        metadata = by_index[index]["metadata"]
        stayed_ms = (metadata["request_end_ns"] - metadata["request_start_ns"]) / 1e6
        assert stayed_ms >= 100
        error = by_index[index]["error"]
        assert (error["code"], error["type"]) == (499, "abandoned")
        assert "request_latency" not in by_index[index]["metrics"]


async def test_response_before_the_delay_is_complete(tmp_path: Path) -> None:
    with server(ttft="5ms", tokens=1) as mock:
        load: dict[str, Any] = {"request_rate": 200, "requests": 100}
        load |= {"cancellation": {"rate": "100%", "delay": "20s"}}
        summary = await results_of(config(mock.url, **load), tmp_path)
        truth = mock.truth()
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["disconnected"] == accounts["abandoned"] == 0
    assert accounts["completed"] == summary["request_count"]["avg"] == 100
    # Among such clients, only those with fast responses complete, so their latencies are excluded.
    assert "request_latency" not in summary


async def test_each_target_sees_its_abandonments(tmp_path: Path) -> None:
    leaving = chosen(100, 0.4)
    with server(tokens=1) as one, server(tokens=1) as other:
        load: dict[str, Any] = {"concurrency": 50, "requests": 100}
        load["cancellation"] = {"rate": "40%", "delay": "20ms"}
        settings = config(one.url, dataset=stalling_dataset(tmp_path, leaving, 100), **load)
        settings["endpoint"] |= {"urls": [other.url], "url_strategy": "least_in_flight"}
        summary = await results_of(settings, tmp_path)
        left = [one.truth()["disconnected"], other.truth()["disconnected"]]
    accounts = summary["aiperf_svc"]["accounts"]
    assert (sum(left), accounts["abandoned"]) == (len(leaving),) * 2
    assert min(left) > 5
    assert accounts["violations"] == []


async def test_a_conversation_ends_where_its_client_leaves(tmp_path: Path) -> None:
    leaving = chosen(30, 0.3, turns=3)
    with server(tokens=1) as mock:
        load: dict[str, Any] = {"concurrency": 30, "requests": 90}
        load |= {"cancellation": {"rate": "30%", "delay": "10ms"}}
        dataset = stalling_dataset(tmp_path, leaving, 30, turns=3)
        summary = await results_of(config(mock.url, dataset=dataset, **load), tmp_path)
        truth = mock.truth()
    last = [min(turn for turn in (0, 1, 2) if turn == 2 or (i, turn) in leaving) for i in range(30)]
    abandoned = len({index for index, _ in leaving})
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["abandoned"], accounts["completed"]) == (abandoned, 30 - abandoned)
    assert truth["requests"] == accounts["requests_sent"] == sum(last) + 30
    assert truth["disconnected"] == summary["abandoned_request_count"]["avg"] == abandoned


async def test_clients_leave_in_grace_period_but_not_warmup(tmp_path: Path) -> None:
    # The last three requests belong to the warmup.
    dataset = stalling_dataset(tmp_path, {(index, 0) for index in range(300)}, 303)
    with server(tokens=25) as mock:
        # Each client would leave after the load, because its delay is as long as the load.
        load: dict[str, Any] = {"request_rate": 100, "duration": "1500ms"}
        load |= {"cancellation": {"rate": "100%", "delay": "1500ms"}, "warmup": {"requests": 3}}
        summary = await results_of(config(mock.url, dataset=dataset, **load), tmp_path)
        truth = mock.truth()
    accounts = summary["aiperf_svc"]["accounts"]
    # Requests that a busy machine could not write before the end of the load are unsent.
    assert accounts["abandoned"] == accounts["issued"] - accounts["unsent"] > 0
    assert truth["disconnected"] == accounts["abandoned"]
    assert truth["completed"] == 3


# --- timing --------------------------------------------------------------------------------------


@dataclass
class Carrier:
    """A fake connection."""

    request: Request | None = None
    unsent: memoryview | None = None


@dataclass
class NotingClient:
    """Assigns a connection to each request and writes nothing."""

    carriers: list[Carrier] = field(default_factory=list)
    abandoned: list[Request] = field(default_factory=list)

    def send(self, request: Request) -> Carrier:
        self.carriers.append(Carrier(request))
        return self.carriers[-1]

    def connection_of(self, request: Request) -> Carrier | None:
        return next((each for each in self.carriers if each.request is request), None)

    def abandon(self, _: Carrier, request: Request) -> None:
        self.abandoned.append(request)


DELAY_NS = 5_000_000


def sender(client: Any, *, delay_ns: int = DELAY_NS) -> Abandonments:
    return Abandonments(Abandonment(share=1.0, delay_ns=delay_ns, seed=0), client, lambda: None)


def sent_by(made: Abandonments, *, index: int = 0, phase: Phase = Phase.PROFILING) -> Request:
    request = Request(PreparedTurn(b"", b"", 0, 0), b"", phase, index, 0, 0)
    made.send(request)
    return request


def written(request: Request, at_ns: int) -> Request:
    request.write_wall_ns = request.sent_wall_ns = at_ns
    return request


def run_check(made: Abandonments) -> int:
    """Run a check at its time and return this time."""
    now = made.next_wall_ns
    assert now is not None
    made.run(now)
    return now


@pytest.mark.parametrize("waited_ns", [0, 1_000_000, 4_999_999, 5_000_000, 23_456_789])
def test_delay_counts_from_the_write(waited_ns: int) -> None:
    made = sender(client := NotingClient())
    before = time_ns()
    request = sent_by(made)
    first = made.next_wall_ns
    assert first is not None
    assert first >= before + DELAY_NS
    write = first - DELAY_NS + waited_ns
    now = 0
    while not client.abandoned:
        if made.next_wall_ns is not None and made.next_wall_ns >= write:
            written(request, write)
        now = run_check(made)
    assert now == write + DELAY_NS


def test_abandonment_waits_for_the_last_written_bytes() -> None:
    made = sender(client := NotingClient())
    request = sent_by(made)
    client.carriers[0].unsent = memoryview(b"rest")
    now = run_check(made)
    written(request, now)
    now = run_check(made)
    assert client.abandoned == []
    client.carriers[0].unsent = None
    request.sent_wall_ns = now + 1
    assert run_check(made) == now + DELAY_NS
    assert run_check(made) == now + 1 + DELAY_NS
    assert client.abandoned == [request]


def test_moved_request_leaves_its_new_connection() -> None:
    made = sender(client := NotingClient())
    request = written(sent_by(made), 1)
    client.carriers[0].request = None
    client.send(request)
    run_check(made)
    assert client.abandoned == [request]


def test_ended_or_revoked_requests_are_ignored() -> None:
    made = sender(client := NotingClient())
    written(sent_by(made), 1).end_wall_ns = 2
    sent_by(made)
    client.carriers[1].request = None
    while made.next_wall_ns is not None:
        run_check(made)
    assert client.abandoned == []


def test_no_client_leaves_during_warmup() -> None:
    made = sender(NotingClient())
    sent_by(made, phase=Phase.WARMUP)
    assert made.next_wall_ns is None


def test_waiting_request_is_checked_each_millisecond() -> None:
    made = sender(client := NotingClient(), delay_ns=0)
    request = sent_by(made)
    now = run_check(made)
    assert made.next_wall_ns == now + MIN_CHECK_NS
    written(request, now + 10)
    run_check(made)
    assert client.abandoned == [request]


def test_memory_does_not_grow_with_ended_requests() -> None:
    made = sender(NotingClient(), delay_ns=600 * 10**9)
    for index in range(20 * PRUNED_AT):
        written(sent_by(made, index=index), 1).end_wall_ns = 2
    assert len(made._heap) <= PRUNED_AT
