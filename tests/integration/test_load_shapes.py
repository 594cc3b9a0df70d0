"""When a run sends requests: on schedule, under a cap, over a ramp, until time is up."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.in_one_loop import config, lines, results_of, server, stack, talks


def due_times(folder: Path) -> dict[str, int]:
    """Return the due time of each request by its id, in ns on the wall clock."""
    found = (line["metadata"] for line in lines(folder / "artifacts"))
    return {each["x_request_id"]: each["credit_issued_ns"] for each in found}


async def test_open_loop_sends_when_due(tmp_path: Path) -> None:
    with server(ttft="50ms", tokens=1) as mock:
        settings = config(mock.url, request_rate=200, requests=200, arrival={"pattern": "constant"})
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    assert summary["request_count"]["avg"] == truth["requests"] == 200
    arrivals = {row["request_id"]: row["arrival_wall_ns"] for row in truth["rows"]}
    due = due_times(tmp_path)
    # The schedule is exact. The lateness of a request depends on the machine, but none is early.
    offsets = (np.sort(list(due.values())) - min(due.values())) // 1_000_000
    assert set(offsets.tolist()) <= set(range(0, 1_000, 5))
    assert all(arrivals[request] >= due[request] for request in arrivals)
    assert summary["schedule_lag"]["min"] >= 0
    # No request waits for the response of another.
    assert truth["max_in_flight"] > 1


async def test_two_workers_share_one_poisson_process(tmp_path: Path) -> None:
    with server(tokens=1) as mock:
        await results_of(config(mock.url, request_rate=400, requests=300), tmp_path, workers=2)
        arrivals = {
            row["request_id"]: row["arrival_wall_ns"] for row in mock.truth(rows=True)["rows"]
        }
    due = due_times(tmp_path)
    gaps = np.diff(np.sort(list(due.values()))) / 1e9
    assert len(due) == 300
    # The schedule is seeded, so it is the same in every run, however busy the machine is.
    assert gaps.mean() == pytest.approx(1 / 400, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.2)
    assert all(arrivals[request] >= due[request] for request in due)


async def test_duration_ends_sending_and_grace_ends_waiting(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="20ms", tokens=500) as mock:
        settings = config(mock.url, concurrency=5, duration="2s", grace_period="200ms")
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["cancelled"] == 5 == accounts["issued"]
    assert truth["requests"] == 5
    assert accounts["violations"] == []


async def test_ramp_opens_the_users_one_after_the_other(tmp_path: Path) -> None:
    with server() as mock:
        settings = config(mock.url, concurrency=10, requests=10, ramp="500ms")
        # No request ends before the last user has started, so each user has one.
        settings["endpoint"]["model"] = "mock-hang"
        async with stack(settings, tmp_path) as run:
            await run.wait_until(lambda: bool(mock.truth()["requests"] == 10))
            run.records_manager.cancel("enough")
            await run.results()
        rows = mock.truth(rows=True)["rows"]
    due = due_times(tmp_path)
    assert np.diff(np.sort(list(due.values()))) / 1e6 == pytest.approx([50] * 9, abs=0.001)
    assert all(row["arrival_wall_ns"] >= due[row["request_id"]] for row in rows)


async def test_cap_delays_open_loop_requests_and_reports_it(tmp_path: Path) -> None:
    with server(ttft="100ms", tokens=1) as mock:
        settings = config(mock.url, request_rate=100, concurrency=4, requests=60)
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 4
    assert truth["requests"] == 60
    # 100 per second are due and 40 are possible. Only the intended latency shows the wait.
    due = due_times(tmp_path)
    times = [line["metadata"] for line in lines(tmp_path / "artifacts")]
    waits_ms = [(each["request_start_ns"] - due[each["x_request_id"]]) / 1e6 for each in times]
    intended, actual = summary["intended_request_latency"], summary["request_latency"]
    assert intended["max"] > 500
    assert intended["avg"] - actual["avg"] == pytest.approx(np.mean(waits_ms), rel=0.01)


async def test_request_count_ends_under_a_tight_cap(tmp_path: Path) -> None:
    with server(ttft="20ms", tokens=1) as mock:
        # All are due before the first response. From then on, only an end frees a slot.
        settings = config(mock.url, request_rate=50_000, concurrency=2, requests=40)
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 2
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == accounts["completed"] == truth["requests"] == 40
    assert accounts["violations"] == []


async def test_briefly_reached_cap_delays_no_request(tmp_path: Path) -> None:
    with server(tokens=1) as mock:
        # Few enough to be granted at once. Afterwards only their own timer wakes the worker.
        load: dict[str, Any] = {"request_rate": 200, "concurrency": 1, "requests": 20}
        load |= {"arrival": {"pattern": "constant"}}
        summary = await results_of(config(mock.url, **load), tmp_path)
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 1
    assert summary["aiperf_svc"]["accounts"]["completed"] == truth["requests"] == 20


async def test_cap_does_not_end_conversations_or_failing_requests(tmp_path: Path) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b", "delay": 20}, count=10)
    with server(ttft="5ms", tokens=1, error_rate=0.5) as mock:
        settings = config(mock.url, dataset=dataset, request_rate=1_000, concurrency=1, requests=20)
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["max_in_flight"] == 1
    assert accounts["issued"] == accounts["completed"] + accounts["errored"] == 10
    assert accounts["violations"] == []


async def test_due_requests_held_by_a_cap_are_unsent(tmp_path: Path) -> None:
    with server(ttft="400ms", tokens=1) as mock:
        settings = config(
            mock.url,
            request_rate=100,
            concurrency=2,
            duration="1s",
            arrival={"pattern": "constant"},
        )
        summary = await results_of(settings, tmp_path)
        sent = mock.truth()["requests"]
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == 100
    assert accounts["completed"] == sent
    assert accounts["unsent"] == 100 - sent
    assert accounts["violations"] == []
    assert summary["aiperf_svc"]["verdict"] != "valid"


async def test_stages_have_their_rates_on_the_servers_side(tmp_path: Path) -> None:
    stages = [{"rate": 50, "duration": "1s"}, {"rate": 150, "duration": "2s"}]
    load: dict[str, Any] = {"stages": stages, "arrival": {"pattern": "constant"}}
    with server(tokens=1) as mock:
        summary = await results_of(config(mock.url, **load), tmp_path)
        arrivals = np.sort([row["arrival_wall_ns"] for row in mock.truth(rows=True)["rows"]])
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == 350
    assert summary["requested_rate"]["avg"] == pytest.approx(350 / 3)
    due = np.sort(list(due_times(tmp_path).values()))
    # Requests that a busy machine could not write before the stop are unsent and have no line.
    sent = [50, 300 - accounts["unsent"]]
    counts = np.histogram((due - due[0]) / 1e9, [0, 1, 3])[0]
    assert counts.tolist() == pytest.approx(sent, abs=1)
    assert (arrivals[: len(due)] >= due[: len(arrivals)]).all()


def trace(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write a trace of these rows and return its dataset."""
    path = folder / "trace.jsonl"
    lengths = {"input_length": 20, "output_length": 1}
    path.write_text("".join(json.dumps(lengths | row) + "\n" for row in rows))
    return {"kind": "mooncake_trace", "file": str(path)}


