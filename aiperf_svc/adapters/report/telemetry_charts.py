"""Draws the metrics of servers, GPUs and our own services, on the time axis of the other plots."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.blocks import Table, number_row, table
from aiperf_svc.adapters.report.plots import FULL, HALF, Hint, Plot, Series, figure
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.telemetry import client_series
from aiperf_svc.core.telemetry.series import Plotted, plotted

STYLES = ("a", "b", "c", "d", "e", "f", "g", "a dashed")
"""Styles of the lines of a plot, which has no more lines than that."""
MAX_POINTS = 600
"""Most points of a line; beyond, the highest of each span is drawn."""
HINTS = 120


def draw(summary: Summary) -> list[Plot]:
    """Draw every portable quantity and GPU field that was read during the load, except GPU fields
    that did not change."""
    return _drawn(summary, (each for each in _read(summary) if _moves(each)))


def draw_client(summary: Summary) -> list[Plot]:
    """Draw the metrics of our own services."""
    return _drawn(summary, client_series.plots(summary.client) if summary.client else ())


def constants(summary: Summary) -> Table:
    """Return a table of the GPU fields that did not change."""
    rows = [
        number_row(f"{each.title} {label}".strip(), each.unit, [float(values[-1])])
        for each in _read(summary)
        if not _moves(each)
        for label, _, values in each.lines
        if len(values)
    ]
    return table(("Value", ""), rows)


def _drawn(summary: Summary, wanted: Iterable[Plotted]) -> list[Plot]:
    line = summary.timeline
    if line is None:
        return []
    begin_ns = summary.context.profiling.start_wall_ns or summary.first_start_wall_ns
    length_s = line.width_s * len(line.in_flight)
    known = [(each, drawn) for each in wanted if (drawn := _plot(each, begin_ns, length_s))]
    figures = [drawn for _, drawn in known]
    if len(figures) % 2:
        # The last one takes both columns, which leaves no gap.
        last = _plot(known[-1][0], begin_ns, length_s, width=FULL)
        figures[-1:] = [last] if last else []
    return figures


def _read(summary: Summary) -> Iterator[Plotted]:
    """Return the metrics of the sources that passed their checks."""
    reports = summary.system.sources if summary.system is not None else ()
    pairs = zip(summary.telemetry, reports, strict=True)
    return plotted([log for log, report in pairs if report.is_used])


def _moves(each: Plotted) -> bool:
    """Whether there is more than one point: GPUs have one for each new value."""
    return any(len(values) > 1 for _, _, values in each.lines)


def _plot(each: Plotted, begin_ns: int, length_s: float, *, width: int = HALF) -> Plot | None:
    lines = []
    for label, times, values in each.lines[: len(STYLES)]:
        at_s = (times - begin_ns) / 1e9
        keep = (at_s >= 0) & (at_s <= length_s)
        points = list(_thinned(at_s[keep], values[keep]))
        if any(not math.isnan(value) for _, value in points):
            lines.append((label, points))
    if not lines:
        return None
    known = [value for _, points in lines for _, value in points if not math.isnan(value)]
    note = each.unit
    if len(each.lines) > len(lines):
        note += f", {len(lines)} of {len(each.lines)} lines"
    series = [
        Series(label, style, points) for (label, points), style in zip(lines, STYLES, strict=False)
    ]
    return figure(
        each.title[:1].upper() + each.title[1:],
        note,
        series,
        x=scales.elapsed(length_s),
        y=scales.linear(max(*known, 0.0) or 1.0, low=min(0.0, *known)),
        width=width,
        hints=list(_hints(lines[0][1])) if len(lines) == 1 else [],
        end=length_s,
    )


def _thinned(
    at_s: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> Iterator[tuple[float, float]]:
    """The points of a line; of long ones, the highest of each span."""
    step = max(1, math.ceil(len(values) / MAX_POINTS))
    for begin in range(0, len(values), step):
        part = values[begin : begin + step]
        there = part[np.isfinite(part)]
        yield float(at_s[begin]), float(there.max()) if len(there) else math.nan


def _hints(points: list[tuple[float, float]]) -> Iterator[Hint]:
    step = max(1, math.ceil(len(points) / HINTS))
    for place in range(0, len(points) - 1, step):
        begin, value = points[place]
        end = points[min(place + step, len(points) - 1)][0]
        if not math.isnan(value):
            yield Hint(begin, end, f"{begin:.6g} s: {value:,.4g}")
