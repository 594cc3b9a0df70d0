"""Curves of throughput over the speed of one user."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.report.curve_chart import STYLES, NamedCurve, curve_plot, named
from aiperf_svc.core.experiments.experiment_result import (
    CombinationResult,
    ExperimentResult,
    MeanValue,
)
from aiperf_svc.core.experiments.throughput_curve import (
    Curve,
    CurvePoint,
    curves_of_result,
    pareto,
    steps,
)
from tests.support.fake_results import trial


def combination(parameters: dict[str, Any], **values: float) -> CombinationResult:
    means = {
        name: MeanValue(n=1, mean=value, sd=None, ci_low=None, ci_high=None)
        for name, value in values.items()
    }
    return CombinationResult(parameters=parameters, trials=(1,), left_out=(), values=means)


def at(users: float, throughput: float, latency_ms: float, **others: Any) -> CombinationResult:
    """Return trials with this many users."""
    return combination(
        {"load.concurrency": users, **others},
        output_token_throughput_avg=throughput,
        inter_token_latency_p90=latency_ms,
    )


def curves(*combinations: CombinationResult) -> list[Curve]:
    return curves_of_result(ExperimentResult(combinations=combinations, trials=()))


def test_percentile_comes_before_the_inverse() -> None:
    (curve,) = curves(at(8, 400.0, 20.0), at(1, 90.0, 10.0))
    assert curve.points == (CurvePoint(100.0, 90.0, 1.0), CurvePoint(50.0, 400.0, 8.0))


def test_load_with_a_failed_target_has_no_point() -> None:
    loads = [at(users, 90.0 * users, 10.0) for users in (1, 2, 4)]
    loads = [replace(each, trials=(n, 3 + n)) for n, each in enumerate(loads, 1)]
    trials = (trial(1), trial(6, verdict="invalid", cause="target-failing"))
    (curve,) = curves_of_result(ExperimentResult(combinations=tuple(loads), trials=trials))
    assert [point.level for point in curve.points] == [1.0, 2.0]


def test_other_parameters_make_separate_curves() -> None:
    found = curves(*(at(users, 90.0, 10.0, model=m) for users in (1, 2) for m in ("a", "b")))
    assert [each.parameters for each in found] == [{"model": "a"}, {"model": "b"}]


def test_users_and_rates_make_separate_curves() -> None:
    rates = [
        combination(
            {"load.concurrency": None, "load.request_rate": rate},
            output_token_throughput_avg=50.0 * rate,
            inter_token_latency_p90=20.0,
        )
        for rate in (2, 4)
    ]
    users = [at(count, 90.0 * count, 10.0, **{"load.request_rate": None}) for count in (1, 2)]
    found = curves(*users, *rates)
    assert [[point.level for point in each.points] for each in found] == [[1.0, 2.0], [2.0, 4.0]]
    assert found[1].points[0] == CurvePoint(50.0, 100.0, 2.0)


@pytest.mark.parametrize(
    "combinations",
    [
        (at(1, 90.0, 10.0),),
        (combination({"load.concurrency": 1}), combination({"load.concurrency": 2})),
        tuple(
            combination({"n": n}, output_token_throughput_avg=1.0, inter_token_latency_p90=1.0)
            for n in (1, 2)
        ),
    ],
    ids=["one point", "nothing streamed", "no load varied"],
)
def test_curve_needs_two_points(combinations: tuple[CombinationResult, ...]) -> None:
    assert curves(*combinations) == []


FAST, MIDDLE, FULL = (
    CurvePoint(100.0, 90.0, 1.0),
    CurvePoint(60.0, 300.0, 8.0),
    CurvePoint(20.0, 500.0, 64.0),
)
BEATEN = CurvePoint(50.0, 300.0, 9.0)


def test_front_excludes_dominated_points() -> None:
    assert pareto([FULL, BEATEN, FAST, MIDDLE]) == [FULL, MIDDLE, FAST]
    assert pareto([MIDDLE, MIDDLE]) == [MIDDLE]


def test_steps_hold_the_throughput_of_faster_points() -> None:
    corners = [(20.0, 500.0), (20.0, 300.0), (60.0, 300.0), (60.0, 90.0), (100.0, 90.0)]
    assert steps([FULL, MIDDLE, FAST]) == corners


def test_several_curves_share_a_front() -> None:
    other = CurvePoint(110.0, 200.0, 4.0)
    plot = curve_plot(
        [
            NamedCurve("base", Curve({}, (FAST, MIDDLE, FULL))),
            NamedCurve("new", Curve({}, (other, BEATEN))),
        ]
    )
    assert plot is not None
    front, base, dots, new, _ = plot.series
    assert front.points == steps([FULL, MIDDLE, other])
    assert [base.name, new.name] == ["base", "new"]
    assert dots.labels == ["1", "8", "64"]
    assert "base, load 8: 300 tokens/s, 60 tokens/s per user" in dots.marks


def test_single_curve_has_no_front() -> None:
    plot = curve_plot(named([Curve({}, (FAST, FULL))]))
    assert plot is not None
    assert [each.name for each in plot.series] == ["", ""]
    assert curve_plot([]) is None


def test_crowded_labels_are_left_out() -> None:
    near = CurvePoint(100.1, 90.2, 2.0)
    plot = curve_plot(named([Curve({}, (FAST, near, FULL))]))
    assert plot is not None
    texts = [shape.text for shape in plot.shapes if shape.anchor == "start"]
    assert texts == ["tokens/s of the system", "1", "64"]


def test_curves_beyond_the_styles_are_counted() -> None:
    many = [NamedCurve(str(n), Curve({}, (FAST, FULL))) for n in range(9)]
    plot = curve_plot(many)
    assert plot is not None
    assert re.search(rf"{len(STYLES)} of 9 curves", plot.note)
