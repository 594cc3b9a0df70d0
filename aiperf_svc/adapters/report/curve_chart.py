"""Draws servers' curves of throughput against the speed of one user, as step functions with their
common Pareto front."""

from collections.abc import Sequence
from typing import NamedTuple

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.plots import FULL, TALL, Axes, Plot, Series, figure
from aiperf_svc.core.experiments.throughput_curve import SPEED, Curve, CurvePoint, pareto, steps
from aiperf_svc.domain.json_objects import changes_text
from aiperf_svc.domain.number_text import number

STYLES = ("a", "b", "c", "e", "f", "g", "d")
"""Styles of the curves, which limit the number of curves in a plot."""


class NamedCurve(NamedTuple):
    name: str
    curve: Curve


def named(curves: Sequence[Curve], name: str = "") -> list[NamedCurve]:
    """Name the curves of one experiment by its name, and by their parameters if several."""

    def text(curve: Curve) -> str:
        own = changes_text(curve.parameters)
        return ": ".join(filter(None, (name, own)))

    return [NamedCurve(text(each), each) for each in curves]


def curve_plot(curves: Sequence[NamedCurve]) -> Plot | None:
    """Plot the curves; None without curves. A dominated point is a dot beside the steps."""
    shown = curves[: len(STYLES)]
    if not shown:
        return None
    every = [point for _, curve in shown for point in curve.points]
    best = steps(pareto(every))
    series = [Series("Pareto front of all", "front", best)] if len(shown) > 1 else []
    for (name, curve), style in zip(shown, STYLES, strict=False):
        series.append(Series(name, style, steps(pareto(curve.points))))
        series.append(_dots(name, curve.points, style))
    left_out = f"; {len(shown)} of {len(curves)} curves" if len(curves) > len(shown) else ""
    return figure(
        "Throughput against the speed of one user",
        f"output tokens/s of the system, by tokens/s per user ({SPEED}); numbers: load{left_out}",
        series,
        Axes(
            scales.linear(max(each.per_user for each in every)),
            scales.linear(max(each.of_system for each in every)),
            width=FULL,
            height=TALL,
            titles=("tokens/s per user", "tokens/s of the system"),
        ),
    )


def _dots(name: str, points: Sequence[CurvePoint], style: str) -> Series:
    def hint(point: CurvePoint) -> str:
        text = f"{number(point.of_system)} tokens/s, {number(point.per_user)} tokens/s per user"
        return ", load ".join(filter(None, (name, f"{point.level:g}"))) + f": {text}"

    return Series(
        "",
        style,
        [(each.per_user, each.of_system) for each in points],
        marks=[hint(each) for each in points],
        labels=[f"{each.level:g}" for each in points],
        has_line=False,
    )
