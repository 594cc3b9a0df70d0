"""All numbers in all files of a run agree with its requests, according to docs/metrics.md."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.storage.experiment_folder import FOLDER, RESULT_SUMMARY, write_scenario
from aiperf_svc.config.load_config import load_config
from aiperf_svc.config.units import parse_duration_ns
from aiperf_svc.core.experiments.scenarios import Scenario
from aiperf_svc.domain.metric_catalog import CATALOG, Kind
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support import recomputed
from tests.support.in_one_loop import stack, talks
from tests.support.recomputed import QUANTILES, Row

STATS = ("avg", "min", "max", "std", "sum", "count", *QUANTILES)
PAGE_STATS = ("avg", "min", "p50", "p90", "p99", "p99_9", "max", "std")
ACCOUNT_METRICS = {"unsent_request_count", "lost_request_count", "retried_request_count"}
NOT_IN_LINES = {"credit_to_start_latency", "effective_latency"}
"""AIPerf's names of `schedule_lag` and `intended_request_latency`, which its lines omit."""
ELSEWHERE = {
    # Metrics of schedules and users have their own tests.
    "requested_rate", "achieved_rate", "rate_achievement", "concurrency_achievement",
    "benchmark_duration", "effective_concurrency", "max_concurrency",
    "steady_state_request_throughput", "goodput", "good_request_count", "blocked_request_count",
}  # fmt: skip

REMEDY = "compute each metric in tests/support/recomputed.py too"
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat": (
        {"ttft": "uniform:5ms,30ms", "itl": "exp:2ms", "tokens": 12, "reasoning_tokens": 3},
        {"load": {"concurrency": 6, "requests": 150, "warmup": {"requests": 7}}},
    ),
    "errors": (
        {"ttft": "10ms", "itl": "1ms", "tokens": 8, "error_rate": 0.1, "cut_rate": 0.1},
        {"load": {"concurrency": 4, "requests": 120}},
    ),
    "timeouts": (
        # A quarter of the users. Few users cannot use up the others' requests within six seconds,
        # during which a busy machine may not run the server.
        {"ttft": "uniform:5ms,1300ms", "itl": "2ms", "tokens": 9, "usage": "always"},
        {
            "load": {"request_rate": 100, "requests": 200, "concurrency": 30},
            "endpoint": {"request_timeout": "1s"},
        },
    ),
    "cut": (
        {"ttft": "uniform:100ms,900ms", "itl": "20ms", "tokens": 9},
        {"load": {"concurrency": 20, "duration": "2s", "grace_period": "200ms"}},
    ),
    "abandoned": (
        {"ttft": "uniform:5ms,80ms", "itl": "2ms", "tokens": 5},
        {
            "load": {
                "concurrency": 8,
                "requests": 120,
                "cancellation": {"rate": "30%", "delay": "50ms"},
            }
        },
    ),
    "replies": (
        {"ttft": "10ms", "itl": "1ms", "tokens": 8},
        {"load": {"concurrency": 4, "requests": 110}, "endpoint": {"streaming": False}},
    ),
    "completions": (
        {"ttft": "10ms", "itl": "1ms", "tokens": 1},
        {"load": {"concurrency": 4, "requests": 40}, "endpoint": {"type": "completions"}},
    ),
    "embeddings": (
        {"ttft": "5ms"},
        {
            "load": {"concurrency": 4, "requests": 60},
            "endpoint": {"type": "embeddings", "streaming": False},
        },
    ),
    "rankings": (
        {"ttft": "5ms"},
        {
            "load": {"concurrency": 2, "requests": 30},
            "endpoint": {"type": "nim_rankings", "streaming": False},
        },
    ),
    "sounds": (
        {"ttft": "5ms", "tokens": 7},
        {
            "load": {"concurrency": 2, "requests": 20},
            "endpoint": {"type": "audio_transcription"},
            "dataset": {
                "entries": 3,
                "sounds": {"number": 1, "seconds": {"mean": 2.0}, "sample_rates": [16_000]},
            },
        },
    ),
    "several-urls": (
        {"ttft": "uniform:5ms,30ms", "itl": "1ms", "tokens": 6, "ports": 3, "error_rate": 0.1},
        {"load": {"concurrency": 6, "requests": 130}},
    ),
    "conversations": (
        {"ttft": "5ms", "itl": "1ms", "tokens": 6},
        {"load": {"concurrency": 3, "requests": 60}, "dataset": "talks"},
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Awaitable[Path]]:
    """Return a function from the name of a run to its folder. Each run is made once."""
    folders: dict[str, Path] = {}

    async def folder_of(name: str) -> Path:
        if name not in folders:
            folders[name] = await measured(name, tmp_path_factory.mktemp(name))
        return folders[name]

    return folder_of


