"""The metrics of connections: what the way to the target takes, from the workers' histograms.

They are of connections and not of requests, so they are apart from the records: each worker has
read them from the kernel, and reports them when the load has ended.
"""

from collections.abc import Iterable

from aiperf_svc.core.results.distributions import pooled
from aiperf_svc.core.results.summary import MetricSummary, NetworkTimes
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta

Reports = Iterable[tuple[tuple[HistogramDelta, ...], ...]]
"""One report of each worker: for each URL of the target, a histogram of each metric."""


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
    """Return the metrics over the connections to some URLs; none if there was no connection."""
    together: dict[str, Histogram] = {}
    for each in times:
        for tag, histogram in each.items():
            delta = histogram.delta(phase=Phase.PROFILING, tag=tag)
            together.setdefault(tag, Histogram()).merge(delta)
    found = {tag: pooled(tag, histogram) for tag, histogram in together.items()}
    return {tag: metric for tag, metric in found.items() if metric is not None}
