"""Results by time slice: every request is only in the slice of its start."""

import csv
import json
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import render_slices_csv, render_slices_json
from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.core.results import slices as module
from aiperf_svc.core.results.run_result import STATS
from aiperf_svc.core.results.slices import Slice, slices
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_results import avg_of

SECOND = 10**9


@pytest.fixture(scope="module")
def rows() -> Rows:
    return fake_run.closed_loop(requests=3_000, concurrency=20)


def sliced(rows: Rows, width_ns: int) -> list[Slice]:
    return list(slices(fake_run.columns_of(rows), fake_run.context(rows), width_ns=width_ns))


def test_each_request_is_in_its_start_slice(rows: Rows) -> None:
    found = sliced(rows, SECOND // 2)
    assert len(found) > 3
    profiling = rows[rows["phase"] == Phase.PROFILING]
    total = 0
    for each in found:
        inside = (profiling["start_wall_ns"] >= each.start_wall_ns) & (
            profiling["start_wall_ns"] < each.end_wall_ns
        )
        some = profiling[inside]
        latencies = (some["last_token_wall_ns"] - some["start_wall_ns"]) / 1e6
        measured = each.metrics["request_latency"]
        assert measured.count == len(some)
        assert measured.stat("avg") == pytest.approx(float(np.mean(latencies)))
        assert avg_of(each.metrics, "request_count") == len(some)
        total += len(some)
    assert total == len(profiling)


def test_unconnected_requests_are_in_their_due_slice(rows: Rows) -> None:
    away = rows.copy()
    half = np.argsort(away["start_wall_ns"])[len(away) // 2 :]
    away["outcome"][half], away["error"][half] = Outcome.ERRORED, ErrorKind.CONNECT
    away["start_wall_ns"][half] = 0
    found = sliced(away, SECOND // 2)
    due = away["due_wall_ns"][half]
    assert sum(avg_of(each.metrics, "error_request_count") for each in found) == len(half)
    for each in found:
        inside = (due >= each.start_wall_ns) & (due < each.end_wall_ns)
        assert avg_of(each.metrics, "error_request_count") == np.count_nonzero(inside)


def test_only_the_last_slice_may_be_cut(rows: Rows) -> None:
    found = sliced(rows, SECOND // 2)
    for before, after in pairwise(found):
        assert before.end_wall_ns == after.start_wall_ns
        assert before.is_complete
        assert before.end_wall_ns - before.start_wall_ns == SECOND // 2
    assert not found[-1].is_complete


def test_slice_rates_are_over_time_with_load(rows: Rows) -> None:
    for each in sliced(rows, SECOND // 2):
        seconds = (each.end_wall_ns - each.start_wall_ns) / 1e9
        rate = avg_of(each.metrics, "request_count") / seconds
        assert avg_of(each.metrics, "request_throughput") == pytest.approx(rate)


def test_late_last_request_does_not_raise_slice_rate() -> None:
    # 10 requests per second. The last one starts 1 ns before the end of sending.
    rows = np.concatenate([fake_run.request(start_ms=100 * n, ttft_ms=80) for n in range(101)])
    *others, last = sliced(rows, SECOND)
    rates = [avg_of(each.metrics, "request_throughput") for each in others]
    assert rates == pytest.approx([10.0] * 10)
    assert (last.is_complete, avg_of(last.metrics, "request_count")) == (False, 1)
    took = last.metrics["request_latency"].stat("max")
    assert took is not None
    assert avg_of(last.metrics, "request_throughput") == pytest.approx(1e3 / took)


def test_starts_just_outside_the_load_have_no_slice() -> None:
    # 10 requests per second from 0.1 ms before the start to 0.1 ms after the stop.
    starts = [-0.1, *(100 * n for n in range(1, 20)), 2_000.1]
    rows = np.concatenate([fake_run.request(start_ms=each, ttft_ms=80) for each in starts])
    begin = fake_run.START_NS
    times = PhaseTimes(start_wall_ns=begin, stop_wall_ns=begin + 2 * SECOND)
    context = replace(fake_run.context(rows), profiling=times)
    found = list(slices(fake_run.columns_of(rows), context, width_ns=SECOND))
    spans = [(each.start_wall_ns - begin, each.end_wall_ns - begin) for each in found]
    assert spans == [(0, SECOND), (SECOND, 2 * SECOND)]
    assert [each.is_complete for each in found] == [True, True]
    assert [avg_of(each.metrics, "request_count") for each in found] == [10, 11]
    rates = [avg_of(each.metrics, "request_throughput") for each in found]
    assert rates == pytest.approx([10, 11])


def test_single_slice_equals_the_run(rows: Rows) -> None:
    (only,) = sliced(rows, 3600 * SECOND)
    summary = fake_run.results(rows)
    for tag in ("request_latency", "time_to_first_token", "inter_token_latency"):
        expected = [summary.metrics[tag].stats.stat(stat) for stat in STATS]
        found = [only.metrics[tag].stat(stat) for stat in STATS]
        assert found == pytest.approx(expected, nan_ok=True)
    for tag in ("total_osl", "request_throughput", "output_token_throughput"):
        assert avg_of(only.metrics, tag) == pytest.approx(summary.scalars[tag])


def test_very_many_slices_become_wider(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SLICES", 8)
    found = sliced(rows, 1_000_000)
    assert 4 <= found[-1].index + 1 <= 8


def test_gap_has_no_slice_and_keeps_the_numbers(rows: Rows) -> None:
    late = rows.copy()
    half = np.argsort(late["start_wall_ns"])[len(late) // 2 :]
    for name in late.dtype.names or ():
        if name.endswith("_wall_ns"):
            known = half[late[name][half] != 0]
            late[name][known] += 100 * SECOND
    found = sliced(late, SECOND)
    assert found[-1].index >= 100
    assert len(found) < 50


def test_a_run_that_sent_nothing_has_no_slices() -> None:
    assert sliced(fake_run.make_rows(0), SECOND) == []


def test_the_files_have_aiperfs_layout(rows: Rows) -> None:
    found = sliced(rows, SECOND // 2)
    content = json.loads(render_slices_json(found, fake_run.config()))
    first = content["timeslices"][0]
    assert [each["timeslice_index"] for each in content["timeslices"]] == list(range(len(found)))
    assert first["end_ns"] - first["start_ns"] == SECOND // 2
    assert first["request_latency"]["unit"] == "ms"
    assert "input_config" in content
    lines = list(csv.DictReader(StringIO(render_slices_csv(found).decode())))
    assert list(lines[0]) == ["Timeslice", "Metric", "Unit", "Stat", "Value"]
    (shown,) = [
        line["Value"]
        for line in lines
        if (line["Timeslice"], line["Metric"], line["Stat"]) == ("0", "Request Latency", "avg")
    ]
    assert float(shown) == pytest.approx(first["request_latency"]["avg"], abs=0.01)


def test_slice_files_are_written_on_request(rows: Rows, tmp_path: Path) -> None:
    columns, context = fake_run.columns_of(rows), fake_run.context(rows)
    names = {"profile_export_aiperf_timeslices.json", "profile_export_aiperf_timeslices.csv"}
    plain = write_all(tmp_path / "plain", summarise(columns, None, context), columns)
    assert not names & {entry.name for entry in plain.files}
    config = context.config.model_copy(
        update={"artifacts": context.config.artifacts.model_copy(update={"slice_duration": SECOND})}
    )
    requested = replace(context, config=config)
    manifest = write_all(tmp_path / "asked", summarise(columns, None, requested), columns)
    assert names <= {entry.name for entry in manifest.files}


def test_unsent_request_improves_no_slice(rows: Rows, tmp_path: Path) -> None:
    columns, context = fake_run.columns_of(rows), fake_run.context(rows, unsent=5)
    config = context.config.model_copy(
        update={"artifacts": context.config.artifacts.model_copy(update={"slice_duration": SECOND})}
    )
    write_all(tmp_path, summarise(columns, None, replace(context, config=config)), columns)
    content = json.loads((tmp_path / "profile_export_aiperf_timeslices.json").read_bytes())
    for each in content["timeslices"]:
        assert "request_latency" in each
        assert not [tag for tag in each if tag.startswith("intended_")]


def test_the_first_slice_begins_with_the_load(rows: Rows) -> None:
    first = int(rows["start_wall_ns"][rows["phase"] == Phase.PROFILING].min())
    context = replace(
        fake_run.context(rows), profiling=PhaseTimes(start_wall_ns=first - 3 * SECOND // 2)
    )
    found = list(slices(fake_run.columns_of(rows), context, width_ns=SECOND))
    assert found[0].index == 1
    assert found[0].start_wall_ns == first - SECOND // 2