async def measured(name: str, folder: Path) -> Path:
    settings, more = RUNS[name]
    with running(MockServerConfig(**settings)) as mock:
        target = {"url": mock.urls[0], "urls": list(mock.urls[1:])}
        config: dict[str, Any] = {
            "dataset": {"entries": 40, "input_tokens": {"mean": 20, "stddev": 5}},
            "slo": {"goodput": {"request_latency": "40ms"}},
            "artifacts": {"slice_duration": "500ms"},
            **more,
            "endpoint": target | {"model": "m", "streaming": True} | more.get("endpoint", {}),
        }
        if config["dataset"] == "talks":
            turns = ({"text": "one two three"}, {"text": "and four", "delay": 5})
            config["dataset"] = talks(folder, *turns, count=10)
        async with stack(config, folder) as services:
            served = await services.results()
    artifacts = folder / "artifacts"
    assert served == json.loads((artifacts / "profile_export_aiperf.json").read_bytes())
    return artifacts


@pytest.mark.parametrize("name", RUNS)
async def test_every_file_agrees_with_the_requests(
    finished: Callable[[str], Awaitable[Path]], name: str
) -> None:
    run = await finished(name)
    summary = json.loads((run / "profile_export_aiperf.json").read_bytes())
    rows = recomputed.profiling_rows(run)
    assert len(rows) > 10
    check_lines(run, rows)
    unsent = int(summary["unsent_request_count"]["avg"])
    in_no_part = recomputed.CENSORED if unsent else set()
    unsent -= sum(row["outcome"] == recomputed.UNSENT for row in rows)
    found = recomputed.distributions(rows, unsent=unsent)
    check_distributions(summary, found, left_out=recomputed.WITHOUT_RECORDS)
    seconds = summary["benchmark_duration"]["avg"]
    check_numbers(summary, recomputed.single_numbers(rows, seconds), left_out=ACCOUNT_METRICS)
    check_load(summary, rows, seconds)
    if "inter_chunk_latency" in summary:
        check_gaps(summary["inter_chunk_latency"], run, rows)
    check_csv(run, summary)
    check_page(run, summary)
    check_slices(run, rows, left_out=in_no_part)
    for number, target in enumerate(summary["aiperf_svc"].get("targets", ())):
        own = [row for row in rows if row["target"] == number]
        check_distributions(
            target, recomputed.distributions(own), left_out=recomputed.WITHOUT_RECORDS
        )
        check_numbers(target, recomputed.single_numbers(own, seconds), left_out=set())


@pytest.mark.parametrize("name", ["chat", "timeouts"])
@pytest.mark.parametrize("scenario", [Scenario.SINGLE_STREAM, Scenario.SERVER, Scenario.OFFLINE])
async def test_scenario_results_follow_from_the_requests(
    finished: Callable[[str], Awaitable[Path]], name: str, scenario: Scenario
) -> None:
    run = await finished(name)
    result = write_scenario(run, scenario, load_config(run / "config.yaml"))
    summary = json.loads((run / FOLDER / RESULT_SUMMARY).read_bytes())
    rows = recomputed.profiling_rows(run)
    done = [row for row in rows if row["outcome"] == recomputed.COMPLETED]
    seconds = (
        max(row["end_wall_ns"] for row in done) - min(row["due_wall_ns"] for row in rows)
    ) / 1e9
    assert summary["duration_ns"] == pytest.approx(seconds * 1e9)
    assert summary["qps"] == pytest.approx(len(done) / seconds)
    assert summary["tps"] == pytest.approx(sum(row["output_tokens"] for row in done) / seconds)
    assert summary["n_samples_completed"] == len(done)
    found = recomputed.scenario_series(rows, is_scheduled=scenario.has_limits)
    failed = summary["n_samples_failed"] - (len(rows) - len(done))  # they have no record
    for name, values in found.items():
        ordered = [*values, *[math.inf] * failed]
        for percent in (50.0, 90.0, 95.0, 99.0, 99.9):
            place = min(len(ordered) - 1, math.floor(round(len(ordered) * percent / 100, 9)))
            estimate = recomputed.early_stopping_estimate(ordered, percent / 100)
            for key, value in (
                ("percentiles", ordered[place]),
                ("early_stopping_percentiles", estimate),
            ):
                known = value is not None and math.isfinite(value)
                expected = pytest.approx(value) if known else None
                assert summary[name][key][str(percent)] == expected, (name, key, percent)
    if scenario is Scenario.SINGLE_STREAM:
        assert result.value == summary["latency"]["early_stopping_percentiles"]["90.0"]
    else:
        assert result.value == summary["tps"]


