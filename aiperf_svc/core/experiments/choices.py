"""Selects what an experiment reports: the best combination, and the front of throughput against
latency.

A combination in which the target or a step failed in a repetition (`FAILURES`) is excluded from
both, since its means omit that repetition. A combination that misses the SLO, or that a search has
not found to hold, is not the best of a value either. The means of repetitions have intervals. If
those of the best and of another combination overlap, the experiment does not show which of the two
is better.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.combinations import Aggregate, Combination
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.results.run_result import INFERENCE
from aiperf_svc.core.results.slo_results import HELD

REQUEST_THROUGHPUT = RowKey("request_throughput", "avg")
TOKEN_THROUGHPUT = RowKey("output_token_throughput", "avg")
LATENCIES = (RowKey("time_to_first_token", "p99"), RowKey("request_latency", "p99"))
"""The latency of the front is the first of these that every combination has."""


@dataclass(frozen=True, slots=True)
class Best:
    """The combination with the best mean of a value."""

    key: RowKey
    combination: Combination
    value: Aggregate
    rivals: tuple[Combination, ...]
    """Other combinations whose intervals overlap with its own."""


@dataclass(frozen=True, slots=True)
class Front:
    """The combinations that no other combination beats in both throughput and latency, without
    those in which the target or a step failed."""

    throughput: RowKey
    latency: RowKey
    points: tuple[Combination, ...]
    """All combinations that have both values."""
    optimal: tuple[Combination, ...]
    """Those on the front, by increasing throughput."""


def best_of(summary: ExperimentSummary, search: SearchReport | None = None) -> tuple[Best, ...]:
    """Return the best combination for each headline value that has a better direction."""
    found = (best(summary, key, search) for key in summary.headline)
    return tuple(each for each in found if each is not None)


def best(
    summary: ExperimentSummary, key: RowKey, search: SearchReport | None = None
) -> Best | None:
    """Return the best combination by one value among those that hold the SLO. None if the value has
    no direction or is the same for all of them."""
    better = summary.metrics[key.tag].better if key.tag in summary.metrics else ""
    known = [e for e in summary.combinations if key in e.values and _may_be_best(e, search)]
    if not better or len({each.values[key].mean for each in known}) < 2:
        return None
    chosen = (max if better == "higher" else min)(known, key=lambda each: each.values[key].mean)
    value = chosen.values[key]
    others = (each for each in known if each is not chosen)
    return Best(key, chosen, value, tuple(e for e in others if _overlap(e.values[key], value)))


def _may_be_best(each: Combination, search: SearchReport | None) -> bool:
    if search is not None:
        value = each.parameters.get(search.parameter)
        if not any(point.holds and point.value == value for point in search.points):
            return False
    if each.has_failed:
        return False
    counted = [row.measured for row in each.rows if not row.left_out]
    return all(one is None or one.slo in (HELD, "") for one in counted)


def _overlap(one: Aggregate, other: Aggregate) -> bool:
    """Return whether two intervals overlap. A single run is a point."""
    return abs(one.mean - other.mean) <= (one.half_width or 0.0) + (other.half_width or 0.0)


def front(summary: ExperimentSummary, *, throughputs: Sequence[RowKey] = ()) -> Front | None:
    """Return the front of throughput against latency, for the first of `throughputs` and the first
    latency that every combination has. None if there is no such pair."""
    measured = [each for each in summary.combinations if each.values]
    throughput, latency = _objectives(summary, measured, throughputs)
    if throughput is None or latency is None:
        return None
    ordered = sorted(
        (each for each in measured if not each.has_failed),
        key=lambda each: (-each.values[throughput].mean, each.values[latency].mean),
    )
    optimal: list[Combination] = []
    for each in ordered:
        mean = each.values[latency].mean
        last = optimal[-1].values if optimal else None
        is_equal = last is not None and (
            last[latency].mean == mean and last[throughput].mean == each.values[throughput].mean
        )
        if last is None or is_equal or mean < last[latency].mean:
            optimal.append(each)
    return Front(throughput, latency, tuple(measured), tuple(reversed(optimal)))


def _objectives(
    summary: ExperimentSummary, measured: Sequence[Combination], throughputs: Sequence[RowKey]
) -> tuple[RowKey | None, RowKey | None]:
    kinds = {row.measured.kind for row in summary.rows if row.measured is not None}
    if kinds == {INFERENCE}:
        up: Iterable[RowKey] = throughputs or (TOKEN_THROUGHPUT, REQUEST_THROUGHPUT)
        down: Iterable[RowKey] = LATENCIES
    else:
        up, down = (
            [key for key in summary.headline if summary.metrics[key.tag].better == better]
            for better in ("higher", "lower")
        )
    return _first(up, measured), _first(down, measured)


def _first(keys: Iterable[RowKey], measured: Sequence[Combination]) -> RowKey | None:
    common = (key for key in keys if measured and all(key in each.values for each in measured))
    return next(common, None)
