"""Limits are parsed in any unit, rejected with the nearest name, and applied exactly."""

import numpy as np
import pytest
from pydantic import ValidationError

from aiperf_svc.adapters.exports import aiperf_exports
from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.report import page
from aiperf_svc.config.slo import Slo
from aiperf_svc.core.results.slo import Failures, check_slo, count_good, judge, judge_tiers
from aiperf_svc.core.results.slo_results import limit_of
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.percentiles import Distribution, describe
from aiperf_svc.domain.metric_catalog import CATALOG
from tests.support import fake_run
from tests.support.fake_results import as_json


def slo(**parts: object) -> Slo:
    return Slo.model_validate(parts)


@pytest.mark.parametrize(
    ("tag", "limit", "expected"),
    [
        ("time_to_first_token", "250ms", 250.0),
        ("time_to_first_token", "1.5s", 1500.0),
        ("time_to_first_token", 40, 40.0),
        ("time_to_first_token", "40", 40.0),
        ("benchmark_duration", "5m", 300.0),
        ("request_throughput", 100, 100.0),
    ],
)
def test_limits_are_in_the_metrics_unit(tag: str, limit: float | str, expected: float) -> None:
    assert limit_of(CATALOG[tag].unit, limit) == expected


@pytest.mark.parametrize("limit", ["nan", "nan%", " inf", "-inf"])
def test_limit_that_decides_nothing_is_refused(limit: str) -> None:
    # No value is above or below nan, so an objective with it would always pass.
    with pytest.raises(ValueError, match="expected a finite number"):
        limit_of("ratio", limit)


def test_a_good_slo_has_no_problems() -> None:
    objectives = [
        {"metric": "time_to_first_token", "stat": "p99", "max": "250ms"},
        {"metric": "request_throughput", "min": 100},
        {"metric": "effective_concurrency", "stat": "p50", "min": 10},
    ]
    assert check_slo(slo(objectives=objectives, goodput={"inter_token_latency": "20ms"})) == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"objectives": [{"metric": "time_to_frist_token", "max": 1}]},
            ["slo.objectives.0.metric", "'time_to_frist_token'", "time_to_first_token"],
        ),
        (
            {"objectives": [{"metric": "request_throughput", "stat": "p99", "min": 1}]},
            ["slo.objectives.0.stat", "one number"],
        ),
        (
            {"objectives": [{"metric": "request_latency", "max": "fast"}]},
            ["slo.objectives.0.max", "'fast'", "250ms"],
        ),
        (
            {"objectives": [{"metric": "request_throughput", "min": "10s"}]},
            ["slo.objectives.0.min", "'10s'", "requests/sec"],
        ),
        (
            {"objectives": [{"metric": "cached_token_share", "min": "most"}]},
            ["slo.objectives.0.min", "'most'", "ratio such as"],
        ),
        ({"goodput": {"latency": 1}}, ["slo.goodput.latency", "is not a metric"]),
        ({"goodput": {"request_count": 1}}, ["slo.goodput.request_count", "single request"]),
        ({"goodput": {"inter_chunk_latency": 1}}, ["single request"]),
        ({"goodput": {"request_latency": "soon"}}, ["slo.goodput.request_latency", "'soon'"]),
    ],
)
def test_bad_slo_names_key_value_and_expectation(
    parts: dict[str, object], words: list[str]
) -> None:
    (problem,) = check_slo(slo(**parts))
    assert all(word in problem for word in words), problem


def test_streaming_metric_is_refused_without_a_stream() -> None:
    limits = Slo.model_validate(
        {
            "objectives": [
                {"metric": "request_latency", "max": 1},
                {"metric": "inter_token_latency", "max": 1},
            ],
            "goodput": {"time_to_first_token": 1},
        }
    )
    assert check_slo(limits, is_streaming=True) == []
    assert check_slo(limits, is_streaming=False) == [
        "slo.objectives.1.metric: 'inter_token_latency' has no data without streaming; add "
        "--streaming (endpoint.streaming)",
        "slo.goodput.time_to_first_token: 'time_to_first_token' has no data without streaming; add "
        "--streaming (endpoint.streaming)",
    ]