def check_lines(run: Path, rows: list[Row]) -> None:
    """Check that the values of each line equal those of its record."""
    lines = {
        (line["metadata"]["session_num"], line["metadata"]["turn_index"]): line
        for line in recomputed.lines_of(run)
    }
    assert len(lines) == sum(row["start_wall_ns"] != 0 or row["outcome"] != 3 for row in rows)
    for row in rows:
        line = lines.get((row["index"], row["turn"]))
        if line is None:
            continue
        values = recomputed.values_of(row)
        if row["outcome"] != recomputed.COMPLETED:
            values = {tag: values[tag] for tag in values.keys() & line["metrics"].keys()}
        stated = {
            tag: each["value"]
            for tag, each in line["metrics"].items()
            if tag != "inter_chunk_latency"
        }
        assert stated.keys() == values.keys() - NOT_IN_LINES, REMEDY
        for tag in stated:
            # Equivalent to `pytest.approx` in a tenth of the time.
            assert math.isclose(stated[tag], values[tag], rel_tol=1e-6, abs_tol=2e-6), tag
        assert line["metadata"]["request_end_ns"] == row["end_wall_ns"]


def check_distributions(
    summary: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]], *, left_out: set[str]
) -> None:
    """Check that a summary has exactly the recomputed statistics."""
    tags = {tag for tag in CATALOG if tag in summary and CATALOG[tag].kind is not Kind.SCALAR}
    assert tags - left_out - {"effective_concurrency"} == found.keys(), REMEDY
    for tag, stats in found.items():
        stated = {stat: summary[tag][stat] for stat in STATS if summary[tag].get(stat) is not None}
        assert stated.keys() == stats.keys(), tag
        assert stated == pytest.approx(stats, rel=1e-6, abs=1e-9), tag


def check_numbers(
    summary: Mapping[str, Any], found: Mapping[str, float], *, left_out: set[str]
) -> None:
    """Check that a summary has exactly the recomputed single numbers."""
    stated = {
        tag: summary[tag]["avg"]
        for tag in CATALOG
        if tag in summary and CATALOG[tag].kind is Kind.SCALAR
    }
    stated = {tag: stated[tag] for tag in stated.keys() - left_out - ELSEWHERE}
    assert stated.keys() == found.keys(), REMEDY
    assert stated == pytest.approx(dict(found), rel=1e-9, abs=1e-9)


def check_load(summary: Mapping[str, Any], rows: list[Row], seconds: float) -> None:
    """Check the duration of the load and the metrics that depend on it."""
    done = [row for row in rows if row["outcome"] == recomputed.COMPLETED]
    good = sum(recomputed.values_of(row)["request_latency"] <= 40 for row in done)
    assert summary["good_request_count"]["avg"] == good
    assert summary["goodput"]["avg"] == pytest.approx(good / seconds)
    tried = [row for row in rows if row["outcome"] != recomputed.UNSENT]
    last = max(row["end_wall_ns"] for row in tried)
    first = min(row["start_wall_ns"] for row in tried if row["start_wall_ns"])
    duration = summary["aiperf_svc"]["config"]["load"]["duration"]
    duration_ns = parse_duration_ns(duration) if duration else 0
    whole_ns = round(seconds * 1e9)
    if duration_ns:
        # The load ends by time, or with its last request if that is later.
        begin = max(row["end_wall_ns"] for row in tried) - whole_ns
        stop = min(last, begin + duration_ns)
        assert whole_ns >= duration_ns
    else:
        begin, stop = last - whole_ns, last
    assert begin <= first
    if whole_ns == duration_ns:
        return  # Its start is not in the records.
    held = recomputed.in_flight(rows, begin, stop)
    assert summary["effective_concurrency"]["avg"] == pytest.approx(held["avg"], rel=1e-6)
    assert summary["max_concurrency"]["avg"] == held["max"]
    until = stop if duration_ns else max(row["start_wall_ns"] for row in tried)
    cut = [r["start_wall_ns"] for r in tried if r["outcome"] == recomputed.CANCELLED]
    first_cut = min(filter(None, cut), default=until)
    if 2 * (first_cut - begin) >= until - begin:
        until = min(until, first_cut)
    inside = sum(
        max(0, min(row["end_wall_ns"], until) - row["start_wall_ns"])
        / (row["end_wall_ns"] - row["start_wall_ns"])
        for row in done
    )
    stated = summary.get("steady_state_request_throughput")
    if any(begin <= row["end_wall_ns"] < until for row in done):
        assert stated is not None
        assert stated["avg"] == pytest.approx(inside / ((until - begin) / 1e9), rel=1e-6)
    else:
        assert stated is None  # A window shorter than a request has no rate.