async def test_replay_sends_each_row_at_its_scaled_time(tmp_path: Path) -> None:
    times_ms = np.cumsum(np.random.default_rng(3).exponential(4.0, size=300)).round(3)
    rows = [{"timestamp": 10_000 + float(time)} for time in times_ms]
    load = {"fixed_schedule": True, "replay_speedup": 2, "warmup": {"requests": 5}}
    with server(tokens=1) as mock:
        settings = config(mock.url, dataset=trace(tmp_path, rows), **load)
        summary = await results_of(settings, tmp_path, workers=2)
        seen = mock.truth(rows=True)["rows"]
    due = due_times(tmp_path)
    # Every row is due at its time, exact to a microsecond, and arrives at the server no earlier.
    planned = np.round((times_ms - times_ms[0]) / 2 * 1e6)
    ordered = np.sort(np.array(list(due.values())))
    assert np.abs(ordered - ordered[0] - planned).max() <= 1_000
    arrivals = {row["request_id"]: row["arrival_wall_ns"] for row in seen}
    late_ms = [(arrivals[name] - wanted) / 1e6 for name, wanted in due.items()]
    assert len(due) == 300
    assert min(late_ms) >= 0
    ours = summary["aiperf_svc"]
    assert ours["accounts"]["issued"] == ours["accounts"]["completed"] == 300
    assert ours["accounts"]["violations"] == []
    assert summary["requested_rate"]["avg"] == pytest.approx(299e9 / planned[-1], rel=1e-6)
    saved = ours["config"]["load"]
    assert (saved["fixed_schedule"], saved["replay_speedup"]) == (True, 2.0)


async def test_replayed_session_sends_turns_at_trace_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "session_id": "a"},
        {"timestamp": 0, "session_id": "b"},
        {"timestamp": 0, "session_id": "c"},
        {"session_id": "a", "delay": 200},
        {"timestamp": 400, "session_id": "b"},
        {"timestamp": 400, "session_id": "c", "delay": 50},
    ]
    with server(ttft="100ms", tokens=1) as mock:
        settings = config(mock.url, dataset=trace(tmp_path, rows), fixed_schedule=True)
        summary = await results_of(settings, tmp_path)
    assert summary["request_count"]["avg"] == 6
    found = {}
    for line in lines(tmp_path / "artifacts"):
        row = line["metadata"]
        found["abc"[row["session_num"]], row["turn_index"]] = row
    after_ms = {
        name: (found[name, 1]["credit_issued_ns"] - found[name, 0]["request_end_ns"]) / 1e6
        for name in "abc"
    }
    assert after_ms["a"] == pytest.approx(200, abs=0.01)
    assert after_ms["c"] == pytest.approx(50, abs=0.01)
    # On a busy machine, the first turn may take longer than the interval.
    first_end = found["b", 0]["request_end_ns"]
    due = max(found["b", 0]["credit_issued_ns"] + 400 * 10**6, first_end)
    assert abs(found["b", 1]["credit_issued_ns"] - due) <= 10_000


async def test_a_warmup_with_fewer_places_than_workers_ends(tmp_path: Path) -> None:
    with server(ttft="20ms", tokens=1) as mock:
        warmup = {"requests": 6, "concurrency": 1, "request_rate": 100}
        settings = config(mock.url, concurrency=4, requests=20, warmup=warmup)
        settings["workers"] = {"min": 2}
        async with stack(settings, tmp_path, workers=2) as run:
            assert run.topology.workers == 2
            summary = await run.results()
        truth = mock.truth(rows=True)
    assert truth["requests"] == 26
    assert summary["aiperf_svc"]["accounts"]["completed"] == 20
    rows = sorted(truth["rows"], key=lambda row: row["arrival_wall_ns"])
    # During the warmup one request at a time, whatever is due.
    for before, after in itertools.pairwise(rows[:6]):
        assert after["arrival_wall_ns"] > before["chunk_wall_ns"][0]