def test_metric_that_this_load_lacks_is_refused() -> None:
    limits = {
        "objectives": [{"metric": "goodput", "min": 1}, {"metric": "achieved_rate", "min": 1}]
    }
    assert check_slo(slo(**limits), is_open_loop=False) == [
        "slo.objectives.0.metric: 'goodput' has no data without slo.goodput",
        "slo.objectives.1.metric: 'achieved_rate' has no data without load.request_rate",
    ]
    assert check_slo(slo(**limits, goodput={"request_latency": 1})) == []


def test_objectives_hold_up_to_their_limit() -> None:
    limits = slo(
        objectives=[
            {"metric": "time_to_first_token", "stat": "p99", "max": "50ms"},
            {"metric": "request_throughput", "min": 10, "max": 20},
            {"metric": "request_latency", "stat": "p99", "max": 9},
        ]
    )
    measured = {
        ("time_to_first_token", "p99"): 50.0,
        ("request_throughput", "avg"): 21.0,
        ("request_latency", "p99"): None,
    }
    results = judge(limits, lambda tag, stat: measured[tag, stat], {}, Failures(completed=100))
    assert [r.judged for r in results] == [True, True, True, False]
    assert [(r.metric, r.bound, r.limit, r.ok, r.reason) for r in results] == [
        ("time_to_first_token", "max", 50.0, True, ""),
        ("request_throughput", "max", 20.0, False, "above the limit"),
        ("request_throughput", "min", 10.0, True, ""),
        ("request_latency", "max", 9.0, False, "not measured"),
    ]


def failure_of(metric: str, failures: Failures, **limits: object) -> str:
    """Return why the objective fails, although its value is far within the limit."""
    limited = slo(objectives=[{"metric": metric, "stat": "p50", "max": 1e9}], **limits)
    values = {metric: Distribution(failures.completed, {})}
    (result,) = judge(limited, lambda tag, stat: 1.0, values, failures)
    assert result.ok == (not result.reason)
    return result.reason


@pytest.mark.parametrize("kind", ["errored", "cancelled", "unsent", "lost"])
def test_latencies_hold_only_within_the_error_budget(kind: str) -> None:
    within = Failures(completed=99, **{kind: 1})
    beyond = Failures(completed=980, **{kind: 20})
    for metric in ("time_to_first_token", "inter_chunk_latency", "inter_token_latency"):
        assert failure_of(metric, within) == ""
        assert "leaves out 20 of 1,000 requests" in failure_of(metric, beyond)
        assert "2.00% against an error budget of 1%" in failure_of(metric, beyond)
        assert failure_of(metric, beyond, error_budget="2%") == ""


@pytest.mark.parametrize(
    ("metric", "failures", "is_within"),
    [
        # A metric includes its right-censored values, but not refused requests.
        ("intended_request_latency", Failures(completed=50, errored=50, timed_out=50), True),
        ("intended_request_latency", Failures(completed=50, unsent=25, cancelled=25), True),
        ("intended_request_latency", Failures(completed=50, errored=50), False),
        ("intended_request_latency", Failures(completed=50, lost=50), False),
        # Everything that was sent, and what a count or a rate already includes.
        ("schedule_lag", Failures(completed=50, errored=50), True),
        ("effective_concurrency", Failures(completed=50, errored=50), True),
    ],
)
def test_budget_covers_requests_without_the_metric(
    metric: str, failures: Failures, is_within: bool
) -> None:
    assert (failure_of(metric, failures) == "") == is_within


def test_rate_objective_needs_no_error_budget() -> None:
    limited = slo(objectives=[{"metric": "request_throughput", "min": 0.5}])
    failures = Failures(completed=1, errored=99)
    (result,) = judge(limited, lambda tag, stat: 1.0, {}, failures)
    assert result.ok


