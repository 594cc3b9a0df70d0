"""Draws the metrics of servers, GPUs and our own services, and the startup of replicas, on the time
axis of the other plots.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.blocks import Table, number_row, table
from aiperf_svc.adapters.report.plots import FULL, HALF, Axes, Hint, Plot, Series, figure
from aiperf_svc.adapters.report.scales import Scale
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.scaling.report import ReplicaTimeline, ScalingResult, seconds
from aiperf_svc.core.telemetry import client_series
from aiperf_svc.core.telemetry.series import Plotted, plotted
from aiperf_svc.domain.number_text import significant

STAGES = (
    ("waiting for a node", "d", "created", "scheduled"),
    ("image", "c", "scheduled", "running"),
    ("starting", "b", "running", "ready"),
    ("ready, no token yet", "e", "ready", "first_token"),
    ("in use", "a", "first_token", ""),
)
"""Stages of a replica, with their style and the events at which they start and end."""
_NAN = (math.nan, math.nan)


def draw_replicas(found: ScalingResult, length_s: float) -> list[Plot]:
    """Plot the desired and the ready replicas over a run of this length, and the stages of each
    replica that started."""
    highest = max(number for _, number in (*found.desired, *found.ready))
    counts = figure(
        "Replicas",
        "number of replicas",
        [
            Series("desired", "d dashed", list(_steps(found.desired, length_s))),
            Series("ready", "a", list(_steps(found.ready, length_s))),
        ],
        Axes(scales.elapsed(length_s), scales.linear(highest or 1), length=length_s),
    )
    if not found.replicas:
        return [counts]
    return [counts, _stages(found.replicas, length_s)]


def _steps(curve: Sequence[tuple[float, int]], length_s: float) -> Iterator[tuple[float, float]]:
    """Yield the corners of a step curve up to the end of the run. A zoomed plot has one value at
    each time, so a step has a short duration."""
    moment_s, before = length_s / 10_000, curve[0][1]
    for at_s, number in curve:
        if at_s > length_s:
            break
        if at_s > moment_s:
            yield at_s - moment_s, before
        yield at_s, number
        before = number
    yield length_s, before


def _stages(replicas: Sequence[ReplicaTimeline], length_s: float) -> Plot:
    """Draw a line for each replica, with parts in the styles of its stages."""
    series = []
    for name, style, first, last in STAGES:
        points = [
            point
            for row, each in enumerate(replicas, start=1)
            for point in _stage(each, float(row), first, last, length_s)
        ]
        if points:
            series.append(Series(name, style, points))
    begins = [min(length_s, *each.moments_s.values()) for each in replicas]
    rows = [
        Series(
            "",
            "f",
            [(begin_s, float(row)) for row, begin_s in enumerate(begins, start=1)],
            marks=[_replica_text(each) for each in replicas],
            has_line=False,
        )
    ]
    numbers = range(1, len(replicas) + 1)
    step = max(1, len(replicas) // 8)
    ticks = tuple((float(n), str(n)) for n in numbers if (n - 1) % step == 0)
    top = len(replicas) + 1
    return figure(
        "Stages of each replica",
        "one line per replica that started",
        [*series, *rows],
        Axes(scales.elapsed(length_s), Scale(lambda value: value / top, ticks)),
    )


def _stage(
    replica: ReplicaTimeline, row: float, first: str, last: str, length_s: float
) -> list[tuple[float, float]]:
    """Return the ends of a stage, and a gap; empty if it did not start."""
    begin_s = replica.moments_s.get(first)
    end_s = length_s if replica.gone_s is None else min(replica.gone_s, length_s)
    end_s = min(replica.moments_s.get(last, end_s), end_s)
    if begin_s is None or begin_s >= end_s:
        return []
    return [(begin_s, row), (end_s, row), _NAN]


def _replica_text(replica: ReplicaTimeline) -> str:
    moments = [f"{k.replace('_', ' ')} {seconds(v)}" for k, v in replica.moments_s.items()]
    where = f" on {replica.node}" if replica.node else ""
    return f"{replica.name}{where}: {', '.join(moments)}"


STYLES = ("a", "b", "c", "d", "e", "f", "g", "a dashed")
"""Styles of a plot's lines, which limit the number of its lines."""
MAX_POINTS = 600
"""Maximum number of points in a line; above it, the highest point of each span is drawn."""
HINTS = 120


def draw(summary: Summary) -> list[Plot]:
    """Draw every portable quantity and GPU field of the load, except constant GPU fields."""
    return _draw_plots(summary, (each for each in _read(summary) if _has_changes(each)))


def draw_client(summary: Summary) -> list[Plot]:
    """Draw the metrics of our own services."""
    return _draw_plots(summary, client_series.plots(summary.client) if summary.client else ())


def constants(summary: Summary) -> Table:
    """Return a table of the constant GPU fields."""
    rows = [
        number_row(f"{each.title} {label}".strip(), each.unit, [float(values[-1])])
        for each in _read(summary)
        if not _has_changes(each)
        for label, _, values in each.lines
        if len(values)
    ]
    return table(("Value", ""), rows)


def _draw_plots(summary: Summary, wanted: Iterable[Plotted]) -> list[Plot]:
    line = summary.timeline
    if line is None:
        return []
    begin_ns = summary.context.profiling.start_wall_ns or summary.first_start_wall_ns
    length_s = line.width_s * len(line.in_flight)
    known = [(each, drawn) for each in wanted if (drawn := _plot(each, begin_ns, length_s))]
    figures = [drawn for _, drawn in known]
    if len(figures) % 2:
        # The last plot spans both columns, which avoids a gap.
        last = _plot(known[-1][0], begin_ns, length_s, width=FULL)
        figures[-1:] = [last] if last else []
    return figures


def _read(summary: Summary) -> Iterator[Plotted]:
    """Yield the metrics of the sources that passed their checks, with ratios in per cent."""
    reports = summary.system.sources if summary.system is not None else ()
    pairs = zip(summary.telemetry, reports, strict=True)
    for each in plotted([log for log, report in pairs if report.is_used]):
        lines = tuple((label, times, 100 * values) for label, times, values in each.lines)
        yield replace(each, unit="%", lines=lines) if each.unit == "ratio" else each


def _has_changes(each: Plotted) -> bool:
    """Return whether there is more than one point: GPUs have a point for each new value."""
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
        Axes(scales.elapsed(length_s), scales.fitting(known), width=width, length=length_s),
        hints=list(_hints(lines[0][1])) if len(lines) == 1 else [],
    )


def _thinned(
    at_s: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> Iterator[tuple[float, float]]:
    """Return the points of a line; of a long line, the highest point of each span."""
    step = max(1, math.ceil(len(values) / MAX_POINTS))
    for begin in range(0, len(values), step):
        part = values[begin : begin + step]
        finite = part[np.isfinite(part)]
        yield float(at_s[begin]), float(finite.max()) if len(finite) else math.nan


def _hints(points: list[tuple[float, float]]) -> Iterator[Hint]:
    step = max(1, math.ceil(len(points) / HINTS))
    for place in range(0, len(points) - 1, step):
        begin, value = points[place]
        end = points[min(place + step, len(points) - 1)][0]
        if not math.isnan(value):
            yield Hint(begin, end, f"{begin:.6g} s: {significant(value)}")
