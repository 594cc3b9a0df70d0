"""Detects that a trial of a search breaks, whatever its remaining requests will show.

The criterion is that of the whole trial: the batches of its planned time, where every unfinished
request counts as within the limit. If even these break, so does the trial, and its load can end.
The number of requests is only known for a load with a rate and a duration, and only if each
conversation is one request, since the rate is that of conversations.
"""

import math

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES, DatasetKind
from aiperf_svc.config.prompts import Turns
from aiperf_svc.config.search import Search
from aiperf_svc.core.experiments.evidence import Evidence, is_held
from aiperf_svc.core.results.objective_batches import allowed_share, batches_between
from aiperf_svc.core.results.slo_results import BATCHES, GOODPUT, ObjectiveBatches
from aiperf_svc.core.results.summary import EarlyEnd
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.protocol.records import METRIC_DTYPE, Rows

_SIGMAS = 5
"""Random arrivals exceed their mean by more than this many standard deviations hardly ever."""
_CONVERSATION_KINDS = (
    DatasetKind.MULTI_TURN,
    DatasetKind.SHAREGPT,
    DatasetKind.MOONCAKE_TRACE,
    *AGENT_TRACES,
)


class EarlyEndDetector:
    """Collects the requests of one trial as they end."""

    def __init__(self, config: BenchmarkConfig, search: Search) -> None:
        """`config` is the trial's, with the objectives of the search."""
        self._slo, self._load = config.slo, config.load
        share = search.condition()
        self._min_good = share if isinstance(share, float) else None
        self._most = max_requests(config) if search.maximize is None else None
        self._begin_ns = self._end_ns = 0
        self._found: tuple[ObjectiveBatches, ...] = ()

    def begin(self, start_wall_ns: int) -> None:
        """Record the time at which the load starts."""
        self._begin_ns = start_wall_ns + self._load.ramp
        self._end_ns = start_wall_ns + (self._load.duration or 0)

    def add(self, rows: Rows) -> None:
        """Record finished requests."""
        if self._most is None or not self._begin_ns:
            return
        columns = {name: rows[name] for name in METRIC_DTYPE.names or ()}
        phase = PhaseRows(columns)
        # Uses the workers' own clocks, since a batch is long compared with their differences.
        new = batches_between(phase, ClockMap(), self._slo, self._begin_ns, self._end_ns)
        self._found = tuple(map(_sum, self._found, new)) if self._found else new

    def early_end(self) -> EarlyEnd | None:
        """Return why the load can end early; None if it must continue."""
        broken = tuple(each for each in map(self._best_case, self._found) if self._breaks(each))
        if not broken:
            return None
        return EarlyEnd(text="; ".join(map(_text, broken)), batches=broken)

    def _best_case(self, found: ObjectiveBatches) -> ObjectiveBatches:
        assert self._most is not None
        of_batch = math.ceil(self._most / BATCHES)
        counts = tuple(max(count, of_batch) for count in found.counts)
        return msgspec.structs.replace(found, counts=counts)

    def _breaks(self, best: ObjectiveBatches) -> bool:
        if best.metric == GOODPUT:
            allowed = None if self._min_good is None else 1 - self._min_good
        else:
            allowed = allowed_share(best.stat, best.bound)
        if allowed is None:
            return False
        one = Evidence(
            name=best.metric,
            bound="max",
            limit=allowed,
            measured=None,
            unit="",
            is_met=None,
            counts=best.counts,
            totals=best.totals,
            allowed=allowed,
        )
        return is_held([one]) is False


def max_requests(config: BenchmarkConfig) -> float | None:
    """Return the maximum number of requests of a load after its ramp; None if unknown."""
    load = config.load
    if load.request_rate is None or load.bursts or not load.duration or load.requests is not None:
        return None
    if config.dataset.kind in _CONVERSATION_KINDS or config.dataset.turns.number != Turns().number:
        return None
    mean = load.request_rate * (load.duration - load.ramp) / 1e9
    if load.arrival.pattern == "constant":
        return mean
    variance = mean / (load.arrival.burstiness if load.arrival.pattern == "gamma" else 1.0)
    return mean + _SIGMAS * math.sqrt(variance)


def _sum(one: ObjectiveBatches, other: ObjectiveBatches) -> ObjectiveBatches:
    return msgspec.structs.replace(
        one,
        counts=tuple(a + b for a, b in zip(one.counts, other.counts, strict=True)),
        totals=tuple(a + b for a, b in zip(one.totals, other.totals, strict=True)),
    )


def _text(best: ObjectiveBatches) -> str:
    total, count_text = f"{sum(best.totals):,.0f}", f"{sum(best.counts):,}"
    if best.metric == GOODPUT:
        return f"{total} of at most {count_text} requests are not good"
    metric, side = CATALOG[best.metric], "over" if best.bound == "max" else "under"
    return (
        f"{total} of at most {count_text} requests are {side} the limit of the {best.stat} "
        f"{metric.name}, {best.limit:g} {metric.shown_unit}"
    )