@pytest.mark.parametrize(("count", "reason"), [(100, ""), (99, "p99 needs 100 values, there are")])
def test_a_percentile_needs_values_behind_it(count: int, reason: str) -> None:
    limited = slo(objectives=[{"metric": "time_to_first_token", "stat": "p99", "max": "5s"}])
    found = describe(np.arange(1.0, count + 1))
    values = {"time_to_first_token": found}
    (result,) = judge(
        limited, lambda tag, stat: found.stats[stat], values, Failures(completed=count)
    )
    assert result.ok == result.judged == (not reason)
    assert result.reason.startswith(reason)


@pytest.mark.parametrize(
    ("limit_ms", "failures", "judged", "reason"),
    [
        (500, Failures(completed=20), False, "p99 needs 100 values, there are 20"),
        (19, Failures(completed=20), True, "above the limit; p99 needs 100 values, there are 20"),
        (500, Failures(completed=20, errored=9), True, "leaves out 9 of 29 requests"),
    ],
)
def test_thin_percentile_is_judged_only_beyond_its_limit(
    limit_ms: float, failures: Failures, judged: bool, reason: str
) -> None:
    limited = slo(objectives=[{"metric": "time_to_first_token", "stat": "p99", "max": limit_ms}])
    found = describe(np.arange(1.0, 21.0))
    values = {"time_to_first_token": found}
    (result,) = judge(limited, lambda tag, stat: found.stats[stat], values, failures)
    assert (result.ok, result.judged) == (False, judged)
    assert result.reason.startswith(reason)


@pytest.mark.parametrize(
    ("limit_ms", "outcome"),
    [(24.8, "missed"), (24.95, "not judged"), (25.05, "not judged"), (25.2, "held")],
)
def test_percentile_within_its_error_is_not_judged(limit_ms: float, outcome: str) -> None:
    stats: dict[str, float | None] = {"min": 1.0, "p99": 25.0, "max": 90.0}
    found = Distribution(10_000, stats, relative_error=1 / 256)
    limits = slo(objectives=[{"metric": "inter_chunk_latency", "stat": "p99", "max": limit_ms}])
    args = {"inter_chunk_latency": found}, Failures(completed=100)
    (result,) = judge(limits, lambda _, stat: stats[stat], *args)
    assert result.outcome == outcome
    assert ("within 0.4% of the limit" in result.reason) == (outcome == "not judged")


def test_limit_at_the_exact_maximum_holds() -> None:
    stats: dict[str, float | None] = {"min": 25.0, "p99": 25.0, "max": 25.0}
    found = Distribution(10_000, stats, relative_error=1 / 256)
    limits = slo(objectives=[{"metric": "inter_chunk_latency", "stat": "p99", "max": 25.0}])
    args = {"inter_chunk_latency": found}, Failures(completed=100)
    (result,) = judge(limits, lambda _, stat: stats[stat], *args)
    assert result.ok


@pytest.mark.parametrize(("limit_ms", "judged"), [(400, True), (600, False)])
def test_percentile_of_cut_requests_beyond_limit_is_judged(limit_ms: float, judged: bool) -> None:
    limited = slo(
        objectives=[{"metric": "intended_request_latency", "stat": "p99", "max": limit_ms}]
    )
    found = describe(np.arange(1.0, 98.0), bounds=np.full(3, 500.0))
    values = {"intended_request_latency": found}
    (result,) = judge(limited, lambda tag, stat: None, values, Failures(completed=97, cancelled=3))
    assert (result.ok, result.judged) == (False, judged)
    text = "beyond 500, among the requests that were cut off"
    assert result.reason == (f"above the limit; {text}" if judged else text)


@pytest.mark.parametrize(
    ("written", "share"), [("1%", 0.01), (0.01, 0.01), ("0.5", 0.5), ("100%", 1.0), (0, 0.0)]
)
def test_error_budget_is_per_cent_or_a_share(written: object, share: float) -> None:
    found = slo(error_budget=written)
    assert found.error_budget == share
    assert slo(**found.model_dump(mode="json")) == found


