"""Computes the metrics that are a single number over the whole phase.

The catalog defines each of them. Numbers that are counted or summed over requests, or derived from
other numbers, need no code here.
"""

from collections.abc import Mapping

import numpy as np

from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.domain.metric_catalog import METRICS, Count, Derived, Population, Rate, Sum
from aiperf_svc.domain.outcomes import Outcome

_NEVER = 2**62
_PARTS_PER_REQUEST = 2**30
"""Parts of a request. Sums of integers do not depend on the order of addition."""


def scalars(rows: PhaseRows, measured: Mapping[str, float]) -> dict[str, float]:
    """Return every known scalar of the catalog. `measured` are those whose source is not a
    formula."""
    numbers = {**measured, **_from_records(rows)}
    return derived({**numbers, **rates(numbers)})


def rates(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the rates from counts and `benchmark_duration`. For a run, they cover the whole load
    including failures; otherwise a run in which nearly all requests fail would look
    fast."""
    seconds = counts.get("benchmark_duration")
    if seconds is None:
        return {}
    return {
        metric.tag: sum(counts[tag] for tag in metric.scalar.tags) / seconds
        for metric in METRICS
        if isinstance(metric.scalar, Rate) and counts.keys() >= {*metric.scalar.tags}
    }


def derived(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return these scalars, and all of the catalog that are derived from them."""
    found = {tag: float(value) for tag, value in numbers.items()}
    missing = {m.tag: m.scalar for m in METRICS if isinstance(m.scalar, Derived)}
    # One may depend on another that comes later in the catalog.
    while new := {
        tag: value
        for tag, scalar in missing.items()
        if tag not in found and (value := _derived(scalar, found)) is not None
    }:
        found |= new
    return found


def _derived(scalar: Derived, numbers: Mapping[str, float]) -> float | None:
    try:
        return scalar.formula(numbers)
    except (KeyError, ZeroDivisionError):
        return None


def _from_records(rows: PhaseRows) -> dict[str, float]:
    """Return the counts and the sums over requests."""
    found: dict[str, float] = {}
    for metric in METRICS:
        match metric.scalar:
            case Count(is_counted):
                chunks = rows.chunks(metric.population)
                found[metric.tag] = sum(int(np.count_nonzero(is_counted(c))) for c in chunks)
            case Sum(formula):
                values = [formula(chunk) for chunk in rows.chunks(metric.population)]
                if not all(np.isnan(each).all() for each in values):
                    found[metric.tag] = float(sum(np.nansum(each) for each in values))
    return found


def measured_scalars(
    totals: Totals,
    accounts: Accounts | None,
    *,
    requested_rate: float | None,
    window_ns: int,
) -> dict[str, float]:
    """Return the scalars from totals and accounts. An undefined tag is absent. Without accounts the
    requests are only a part of a run's, and the scalars of the run are absent."""
    values: dict[str, float] = {
        "request_count": totals.completed,
        "error_request_count": totals.errored,
        "cancelled_request_count": totals.cancelled,
        "timed_out_request_count": totals.timed_out,
        "context_overflow_count": totals.context_overflows,
        "capped_request_count": totals.capped,
        "unstamped_request_share": 100.0 * totals.unstamped / max(1, totals.requests),
        "distinct_prompt_count": totals.distinct_entries,
    }
    if accounts is not None:
        values["unsent_request_count"] = accounts.unsent
        values["lost_request_count"] = max(accounts.lost, accounts.records_lost)
        values["retried_request_count"] = accounts.retries
    if totals.distinct_prompts:
        ended = totals.completed + totals.errored
        values["requests_per_prompt"] = ended / totals.distinct_prompts
    if totals.to_abandon:
        values["abandoned_request_count"] = totals.abandoned
    if totals.has_output_tokens and not totals.without_content_tokens:
        values["total_output_tokens"] = totals.content_tokens
    if requested_rate is not None:
        values["requested_rate"] = requested_rate
    if window_ns:
        values["benchmark_duration"] = window_ns / 1e9
    return values


def steady_state_throughput(
    rows: PhaseRows, clocks: ClockMap, *, begin_ns: int, stop_ns: int
) -> float | None:
    """Return the completed requests per second of `[begin_ns, stop_ns)`. Each request counts by the
    share of its time inside. Counting the requests that end inside would miss those in flight, and
    no response ends in the first moments of a load. None if none ended inside: a window shorter
    than a request has no rate.

    The share of a request that the end of the grace period cuts is unknown. So the window ends
    before the first such request began, if that leaves most of it.
    """
    first_cut_ns = _first_cut_ns(rows, clocks)
    if 2 * (min(stop_ns, first_cut_ns) - begin_ns) >= stop_ns - begin_ns:
        stop_ns = min(stop_ns, first_cut_ns)
    if stop_ns <= begin_ns:
        return None
    inside, has_ended = 0, False
    for chunk in rows.chunks(Population.COMPLETED):
        start, end = (
            clocks.to_timing(chunk[column], chunk["worker"])
            for column in ("start_wall_ns", "end_wall_ns")
        )
        has_ended |= bool(((end >= begin_ns) & (end < stop_ns)).any())
        # A request takes at least a nanosecond.
        end = np.maximum(end, start + 1)
        within = np.minimum(end, stop_ns) - np.maximum(start, begin_ns)
        shares = np.maximum(within, 0) / (end - start)
        inside += int(np.rint(shares * _PARTS_PER_REQUEST).astype(np.int64).sum())
    return inside / _PARTS_PER_REQUEST / ((stop_ns - begin_ns) / 1e9) if has_ended else None


def _first_cut_ns(rows: PhaseRows, clocks: ClockMap) -> int:
    """Return when the first cut request began."""
    first_ns = _NEVER
    for chunk in rows.chunks(Population.SENT):
        cut = chunk.where(chunk["outcome"] == Outcome.CANCELLED)
        if cut.rows:
            starts = clocks.to_timing(cut["start_wall_ns"], cut["worker"])
            first_ns = min(first_ns, int(starts.min()))
    return first_ns