def check_gaps(stated: Mapping[str, Any], run: Path, rows: list[Row]) -> None:
    """Check that the gaps are those of all completed requests, within the stated accuracy."""
    patient = {(r["index"], r["turn"]) for r in rows if not r["flags"] & recomputed.ABANDONS}
    gaps = np.concatenate(
        [
            line["metrics"]["inter_chunk_latency"]["value"]
            for line in recomputed.lines_of(run)
            if "inter_chunk_latency" in line["metrics"]
            and (line["metadata"]["session_num"], line["metadata"]["turn_index"]) in patient
        ]
    )
    assert stated["count"] == len(gaps)
    for stat, value in (("sum", gaps.sum()), ("min", gaps.min()), ("max", gaps.max())):
        assert stated[stat] == pytest.approx(value, abs=1e-6 * len(gaps))
    for stat, percent in QUANTILES.items():
        near = np.percentile(gaps, percent)
        assert stated[stat] == pytest.approx(near, rel=stated["relative_error"], abs=1e-5), stat


def check_csv(run: Path, summary: Mapping[str, Any]) -> None:
    """Check that the CSV has every number of the summary to two decimals."""
    wide, singles = recomputed.csv_blocks(run)
    for tag, metric in CATALOG.items():
        if tag not in summary:
            assert metric.header not in wide.keys() | singles.keys()
        elif metric.kind is Kind.SCALAR:
            assert float(singles.pop(metric.header)) == pytest.approx(
                summary[tag]["avg"], abs=0.0051
            )
        else:
            for stat, text in wide.pop(metric.header).items():
                value = summary[tag].get(stat)
                assert (text == "") == (value is None), (tag, stat)
                assert value is None or float(text) == pytest.approx(value, abs=0.0051)
    assert (wide, singles) == ({}, {})


def check_page(run: Path, summary: Mapping[str, Any]) -> None:
    """Check that the report shows every number of the summary."""
    rows = recomputed.page_rows(run)
    for tag, metric in CATALOG.items():
        if tag not in summary:
            continue
        per, unit = metric.scale
        is_named = unit in ("", "requests", "count") or metric.name.endswith(unit)
        names = PAGE_STATS if metric.kind is not Kind.SCALAR else ("avg",)
        title = metric.name if is_named else f"{metric.name} {unit}"
        shown = [row for row in rows[title] if len(row) == len(names)]
        assert len(shown) == 1, tag
        for stat, text in zip(names, shown[0], strict=True):
            value = summary[tag].get(stat)
            value = None if value is None else value / per
            assert recomputed.shown_as(value, text), (tag, stat, value, text)


def check_slices(run: Path, rows: list[Row], *, left_out: set[str]) -> None:
    """Check that each request is in exactly one slice, that of its start. Because clocks differ,
    requests that started just outside the load are in its first or last slice. `left_out` holds
    metrics of all due requests if some of these have no slice."""
    content = json.loads((run / "profile_export_aiperf_timeslices.json").read_bytes())
    slices = content["timeslices"]
    begun = {id(row): row["start_wall_ns"] or row["due_wall_ns"] for row in rows}
    count = 0
    for number, each in enumerate(slices):
        begin = each["start_ns"] if number else -math.inf
        end = each["end_ns"] if number < len(slices) - 1 else math.inf
        own = [
            row
            for row in rows
            if row["outcome"] != recomputed.UNSENT and begin <= begun[id(row)] < end
        ]
        count += len(own)
        seconds = (each["end_ns"] - each["start_ns"]) / 1e9
        assert seconds <= 0.5
        assert math.isclose(seconds, 0.5) or not each["is_complete"]
        found = recomputed.distributions(own)
        check_distributions(
            each,
            {tag: stats for tag, stats in found.items() if tag not in left_out},
            left_out=set(),
        )
        again = recomputed.single_numbers(own, seconds)
        for tag, value in again.items():
            if tag in each:
                assert each[tag]["avg"] == pytest.approx(value), tag
    assert count == sum(row["outcome"] != recomputed.UNSENT for row in rows)
