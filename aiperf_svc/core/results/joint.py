"""The total of several simultaneous runs, such as one from each cluster.

Counts are added. Percentiles cover all requests together and are computed from the records of every
run, because percentiles of parts cannot be averaged. Rates cover the interval common to all runs,
so the time in which a run was alone does not contribute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aiperf_svc.core.results.cache_stats import CacheUse
from aiperf_svc.core.results.cache_use import cache_use
from aiperf_svc.core.results.distributions import distributions
from aiperf_svc.core.results.scalars import derived, rates
from aiperf_svc.core.results.summary import MetricSummary
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows
from aiperf_svc.domain.metric_catalog import METRICS, Population
from aiperf_svc.domain.metric_formulas import Columns, Floats
from aiperf_svc.domain.outcomes import Outcome


@dataclass(frozen=True, kw_only=True)
class JoinedRun:
    scalars: Mapping[str, float]
    """Its single numbers by tag."""
    columns: Columns
    clocks: ClockMap
    ahead_ns: int = 0
    """Time by which its clock is ahead of the common one."""
    begin_wall_ns: int
    """Its first request, by its own clock."""
    end_wall_ns: int
    """The end of its load, by its own clock."""
    gpus: frozenset[str] = frozenset()
    """The GPUs on its pages."""
    urls: tuple[str, ...] = ()
    """Addresses of its server; empty for a server that its stack created."""

    @property
    def interval_ns(self) -> tuple[int, int]:
        """Begin and end of the load by the common clock."""
        return self.begin_wall_ns - self.ahead_ns, self.end_wall_ns - self.ahead_ns


@dataclass(frozen=True, kw_only=True)
class Total:
    """All runs together."""

    scalars: dict[str, float]
    metrics: dict[str, MetricSummary]
    interval_s: float
    """Length of the interval common to all runs; 0: there is none, and no rates."""
    cache: CacheUse | None = None
    """Cached tokens by turn, if known for all runs."""
    notes: tuple[str, ...] = ()


def add_up_parts(parts: Sequence[JoinedRun]) -> Total:
    """Return the total of at least one run."""
    numbers: dict[str, float] = {
        metric.tag: sum(part.scalars[metric.tag] for part in parts)
        for metric in METRICS
        if metric.is_additive and all(metric.tag in part.scalars for part in parts)
    }
    notes = _count_gpus_once(numbers, parts)
    interval_ns = common_interval_ns(parts)
    seconds = (interval_ns[1] - interval_ns[0]) / 1e9
    if seconds > 0:
        inside = _completed_in(parts, interval_ns)
        known = {tag: value for tag, value in inside.items() if tag in numbers}
        numbers["benchmark_duration"] = known["benchmark_duration"] = seconds
        numbers |= rates(known)
    scalars = derived(numbers)
    rows = (PhaseRows(part.columns) for part in parts)
    return Total(
        scalars=scalars,
        metrics=_pooled(parts),
        interval_s=max(0.0, seconds),
        cache=cache_use(*rows) if "cached_token_share" in scalars else None,
        notes=notes,
    )


def _count_gpus_once(numbers: dict[str, float], parts: Sequence[JoinedRun]) -> tuple[str, ...]:
    """Correct the sums of GPUs and energy if several runs measure one server, and return notes for
    readers. The GPUs of a run are known if its pages name as many as it counts."""
    if "gpu_count" not in numbers:
        return ()
    urls = [url for part in parts for url in part.urls]
    if all(len(part.gpus) == part.scalars["gpu_count"] for part in parts):
        distinct = len({gpu for part in parts for gpu in part.gpus})
        if distinct == numbers["gpu_count"]:
            return ()
        numbers["gpu_count"] = distinct
        note = (
            "runs share GPUs: the total counts each GPU once, and has no energy, since the "
            "energy of each run is that of the requests of all"
        )
    elif len(set(urls)) == len(urls):
        return ()
    else:
        del numbers["gpu_count"]
        note = (
            "runs have the same URL, which may be one server: the total has nothing by GPU, unless "
            "pages with the UUIDs of all GPUs (telemetry) show which are shared"
        )
    numbers.pop("gpu_joules", None)
    return (note,)


def common_interval_ns(parts: Sequence[JoinedRun]) -> tuple[int, int]:
    """Return the latest begin and the earliest end, by the common clock."""
    begins, ends = zip(*(part.interval_ns for part in parts), strict=True)
    return max(begins), min(ends)


def spread_ns(parts: Sequence[JoinedRun]) -> int:
    """Return the time between the first requests of the first and the last run."""
    begins = [part.interval_ns[0] for part in parts]
    return max(begins) - min(begins)


def _pooled(parts: Sequence[JoinedRun]) -> dict[str, MetricSummary]:
    """Return the distributions over the requests of all runs."""
    names = parts[0].columns.keys()
    together = {
        name: np.concatenate([np.asarray(part.columns[name]) for part in parts]) for name in names
    }
    unsent = sum(_unsent_without_row(part) for part in parts)
    return distributions(PhaseRows(together), unsent_without_row=unsent)


def _unsent_without_row(part: JoinedRun) -> int:
    rows = PhaseRows(part.columns).chunks()
    known = sum(int(np.count_nonzero(c["outcome"] == Outcome.UNSENT)) for c in rows)
    return max(0, int(part.scalars.get("unsent_request_count", 0)) - known)


def _completed_in(parts: Sequence[JoinedRun], interval_ns: tuple[int, int]) -> dict[str, float]:
    """Return the completions in the interval. A request counts by the share of its time inside the
    interval. Counting whole requests would miss those that end together just after it."""
    found = dict.fromkeys(("request_count", "total_isl", "total_osl"), 0.0)
    for part in parts:
        for chunk in PhaseRows(part.columns).chunks(Population.COMPLETED):
            shares = _shares_inside(part, chunk, interval_ns)
            found["request_count"] += float(shares.sum())
            found["total_isl"] += float((shares * np.maximum(chunk["input_tokens"], 0)).sum())
            found["total_osl"] += float((shares * np.maximum(chunk["output_tokens"], 0)).sum())
    return found


def _shares_inside(part: JoinedRun, chunk: Chunk, interval_ns: tuple[int, int]) -> Floats:
    """Return the share of each request's time inside the interval of the common clock."""
    start, end = (
        part.clocks.to_timing(chunk[name], chunk["worker"]) - part.ahead_ns
        for name in ("start_wall_ns", "end_wall_ns")
    )
    inside = np.minimum(end, interval_ns[1]) - np.maximum(start, interval_ns[0])
    shares: Floats = np.maximum(inside, 0) / np.maximum(end - start, 1)
    return shares
