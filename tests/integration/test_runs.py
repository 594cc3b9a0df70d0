"""Whole runs in one loop against the mock server, compared with what the server says it did."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_one_loop import stack

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import id_prefix, request_id
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running


@contextmanager
def server(**settings: Any) -> Iterator[RunningMockServer]:
    with running(MockServerConfig(truth=True, **settings)) as mock:
        yield mock


def config(url: str, *, dataset: dict[str, Any] | None = None, **load: Any) -> dict[str, Any]:
    return {
        "endpoint": {"url": url, "model": "mock", "streaming": True},
        "load": load,
        "dataset": dataset or {"entries": 50, "input_tokens": {"mean": 20}},
    }


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


async def test_a_closed_loop_sends_exactly_what_was_asked_at_exactly_the_concurrency(
    tmp_path: Path,
) -> None:
    with server(ttft="10ms", itl="1ms", tokens=5) as mock:
        async with stack(config(mock.url, concurrency=8, requests=200), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    assert truth["requests"] == 200
    assert truth["max_in_flight"] == 8
    assert summary["request_count"]["avg"] == 200
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == accounts["completed"] == accounts["records"] == 200
    assert accounts["violations"] == []


async def test_every_request_has_one_line_and_the_servers_times(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="2ms", tokens=10) as mock:
        async with stack(config(mock.url, concurrency=4, requests=60), tmp_path) as run:
            await run.results()
        rows = {row["request_id"]: row for row in mock.truth(rows=True)["rows"]}
    records = lines(tmp_path / "artifacts")
    assert {r["metadata"]["x_request_id"] for r in records} == set(rows)
    assert len(records) == 60
    errors = []
    for record in records:
        row = rows[record["metadata"]["x_request_id"]]
        true_ms = (row["chunk_wall_ns"][0] - row["arrival_wall_ns"]) / 1e6
        errors.append(record["metrics"]["time_to_first_token"]["value"] - true_ms)
    # Measured from the write and until the stamp of the bytes: never less than the truth.
    assert min(errors) > 0
    assert np.median(errors) < 2


async def test_workers_and_processors_share_a_run_without_overlap(tmp_path: Path) -> None:
    with server(ttft="5ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=120, requests=600)
        async with stack(settings, tmp_path, workers=3, processors=2) as run:
            summary = await run.results()
            assert run.topology.workers == 3
        truth = mock.truth(rows=True)
    assert truth["requests"] == 600
    assert truth["max_in_flight"] == 120
    indexes = sorted(r["metadata"]["session_num"] for r in lines(tmp_path / "artifacts"))
    assert indexes == list(range(600))
    assert summary["aiperf_svc"]["accounts"]["violations"] == []


async def test_an_open_loop_sends_when_due_whatever_the_server_does(tmp_path: Path) -> None:
    with server(ttft="50ms", tokens=1) as mock:
        load = {"request_rate": 200, "duration": "2s", "arrival": {"pattern": "constant"}}
        async with stack(config(mock.url, **load), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    # One that a busy machine could not write before the stop is unsent, and in the accounts.
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == 400
    assert summary["request_count"]["avg"] == truth["requests"] == 400 - accounts["unsent"]
    arrivals = np.sort([row["arrival_wall_ns"] for row in truth["rows"]])
    gaps_ms = np.diff(arrivals) / 1e6
    assert np.median(gaps_ms) == pytest.approx(5.0, abs=0.5)
    assert summary["schedule_lag"]["min"] >= 0


async def test_two_workers_share_one_poisson_process(tmp_path: Path) -> None:
    with server(tokens=1) as mock:
        load = {"request_rate": 400, "requests": 800}
        async with stack(config(mock.url, **load), tmp_path, workers=2) as run:
            await run.results()
        arrivals = {
            row["request_id"]: row["arrival_wall_ns"] for row in mock.truth(rows=True)["rows"]
        }
    due = {
        line["metadata"]["x_request_id"]: line["metadata"]["credit_issued_ns"]
        for line in lines(tmp_path / "artifacts")
    }
    gaps = np.diff(np.sort(list(due.values()))) / 1e9
    assert len(due) == 800
    # Seeded: the schedule itself is the same in every run, however busy the machine is.
    assert gaps.mean() == pytest.approx(1 / 400, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.2)
    assert all(arrivals[request] >= due[request] for request in due)


async def test_the_warmup_is_sent_first_and_left_out(tmp_path: Path) -> None:
    with server(ttft="2ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=4, requests=40, warmup={"requests": 12})
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
        rows = mock.truth(rows=True)["rows"]
    warmup = [row for row in rows if row["request_id"].startswith(id_prefix("test", Phase.WARMUP))]
    profiling = [
        row for row in rows if row["request_id"].startswith(id_prefix("test", Phase.PROFILING))
    ]
    assert (len(warmup), len(profiling)) == (12, 40)
    last_of_warmup = max(row["end_wall_ns"] for row in warmup)
    assert min(row["arrival_wall_ns"] for row in profiling) > last_of_warmup
    assert summary["request_count"]["avg"] == 40
    assert len(lines(tmp_path / "artifacts")) == 40


async def test_a_duration_ends_the_sending_and_the_grace_period_the_waiting(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="20ms", tokens=500) as mock:
        settings = config(mock.url, concurrency=5, duration="300ms", grace_period="200ms")
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["cancelled"] == 5 == accounts["issued"]
    assert truth["requests"] == 5
    assert accounts["violations"] == []


async def test_a_ramp_opens_the_users_one_after_the_other(tmp_path: Path) -> None:
    with server(ttft="2s", tokens=1) as mock:
        settings = config(mock.url, concurrency=10, requests=10, ramp="500ms")
        async with stack(settings, tmp_path) as run:
            await run.results()
        rows = mock.truth(rows=True)["rows"]
    gaps_ms = np.diff(np.sort([row["arrival_wall_ns"] for row in rows])) / 1e6
    assert np.median(gaps_ms) == pytest.approx(50, abs=10)


async def test_a_cap_holds_open_loop_requests_back_and_says_so(tmp_path: Path) -> None:
    with server(ttft="100ms", tokens=1) as mock:
        load = {"request_rate": 100, "concurrency": 4, "requests": 60}
        async with stack(config(mock.url, **load), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 4
    assert truth["requests"] == 60
    # 100 a second due, 40 a second possible: the wait shows in the intended latency only.
    assert summary["intended_request_latency"]["max"] > 500
    assert summary["request_latency"]["p50"] < 200


async def test_a_count_of_requests_ends_under_a_cap_that_holds_nearly_all_of_them_back(
    tmp_path: Path,
) -> None:
    with server(ttft="20ms", tokens=1) as mock:
        # All are due before the first answer; from then on only an end can free a place.
        load = {"request_rate": 50_000, "concurrency": 2, "requests": 40}
        async with stack(config(mock.url, **load), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 2
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == accounts["completed"] == truth["requests"] == 40
    assert accounts["violations"] == []


async def test_a_cap_that_is_reached_and_free_again_before_the_next_is_due_delays_nothing(
    tmp_path: Path,
) -> None:
    with server(tokens=1) as mock:
        # Few enough to be granted at once: after that nothing but their own timer wakes the worker.
        load = {"request_rate": 200, "concurrency": 1, "requests": 20}
        load |= {"arrival": {"pattern": "constant"}}
        async with stack(config(mock.url, **load), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    assert truth["max_in_flight"] == 1
    assert summary["aiperf_svc"]["accounts"]["completed"] == truth["requests"] == 20


async def test_a_cap_is_no_end_for_conversations_and_failing_requests(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    talk = {"turns": [{"text": "a"}, {"text": "b", "delay": 20}]}
    file.write_text((json.dumps(talk) + "\n") * 10)
    with server(ttft="5ms", tokens=1, error_rate=0.5) as mock:
        load = {"request_rate": 1_000, "concurrency": 1, "requests": 20}
        dataset = {"kind": "multi_turn", "file": str(file)}
        async with stack(config(mock.url, dataset=dataset, **load), tmp_path) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["max_in_flight"] == 1
    assert accounts["issued"] == accounts["completed"] + accounts["errored"] == 10
    assert accounts["violations"] == []


async def test_what_was_due_and_could_not_be_sent_is_counted_unsent(tmp_path: Path) -> None:
    with server(ttft="400ms", tokens=1) as mock:
        load = {
            "request_rate": 100,
            "concurrency": 2,
            "duration": "1s",
            "arrival": {"pattern": "constant"},
        }
        async with stack(config(mock.url, **load), tmp_path) as run:
            summary = await run.results()
        sent = mock.truth()["requests"]
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == 100
    assert accounts["completed"] == sent
    assert accounts["unsent"] == 100 - sent
    assert accounts["violations"] == []
    assert summary["aiperf_svc"]["verdict"] != "valid"


async def test_conversations_keep_their_history_their_order_and_their_pauses(
    tmp_path: Path,
) -> None:
    file = tmp_path / "talks.jsonl"
    turns = [{"text": f"question {i}", "delay": 30 * bool(i)} for i in range(3)]
    file.write_text(
        "".join(json.dumps({"session_id": f"s{n}", "turns": turns}) + "\n" for n in range(4))
    )
    dataset = {"kind": "multi_turn", "file": str(file)}
    with server(ttft="5ms", tokens=3) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=12)
        async with stack(settings, tmp_path, workers=1) as run:
            summary = await run.results()
        rows = {row["request_id"]: row for row in mock.truth(rows=True)["rows"]}
    assert summary["request_count"]["avg"] == 12
    assert summary["aiperf_svc"]["accounts"]["issued"] == 4
    for index in range(4):
        talk = [rows[request_id("test", Phase.PROFILING, index, turn)] for turn in range(3)]
        for before, after in itertools.pairwise(talk):
            assert after["arrival_wall_ns"] - before["end_wall_ns"] > 29e6


async def test_a_request_count_ends_within_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(
        (json.dumps({"turns": [{"text": "a"}, {"text": "b"}, {"text": "c"}]}) + "\n") * 5
    )
    dataset = {"kind": "multi_turn", "file": str(file)}
    with server(tokens=2) as mock:
        async with stack(
            config(mock.url, dataset=dataset, concurrency=1, requests=8), tmp_path
        ) as run:
            summary = await run.results()
        assert mock.truth()["requests"] == 8
    assert summary["request_count"]["avg"] == 8


async def test_a_cancel_keeps_what_was_measured(tmp_path: Path) -> None:
    with server(ttft="20ms", tokens=2) as mock:
        async with stack(config(mock.url, concurrency=5, requests=100_000), tmp_path) as run:
            await run.wait_for_state("profiling")
            while (status := run.records_manager.status()).completed < 20:
                await run.records_manager.wait_change(status.number, 1)
            run.records_manager.cancel("interrupted by the test")
            summary = await run.results()
            await run.wait_for_state("cancelled")
    assert summary["was_cancelled"] is True
    assert summary["request_count"]["avg"] >= 20
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert accounts["issued"] == accounts["completed"] + accounts["cancelled"]


async def test_what_a_request_sends_depends_on_its_index_and_the_seed_only(tmp_path: Path) -> None:
    sent = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        with server(tokens=1) as mock:
            settings = config(mock.url, concurrency=100, requests=150)
            async with stack(settings, folder, workers=workers) as run:
                await run.results()
        sent.append(
            {
                r["metadata"]["session_num"]: r["metadata"]["conversation_id"]
                for r in lines(folder / "artifacts")
            }
        )
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("mock-error-401", 401),
        ("mock-error-429", 429),
        ("mock-error-500", 500),
        ("mock-malformed", 200),
        ("mock-invalid-utf8", 200),
        ("mock-cut", 200),
        ("mock-close", None),
        ("mock-wrong-content-type", 200),
        ("mock-error-in-stream", 200),
        ("mock-empty", 200),
        ("mock-garbage", None),
        ("mock-bad-chunk-size", 200),
        ("mock-hang", None),
    ],
)
async def test_each_fault_of_a_server_is_counted_by_kind_and_nothing_hangs(
    tmp_path: Path, model: str, code: int | None
) -> None:
    with server(ttft="1ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=3, requests=9)
        settings["endpoint"] |= {"model": model, "request_timeout": "300ms"}
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["issued"]) == (9, 9)
    assert accounts["violations"] == []
    assert sum(entry["count"] for entry in summary["error_summary"]) == 9
    details = summary["error_summary"][0]["error_details"]
    assert details["message"]
    assert details["code"] == (code if code else details["code"])


async def test_a_server_that_is_away_is_nine_errors_and_an_end(tmp_path: Path) -> None:
    settings = config("http://127.0.0.1:1", concurrency=3, requests=9)
    async with stack(settings, tmp_path) as run:
        summary = await run.results()
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["errored"], accounts["requests_sent"]) == (9, 0)
    assert "refused" in summary["error_summary"][0]["error_details"]["message"].lower()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"endpoint": {"url": "http://nowhere.invalid:1"}}, "no address for 'nowhere.invalid'"),
        ({"tokenizer": {"name": "./input.jsonl"}}, "input.jsonl is no tokenizer"),
        ({"dataset": {"kind": "single_turn", "file": "input.jsonl"}}, "input.jsonl:2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_bad_input_that_only_a_service_can_see_fails_the_run_as_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    settings = config("http://127.0.0.1:1", concurrency=1, requests=1)
    for key, values in part.items():
        settings[key] = {**settings.get(key, {}), **values} if key == "endpoint" else values
    async with stack(settings, tmp_path) as run:
        await run.wait_for_state("failed")
        status = run.records_manager.status()
    assert words in status.reason
    assert status.exit_code is ExitCode.BAD_CONFIG


async def test_an_answer_without_a_stream_has_a_latency_and_no_first_token(tmp_path: Path) -> None:
    with server(ttft="5ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=2, requests=20)
        settings["endpoint"] |= {"streaming": False}
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    assert summary["request_latency"]["count"] == 20
    assert "time_to_first_token" not in summary


@pytest.mark.parametrize("kind", ["completions", "embeddings"])
async def test_the_other_endpoints_work_the_same_way(tmp_path: Path, kind: str) -> None:
    with server(ttft="5ms", tokens=5) as mock:
        settings = config(mock.url, concurrency=2, requests=20)
        settings["endpoint"] |= {"type": kind, "streaming": kind == "completions"}
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    assert summary["request_count"]["avg"] == 20
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0


async def test_a_killed_record_processor_costs_no_record(tmp_path: Path) -> None:
    with server(ttft="20ms", tokens=2) as mock:
        settings = config(mock.url, concurrency=100, duration="6s", grace_period="1s")
        async with stack(settings, tmp_path, workers=2, processors=2) as run:
            await run.wait_for_state("profiling")
            run.tasks["record-processor-1"].cancel()
            dead = run.services["record-processor-1"]
            dead._raw.close(0)  # type: ignore[attr-defined]
            summary = await run.results()
        sent = mock.truth()["requests"]
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["records"] == accounts["requests_sent"] == sent
    assert accounts["violations"] == []
    assert summary["aiperf_svc"]["verdict"] != "valid"
    indexes = [r["metadata"]["session_num"] for r in lines(tmp_path / "artifacts")]
    assert len(indexes) == len(set(indexes))
