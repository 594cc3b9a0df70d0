"""Multi-turn conversations in whole runs."""

import itertools
from pathlib import Path

import pytest

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from tests.support.in_one_loop import config, results_of, server, stack, talks


async def test_conversations_keep_history_order_and_pauses(tmp_path: Path) -> None:
    turns = [{"text": f"question {i}", "delay": 30 * bool(i)} for i in range(3)]
    dataset = talks(tmp_path, *turns, count=4)
    with server(ttft="5ms", tokens=3) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=12)
        summary = await results_of(settings, tmp_path, workers=1)
        rows = {row["request_id"]: row for row in mock.truth(rows=True)["rows"]}
    assert summary["request_count"]["avg"] == 12
    assert summary["aiperf_svc"]["accounts"]["issued"] == 4
    for index in range(4):
        talk = [rows[request_id("test", Phase.PROFILING, index, turn)] for turn in range(3)]
        for before, after in itertools.pairwise(talk):
            assert after["arrival_wall_ns"] - before["end_wall_ns"] > 29e6


async def test_a_request_count_ends_within_a_conversation(tmp_path: Path) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b"}, {"text": "c"}, count=5)
    with server(tokens=2) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=1, requests=8)
        summary = await results_of(settings, tmp_path)
        assert mock.truth()["requests"] == 8
    assert summary["request_count"]["avg"] == 8


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("model", ["mock-error-in-stream", "mock-empty", "mock-abort"])
async def test_response_that_is_an_error_ends_its_conversation(
    model: str, streaming: bool, tmp_path: Path
) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b"}, {"text": "c"}, count=4)
    with server(ttft="1ms", tokens=4) as mock:
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=12)
        settings["endpoint"] |= {"model": model, "streaming": streaming}
        summary = await results_of(settings, tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    counts = [accounts[name] for name in ("issued", "errored", "requests_sent", "records")]
    assert counts == [4, 4, 4, 4]
    assert accounts["violations"] == []


@pytest.mark.parametrize("load", [{"concurrency": 20}, {"request_rate": 40}])
async def test_conversations_cut_by_duration_have_an_outcome(
    load: dict[str, int], tmp_path: Path
) -> None:
    dataset = talks(tmp_path, *({"text": f"question {i}"} for i in range(10)), count=5)
    # A conversation takes four seconds, so none that has begun can end before the stop.
    with server(ttft="400ms", tokens=2) as mock:
        settings = config(mock.url, dataset=dataset, duration=2, **load)
        summary = await results_of(settings, tmp_path, workers=2)
        sent = mock.truth()["requests"]
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["cancelled"] > 0
    assert accounts["lost"] == 0
    assert summary["request_count"]["avg"] == sent


@pytest.mark.parametrize("prefill", [{}, {"prefill_concurrency": 3}])
async def test_think_time_past_the_end_holds_concurrency(
    prefill: dict[str, int], tmp_path: Path
) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b", "delay": 600_000}, count=10)
    with server(ttft="20ms", tokens=2) as mock:
        load = {"concurrency": 4, "duration": 2.5} | prefill
        async with stack(config(mock.url, dataset=dataset, **load), tmp_path) as run:
            summary = await run.results()
    assert summary["request_count"]["avg"] == 4
    reasons = summary["aiperf_svc"]["reasons"]
    missing = sum(each["measured"] for each in reasons if each["check"] == "concurrency")
    # Without think time, users would be missing for 98% of the run. A busy machine sends late.
    assert missing < 0.9