@pytest.mark.parametrize("written", [1, "1", 5, "5", "101%", -0.1, "few", True, None])
def test_ambiguous_budget_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match=r'expected a share such as "1%" or 0\.01'):
        slo(error_budget=written)


def test_a_request_without_the_metric_is_bad() -> None:
    rows = np.concatenate(
        [
            fake_run.request(ttft_ms=20, tokens=10),  # ITL 5
            fake_run.request(ttft_ms=31, tokens=10),  # TTFT too high
            fake_run.request(ttft_ms=20, tokens=1),  # no ITL
            fake_run.request(ttft_ms=20, tokens=10, outcome=1),  # an error
        ]
    )
    phase = PhaseRows(fake_run.columns_of(rows))
    assert count_good(phase, {"time_to_first_token": "30ms"}) == 2
    assert count_good(phase, {"time_to_first_token": 30, "inter_token_latency": 5}) == 1
    # Where higher is better, the limit is the lowest good value.
    assert count_good(phase, {"output_token_throughput_per_user": 200}) == 2
    assert count_good(phase, {"output_token_throughput_per_user": 201}) == 0


def test_each_tier_has_its_own_goodput() -> None:
    rows = np.concatenate([fake_run.request(ttft_ms=ms, gap_ms=5) for ms in (10, 30, 50, 700)])
    phase = PhaseRows(fake_run.columns_of(rows))
    tiers = {
        "gold": {"time_to_first_token": "30ms", "inter_token_latency": 6},
        "silver": {"time_to_first_token": "60ms"},
        "none": {"inter_token_latency": 1},
    }
    found = judge_tiers(slo(goodput_tiers=tiers), phase, due=8, window_ns=2 * 10**9)
    assert [each.name for each in found] == ["gold", "silver", "none"]
    assert [each.good_request_count for each in found] == [2, 3, 0]
    assert [each.attainment for each in found] == [0.25, 0.375, 0.0], "failures are not good"
    assert [each.goodput for each in found] == [1.0, 1.5, 0.0]
    (nothing,) = judge_tiers(
        slo(goodput_tiers={"a": {"schedule_lag": 1}}), phase, due=0, window_ns=0
    )
    assert (nothing.attainment, nothing.goodput) == (None, None)


def test_tier_metrics_are_checked_like_goodput() -> None:
    (problem,) = check_slo(slo(goodput_tiers={"gold": {"time_to_frist_token": "1s"}}))
    assert problem.startswith("slo.goodput_tiers.gold.time_to_frist_token: ")
    (problem,) = check_slo(
        slo(goodput_tiers={"gold": {"time_to_first_token": 1}}), is_streaming=False
    )
    assert "has no data without streaming" in problem
    with pytest.raises(ValidationError):
        slo(goodput_tiers={"gold": {}})
    with pytest.raises(ValidationError):
        slo(goodput_tiers={"a b": {"time_to_first_token": 1}})


def test_tiers_are_in_every_export() -> None:
    tiers = {"gold": {"time_to_first_token": "31ms"}}
    rows = fake_run.closed_loop(requests=200)
    config = fake_run.config(concurrency=20, requests=200, slo={"goodput_tiers": tiers})
    summary = fake_run.results(rows, config=config)
    (tier,) = summary.goodput_tiers
    assert 0 < tier.good_request_count < 200
    assert "goodput" not in summary.scalars
    exported = as_json(result_of(summary))["aiperf_svc"]["goodput_tiers"]
    assert exported[0]["good_request_count"] == tier.good_request_count
    assert exported[0]["limits"] == tiers["gold"]
    cells = dict(
        line.split(",") for line in aiperf_exports.render_csv(summary).decode().splitlines()[-2:]
    )
    assert cells["Good Request Count [gold]"] == f"{tier.good_request_count:.2f}"
    assert (
        '<th>gold</th><td class="text">time_to_first_token 31ms</td>'
        in page.render(summary).decode()
    )
