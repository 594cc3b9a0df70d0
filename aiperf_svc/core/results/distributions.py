"""Computes the metrics that are distributions, exactly, one derived column at a time.

Metrics of connections do not come from the records: each worker reads them from the kernel into
histograms, which it reports when the load has ended.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.results.summary import MetricSummary, NetworkTimes
from aiperf_svc.core.stats.columns import PhaseRows, due_values, exclude_abandoned
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.percentiles import QUANTILES, Distribution, describe, is_thin
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind, Metric, Population
from aiperf_svc.domain.metric_formulas import NS_PER_MS, Floats
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta

Reports = Iterable[tuple[tuple[HistogramDelta, ...], ...]]
"""One report per worker: for each URL of the target, a histogram of each metric."""

PLOTTED = (
    "time_to_first_token",
    "request_latency",
    "inter_token_latency",
    "intended_time_to_first_token",
    "intended_request_latency",
)
_SHARES = np.unique(np.concatenate((np.linspace(0, 1, 201), 1 - np.geomspace(1e-6, 1e-2, 41))))
"""Shares at which a plotted distribution is sampled: evenly, and densely in the tail."""


def distributions(rows: PhaseRows, *, unsent_without_row: int) -> dict[str, MetricSummary]:
    """Return every per-request metric of the catalog that has a value or a censored one."""
    found: dict[str, MetricSummary] = {}
    for metric in METRICS:
        if metric.kind is not Kind.RECORD:
            continue
        summary = _summarise(metric, rows, unsent_without_row)
        if summary is not None:
            found[metric.tag] = summary
    return found


def distributions_of_part(rows: PhaseRows, *, has_unsent: bool) -> dict[str, MetricSummary]:
    """Return every per-request metric of a part of the run. Due requests that were never sent have
    no record, so they may belong to any part. If there are any, metrics of all due requests are
    left out, because without those requests they would favour the server."""
    found = distributions(rows, unsent_without_row=0)
    return {
        tag: metric
        for tag, metric in found.items()
        if not has_unsent or CATALOG[tag].population is not Population.DUE
    }


def pooled(tag: str, histogram: Histogram) -> MetricSummary | None:
    """Return the statistics of a histogram of nanoseconds, in milliseconds; None if it is empty."""
    count = histogram.total
    if not count:
        return None
    stats: dict[str, float | None] = {
        "avg": histogram.mean_ns / NS_PER_MS,
        "min": histogram.min_ns / NS_PER_MS,
        "max": histogram.max_ns / NS_PER_MS,
        "std": histogram.std_ns / NS_PER_MS,
        "sum": histogram.sum_ns / NS_PER_MS,
    }
    for name, q in QUANTILES.items():
        stats[name] = float(histogram.percentile(q)) / NS_PER_MS
    unreliable = tuple(name for name, q in QUANTILES.items() if is_thin(q, count))
    error = histogram.relative_error
    found = Distribution(count, stats, unreliable=unreliable, relative_error=error)
    return MetricSummary(tag, found)


def _summarise(metric: Metric, rows: PhaseRows, unsent_without_row: int) -> MetricSummary | None:
    assert metric.compute is not None
    bounds: Floats | None = None
    if metric.population is Population.DUE:
        values, bounds = _with_bounds(metric, rows)
        if len(values) or len(bounds):
            # Due before the stop and never sent, so the only known bound is 0.
            bounds = np.concatenate((bounds, np.zeros(unsent_without_row)))
    else:
        values = rows.collect(metric.compute, metric.population)
    if not len(values) and (bounds is None or not len(bounds)):
        return None
    distribution = describe(values, bounds=bounds, is_thin_null=metric.is_ours)
    quantiles = _sampled(values, distribution) if metric.tag in PLOTTED and len(values) else None
    return MetricSummary(metric.tag, distribution, quantiles=quantiles)


def _with_bounds(metric: Metric, rows: PhaseRows) -> tuple[Floats, Floats]:
    """Return the observed values, and lower bounds of the censored ones: how long each request had
    waited."""
    bounds: list[Floats] = []
    values = np.empty(rows.row_count, dtype=np.float64)
    filled = 0
    for every in rows.chunks(Population.DUE):
        chunk = exclude_abandoned(every)
        some, is_cut = due_values(metric, chunk)
        seen = some[~np.isnan(some)]
        values[filled : filled + len(seen)] = seen
        filled += len(seen)
        if is_cut.any():
            waited = (chunk["end_wall_ns"] - chunk["due_wall_ns"])[is_cut] / NS_PER_MS
            bounds.append(np.maximum(waited, 0.0))
    return values[:filled], np.concatenate(bounds) if bounds else np.zeros(0)


def _sampled(
    ordered: Floats, distribution: Distribution
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cumulative distribution at `_SHARES`. With censored values it ends below 1."""
    place = np.rint(_SHARES * (len(ordered) - 1)).astype(np.int64)
    return _SHARES * (1.0 - distribution.censored_share), ordered[place]


def network_times(reports: Reports) -> tuple[NetworkTimes, ...]:
    """Return the merged histograms of all workers by tag, for each URL of the target."""
    found: list[dict[str, Histogram]] = []
    for report in reports:
        for number, deltas in enumerate(report):
            if number == len(found):
                found.append({})
            for delta in deltas:
                found[number].setdefault(delta.tag, Histogram()).merge(delta)
    return tuple(found)


def network_metrics(times: Iterable[NetworkTimes]) -> dict[str, MetricSummary]:
    """Return the metrics over the connections to these URLs; empty without connections."""
    together: dict[str, Histogram] = {}
    for each in times:
        for tag, histogram in each.items():
            delta = histogram.delta(phase=Phase.PROFILING, tag=tag)
            together.setdefault(tag, Histogram()).merge(delta)
    found = {tag: pooled(tag, histogram) for tag, histogram in together.items()}
    return {tag: metric for tag, metric in found.items() if metric is not None}
