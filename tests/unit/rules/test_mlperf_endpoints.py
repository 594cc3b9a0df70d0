"""Each requirement is met by conforming runs and missed by others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.cli.main import main
from aiperf_svc.core.quality.gate import Answer, QualityResult, score
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.inference_result import DatasetFacts, InferenceResult, RunLayout
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.rules.measured_point import MeasuredPoint, Rates, Sent, sent_requests
from aiperf_svc.core.rules.mlperf_endpoints import verify
from aiperf_svc.core.rules.report import Outcome, RulesReport
from aiperf_svc.core.rules.steady_state import Window
from aiperf_svc.domain.outcomes import Outcome as RowOutcome
from tests.support import fake_run
from tests.support.fake_results import inference_result

CURVE = (1, 3, 10, 17, 27, 42, 64)
ENTRIES = 100
PASSES = 6


def result(concurrency: int, **changes: Any) -> InferenceResult:
    """Return the results of a conforming run. Keys of its config and its load can be changed."""
    config: dict[str, Any] = {
        "endpoint": {"url": "http://h", "model": "m", "type": "chat", "streaming": True},
        "load": {"concurrency": concurrency},
        "dataset": {"order": "random", "cache_bust": "first_turn_prefix"},
        "random_seed": 7,
    }
    for name in ("endpoint", "load", "dataset"):
        config[name] |= changes.pop(name, {})
    config |= changes.pop("config", {})
    issued = changes.pop("issued", PASSES * ENTRIES)
    built: dict[str, Any] = dict.fromkeys(DatasetFacts.__struct_fields__)
    built |= {"entries": ENTRIES, "turns": changes.pop("turns", ENTRIES), "warmup_entries": 0}
    built |= {"kind": "single_turn", "source_sha256": changes.pop("checksum", "abc")}
    return inference_result(
        config=config,
        accounts=Accounts(issued=issued, completed=changes.pop("completed", issued)),
        topology=RunLayout(dataset=DatasetFacts(**built)),
        **changes,
    )


def point(concurrency: int, sent: dict[str, Any] | None = None, **changes: Any) -> MeasuredPoint:
    """Return a conforming run, unless its requests or its results are changed."""
    tps = changes.pop("tps", 100.0 * concurrency)
    rates = Rates(
        system_tps=tps,
        turn_tps=90.0,
        ttft_p90_ms=20.0,
        tpot_p90_ms=10.0,
        ttft_p90_bound_ms=21.0,
        tpot_p90_bound_ms=11.0,
    )
    defaults: dict[str, Any] = {
        "repeats": 0,
        "span_s": 1500.0,
        "rates": rates,
        "window": Window(super_passes=6, ramp=1, first=1, length=5, begin=100, end=600),
        "window_span_s": 1250.0,
        "steady": rates,
    }
    target = {"engine": "vllm", "kernel": "unknown"} | changes.pop("target", {})
    provenance = Provenance(client={"kernel": "6.1"}, target=target)
    found = result(concurrency, **changes)
    sent_requests = Sent(**{**defaults, **(sent or {})})
    return MeasuredPoint(f"runs/{concurrency}", found, sent_requests, provenance)


def curve(**changes: Any) -> list[MeasuredPoint]:
    """Return a conforming curve, unless all of its points are changed."""
    return [point(each, **changes) for each in CURVE]


def missed(report: RulesReport) -> list[str]:
    return [each.rule for each in report.requirements if each.outcome is Outcome.NOT_MET]


def text_of(report: RulesReport, rule: str) -> str:
    found = next(each for each in report.requirements if each.rule == rule)
    return found.text or found.points[0].text


def test_conforming_curve_misses_nothing() -> None:
    report = verify(curve())
    assert missed(report) == []
    assert report.regions["High"] == (18, 64)
    assert report.count(Outcome.UNCHECKED) == 13


@pytest.mark.parametrize(
    ("rule", "changes", "text"),
    [
        ("load-pattern", {"load": {"request_rate": 5.0}}, "not a closed loop"),
        ("load-pattern", {"load": {"ramp": "10s"}}, "load.ramp changes the concurrency"),
        ("sample-order", {"dataset": {"order": "sequential"}}, "dataset.order sequential"),
        ("streaming-config", {"endpoint": {"streaming": False}}, "streaming false"),
        ("salt", {"dataset": {"cache_bust": "none"}}, "cache_bust none"),
        ("salt", {"dataset": {"cache_bust": "system_prefix"}}, "cache_bust system_prefix"),
        ("salt", {"sent": {"repeats": 12}}, "12 of 600 requests repeat"),
        ("salt", {"dataset": {"cache_bust_per": "conversation"}}, "48 bits"),
        ("warmup-duration", {"load": {"warmup": {"duration": "25h"}}}, "90,000 s, expected 86,400"),
        ("sample-multiple", {"issued": 620}, "6 passes of 100 and 20 more"),
        ("min-query-count", {"completed": 90}, "90 completed, expected one pass of 100, 10 too"),
        ("point-duration", {"sent": {"window_span_s": 400.0}}, "steady state of 400 s"),
        ("early-stopping", {"sent": {"steady": Rates(tpot_p90_ms=5.0)}}, "needs 64"),
        ("metric-consistency", {"sent": {"steady": Rates()}}, "no P90"),
    ],
)
def test_point_misses_a_requirement_by_so_much(
    rule: str, changes: dict[str, Any], text: str
) -> None:
    report = verify([*curve()[1:], point(1, **changes)])
    assert rule in missed(report)
    found = next(each for each in report.requirements if each.rule == rule)
    assert any(text in each.text for each in found.points), found


def test_short_window_makes_the_whole_run_official() -> None:
    report = verify(curve(sent={"window_span_s": 700.0}))
    assert missed(report) == ["point-duration", "steady-state"]
    bases = {each.concurrency: each.basis for each in report.points}
    assert bases[27] == "steady state"  # 600 s suffice up to 32 users
    assert bases[42] == "whole run"


def test_drift_is_named() -> None:
    window = Window(super_passes=9, ramp=1, drift=0.3, has_trend=True)
    report = verify(curve(sent={"window": window}))
    expected = "not found: no 4 steady super-passes among 9; the time per token rises by 30%"
    assert expected in text_of(report, "steady-state")


def test_missing_points_are_counted() -> None:
    report = verify([point(64), point(42), point(10)])
    assert "low-concurrency-coverage" in missed(report)
    assert text_of(report, "point-count") == "3 points, expected 7 or more, 4 too few"


def test_point_in_the_margin_covers_nothing() -> None:
    points = [*curve(), point(71), point(72)]
    report = verify(points, c_max=64)
    assert missed(report) == ["concurrency-in-range"]
    assert text_of(report, "concurrency-in-range") == "72 above 71"
    assert [each.region for each in report.points[-2:]] == ["margin", ""]


def test_small_maximum_has_no_regions() -> None:
    report = verify([point(each) for each in (1, 2, 4, 8, 16, 24, 32)])
    assert missed(report) == ["max-concurrency-declared", "region-computation"]
    assert not report.regions


@pytest.mark.parametrize(("tps", "is_met"), [(6272.0, True), (6271.0, False)])
def test_offline_run_reaches_98_percent(tps: float, is_met: bool) -> None:
    offline = point(600, tps=tps)
    report = verify([*curve(), offline])
    assert ("offline-ordering" not in missed(report)) is is_met
    assert text_of(report, "point-count") == "8 points, expected 8 or more"
    assert report.points[-1].region == "Offline"


def test_conversations_have_no_offline_point() -> None:
    points = curve(turns=4 * ENTRIES)
    report = verify(points)
    assert "offline-point-present" not in missed(report)
    assert report.points[0].tps_per_user == 90.0
    assert "offline-point-present" in missed(verify([*points, point(600, turns=4 * ENTRIES)]))


def test_conversations_are_judged_by_their_whole_time() -> None:
    short = {"window_span_s": 400.0}
    assert "point-duration" not in missed(verify(curve(turns=4 * ENTRIES, sent=short)))
    report = verify(curve(turns=4 * ENTRIES, sent={"span_s": 300.0}))
    assert text_of(report, "point-duration").startswith("whole run of 300 s")


def test_offline_run_lasts_until_its_last_response() -> None:
    for seconds, is_met in ((1300.0, True), (1100.0, False)):
        metrics = {"benchmark_duration": MetricStats(unit="sec", avg=seconds)}
        offline = point(600, sent={"span_s": 0.2}, metrics=metrics)
        assert ("point-duration" not in missed(verify([*curve(), offline]))) is is_met


def test_turns_of_a_conversation_repeat_no_entry() -> None:
    rows = fake_run.closed_loop(requests=400)
    rows["index"] = rows["entry"] = np.arange(400) // 4
    assert sent_requests(fake_run.columns_of(rows), pass_size=100, min_s=1.0).repeats == 0
    rows["entry"] //= 2
    assert sent_requests(fake_run.columns_of(rows), pass_size=100, min_s=1.0).repeats == 50


def test_markers_of_requests_need_no_distinct_entries() -> None:
    changed: dict[str, Any] = {"dataset": {"cache_bust_per": "request"}, "sent": {"repeats": 500}}
    assert "salt" not in missed(verify([*curve()[1:], point(1, **changed)]))


def quality(score_low: float) -> QualityResult:
    answers = [Answer(question=0, repeat=0, is_right=True)] * 100
    return score(["exact"], answers, file="q", sha256="0", concurrency=1, min_score=score_low)


def test_accuracy_needs_a_passed_gate_in_each_region() -> None:
    report = verify([point(each, quality=quality(0.9)) for each in CURVE])
    assert "accuracy-coverage" not in missed(report)
    assert report.count(Outcome.UNCHECKED) == 12
    some = [point(each, quality=quality(0.9) if each < 18 else None) for each in CURVE]
    assert text_of(verify(some), "accuracy-coverage") == "no gate in High"
    low = verify([point(each, quality=quality(0.99)) for each in CURVE])
    assert "accuracy-coverage" in missed(low)
    assert "1: 100 of 100 correct" in text_of(low, "accuracy-coverage")


def test_points_that_differ_are_named() -> None:
    report = verify([*curve()[1:], point(1, endpoint={"model": "other"}, checksum="def")])
    assert missed(report) == ["config-consistency"]
    expected = "differs: endpoint.model, dataset checksum"
    assert text_of(report, "config-consistency") == expected
    assert "seed-set-consistency" in missed(
        verify([*curve()[1:], point(1, config={"random_seed": 8})])
    )


def test_other_hardware_is_another_stack() -> None:
    report = verify([*curve()[1:], point(1, target={"engine": "sglang", "kernel": "6.1"})])
    assert missed(report) == ["stack-consistency"]
    assert text_of(report, "stack-consistency") == "differs: target.engine"
    bare = [MeasuredPoint(each.folder, each.result, each.sent) for each in curve()]
    assert "no facts about the target" in text_of(verify(bare), "stack-consistency")


def test_warmup_by_count_has_unknown_length() -> None:
    report = verify([*curve()[1:], point(1, load={"warmup": {"requests": 5}})])
    found = next(each for each in report.requirements if each.rule == "warmup-duration")
    assert found.outcome is Outcome.UNCHECKED


def test_times_need_records() -> None:
    points = [each.__class__(each.folder, each.result, None) for each in curve()]
    report = verify(points)
    unchecked = [e.rule for e in report.requirements if e.outcome is Outcome.UNCHECKED]
    assert {"point-duration", "steady-state", "salt", "early-stopping"} <= set(unchecked)


def test_rates_of_the_window_follow_from_records() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    sent = sent_requests(fake_run.columns_of(rows), pass_size=200, min_s=1.0)
    seconds = (rows["end_wall_ns"].max() - rows["start_wall_ns"].min()) / 1e9
    assert sent.rates.system_tps == pytest.approx(rows["output_tokens"].sum() / seconds)
    assert sent.repeats == 1_500
    assert sent.window.super_passes == 10
    inside = np.sort(rows, order="start_wall_ns")[sent.window.begin : sent.window.end]
    span = (inside["start_wall_ns"][-1] - inside["start_wall_ns"][0]) / 1e9
    assert sent.steady.system_tps == pytest.approx(inside["output_tokens"].sum() / span)
    bound, measured = sent.rates.tpot_p90_bound_ms, sent.rates.tpot_p90_ms
    assert bound is not None
    assert measured is not None
    assert bound >= measured


def test_failed_requests_are_slower_than_any() -> None:
    rows = fake_run.closed_loop(requests=500, error_share=0.2)
    sent = sent_requests(fake_run.columns_of(rows), pass_size=100, min_s=1.0)
    assert sent.rates.ttft_p90_ms is None
    done = rows[rows["outcome"] == RowOutcome.COMPLETED]
    alone = sent_requests(fake_run.columns_of(done), pass_size=100, min_s=1.0)
    assert sent.completed.ttft_p90_ms == alone.rates.ttft_p90_ms
    assert sent.completed.tpot_p90_ms == alone.rates.tpot_p90_ms


def test_failed_requests_count_in_the_window() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    sent = sent_requests(fake_run.columns_of(rows), pass_size=200, min_s=1.0)
    assert sent.window.length
    assert sent.steady.tpot_p90_ms is not None
    order = np.argsort(rows["start_wall_ns"], kind="stable")
    some = order[sent.window.begin : sent.window.end][::5]
    rows["outcome"][some] = RowOutcome.ERRORED
    failing = sent_requests(fake_run.columns_of(rows), pass_size=200, min_s=1.0)
    assert (failing.window.begin, failing.window.end) == (sent.window.begin, sent.window.end)
    assert failing.steady.ttft_p90_ms is None
    assert failing.steady.tpot_p90_ms is None


def test_command_names_missed_requirements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for concurrency in (1, 64):
        rows = fake_run.closed_loop(requests=300, concurrency=concurrency)
        context = fake_run.context(rows)
        config = fake_run.config(concurrency=concurrency, requests=300)
        columns = fake_run.columns_of(rows)
        context = replace(context, config=config)
        folder = tmp_path / str(concurrency)
        folder.mkdir()
        write_all(folder, summarise(columns, None, context), columns)
    command = ["verify", "--rules", "mlperf-endpoints-1.0", str(tmp_path)]
    assert main(command) == 4
    printed = capsys.readouterr().out
    assert "2 points, expected 7 or more, 5 too few" in printed
    assert "not an official result" in printed
    assert main([*command, "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert report["rules"] == "mlperf-endpoints-1.0"
    assert [each["concurrency"] for each in report["points"]] == [1, 64]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rules", "mlperf"], "--rules: 'mlperf': expected one of "),
        (
            ["--rules", "mlperf-endpoints-1.0", "--max-concurrency", "0"],
            "--max-concurrency: 0: expected a number of at least 1",
        ),
        (
            ["--rules", "mlperf-endpoints-1.0", "--max-concurrency", "x"],
            "--max-concurrency: 'x': expected a whole number",
        ),
        (["--rules", "mlperf-endpoints-1.0"], "no run; expected"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path), *arguments]) == 2
    assert text in capsys.readouterr().err
