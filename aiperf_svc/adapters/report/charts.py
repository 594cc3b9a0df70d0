"""Chooses the plots of the report, from the summary's distributions and timeline."""

import math
from collections.abc import Sequence

import numpy as np

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.plots import FULL, HALF, Axes, Band, Hint, Plot, Series, figure
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.timeline import Timeline
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.metric_formulas import Floats
from aiperf_svc.domain.number_text import significant

_CURVES = (
    ("request_latency", "a"),
    ("intended_request_latency", "a dashed"),
    ("time_to_first_token", "b"),
    ("intended_time_to_first_token", "b dashed"),
    ("inter_token_latency", "c"),
)
_MIN_MS = 1e-3
"""Lower end of a logarithmic axis of milliseconds: timestamps have microsecond resolution."""
EVENT_SHARE = 0.004
"""Minimum share of the axis for an event without a duration, to make it visible."""


def latency_by_percentile(summary: Summary, *, is_wide: bool) -> Plot | None:
    """Plot every percentile of the main latencies: logarithmic time, shares by nines."""
    curves = []
    highest, values = 0.9, [math.inf, 0.0]
    for tag, style in _CURVES:
        metric = summary.metrics.get(tag)
        if metric is None or metric.quantiles is None:
            continue
        shares, times = metric.quantiles
        times = np.maximum(times, _MIN_MS)
        count = metric.distribution.count + metric.distribution.censored
        # The largest of n values has the share 1 - 1/n.
        last = max(0.9, 1 - 1 / count) if count > 1 else 0.9
        points = [(min(float(q), last), float(v)) for q, v in zip(shares, times, strict=True)]
        curves.append(Series(CATALOG[tag].name, style, points))
        highest = max(highest, last)
        values = [min(values[0], times[0]), max(values[1], times[-1])]
    if not curves:
        return None
    return figure(
        "Latency by percentile",
        "ms, logarithmic; dashed: from the due time",
        curves,
        Axes(scales.nines(highest), scales.logarithmic(*values), width=FULL if is_wide else HALF),
    )


def over_time(summary: Summary) -> list[Plot]:
    """Plot throughput, requests in flight, latencies and errors over the run. A run with events
    starts with its requests by due time."""
    line = summary.timeline
    if line is None:
        return []
    bands = _bands(summary, line)
    plots = [
        *_by_due_time(summary, bands),
        _plot(
            line.width_s,
            bands,
            "Throughput",
            "requests per second",
            [("completed", "a", line.completed_per_s), ("started", "d dashed", line.started_per_s)],
        ),
        _plot(line.width_s, bands, "In flight", "requests", [("in flight", "b", line.in_flight)]),
    ]
    for tag, (median, tail) in line.latencies.items():
        style = {"time_to_first_token": "b", "request_latency": "a"}[tag]
        lines = [("p50", style, median), ("p99", "e", tail)]
        plots.append(_plot(line.width_s, bands, CATALOG[tag].name, "ms, by start time", lines))
    if line.errors_per_s.any():
        lines = [("errors", "e", line.errors_per_s)]
        plots.append(_plot(line.width_s, bands, "Errors", "requests per second", lines))
    return plots


def _by_due_time(summary: Summary, bands: Sequence[Band]) -> list[Plot]:
    counts = summary.due_counts
    if counts is None:
        return []
    lines: list[_Line] = [
        ("due", "d dashed", counts.due_per_s),
        ("completed", "a", counts.completed_per_s),
        ("within the SLO", "c", counts.within_per_s),
    ]
    return [_plot(counts.width_s, bands, "Requests by due time", "requests per second", lines)]


_Line = tuple[str, str, Sequence[float] | Floats]
"""Name, style and values of the bins."""


def _plot(
    width: float, bands: Sequence[Band], title: str, note: str, lines: Sequence[_Line]
) -> Plot:
    bins = len(lines[0][2])
    length = width * bins
    series = [
        Series(name, style, [((i + 0.5) * width, float(v)) for i, v in enumerate(values)])
        for name, style, values in lines
    ]
    known = [float(v) for _, _, values in lines for v in values if not math.isnan(v)]
    hints = [
        Hint(i * width, (i + 1) * width, _hint(i * width, width, lines, i)) for i in range(bins)
    ]
    return figure(
        title,
        note,
        series,
        Axes(scales.elapsed(length), scales.fitting(known), length=length),
        bands=[each for each in bands if each.begin < length],
        hints=hints,
    )


def _hint(begin: float, width: float, lines: Sequence[_Line], place: int) -> str:
    values = [f"{name} {significant(values[place])}" for name, _, values in lines]
    return f"{begin:.6g} to {begin + width:.6g} s: " + ", ".join(values).replace("nan", "none")


def _bands(summary: Summary, line: Timeline) -> list[Band]:
    length = line.width_s * len(line.in_flight)
    bands = [Band(0.0, line.ramp_s, "ramp")] if line.ramp_s else []
    if line.stop_s is not None and line.stop_s < length:
        bands.append(Band(line.stop_s, length, "drain"))
    for each in summary.events:
        end = max(each.end_s, each.begin_s + length * EVENT_SHARE)
        bands.append(Band(each.begin_s, end, each.do, is_event=True))
    return bands
