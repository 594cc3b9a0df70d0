"""Computes the metrics that are one number over the whole phase."""

import numpy as np

from aiperf_svc.core.results.accounts import Accounts
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.outcomes import Outcome

_NEVER = 2**62
_WHOLE = 2**30
"""Parts of a request: sums of whole numbers are the same in whatever pieces they are made."""


def scalars(
    totals: Totals, accounts: Accounts, *, requested_rate: float | None, window_ns: int
) -> dict[str, float]:
    """Return every scalar of the catalog that follows from totals and accounts. A tag is absent if
    it is undefined (rates of a run without duration, tokens that were not counted).

    Rates are over the load's whole window, including failures. Otherwise a run in which nearly all
    requests fail would look fast.
    """
    finished = totals.completed + totals.errored
    values: dict[str, float] = {
        "request_count": totals.completed,
        "error_request_count": totals.errored,
        "completed_request_count": finished,
        "request_error_rate": 100.0 * totals.errored / finished if finished else 0.0,
        "unsent_request_count": accounts.unsent,
        "cancelled_request_count": totals.cancelled,
        "abandoned_request_count": totals.abandoned,
        "timed_out_request_count": totals.timed_out,
        "lost_request_count": max(accounts.lost, accounts.records_lost),
        "capped_request_count": totals.capped,
        "blocked_request_count": totals.blocked,
        "retried_request_count": accounts.retries,
        "connected_request_count": totals.connected,
        "preconnected_request_count": totals.preconnected,
        "unstamped_request_share": 100.0 * totals.unstamped / max(1, totals.requests),
        "distinct_prompt_count": totals.distinct_entries,
    }
    if not totals.to_abandon:
        del values["abandoned_request_count"]
    if not totals.blocked:
        del values["blocked_request_count"]
    if requested_rate is not None:
        values["requested_rate"] = requested_rate
    values |= _tokens(totals)
    if window_ns:
        values |= _rates(values, window_ns / 1e9)
    return {tag: float(value) for tag, value in values.items()}


def _tokens(totals: Totals) -> dict[str, float]:
    values: dict[str, float] = {}
    if totals.has_input_tokens:
        values["total_isl"] = totals.input_tokens
    if totals.has_output_tokens:
        values["total_osl"] = totals.output_tokens
        if not totals.without_content_tokens:
            values["total_output_tokens"] = totals.content_tokens
        if totals.reasoning_tokens:
            values["total_reasoning_tokens"] = totals.reasoning_tokens
    stated = {
        "total_usage_prompt_tokens": totals.usage_prompt,
        "total_usage_completion_tokens": totals.usage_completion,
        "total_usage_total_tokens": totals.usage_total,
    }
    values |= {tag: value for tag, value in stated.items() if value is not None}
    if totals.usage_prompt is not None or totals.usage_completion is not None:
        values["usage_discrepancy_count"] = totals.usage_discrepancies
    if totals.osl_known:
        values["osl_mismatch_count"] = totals.osl_mismatches
    return values


def _rates(values: dict[str, float], seconds: float) -> dict[str, float]:
    rates = {
        "benchmark_duration": seconds,
        "request_throughput": values["request_count"] / seconds,
    }
    given, made = values.get("total_isl"), values.get("total_osl")
    if given is not None:
        rates["input_token_throughput"] = given / seconds
    if made is not None:
        rates["output_token_throughput"] = made / seconds
    if given is not None and made is not None:
        rates["total_token_throughput"] = (given + made) / seconds
    return rates


def steady_state_throughput(
    rows: PhaseRows, clocks: ClockMap, *, begin_ns: int, stop_ns: int
) -> float | None:
    """Return the completed requests per second of `[begin_ns, stop_ns)`, each counted by the share
    of its time that lies within. Counts of those that ended within would leave out what was begun
    and not yet ended, and of a load that starts at once no response ends in its first moments.
    None if none ended within: a window that is shorter than a request has no rate.

    Of requests that the end of the grace period cuts nobody knows which share was within, so the
    window ends before the first of them began if that leaves most of it.
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
        # A request takes a nanosecond at least.
        end = np.maximum(end, start + 1)
        within = np.minimum(end, stop_ns) - np.maximum(start, begin_ns)
        shares = np.maximum(within, 0) / (end - start)
        inside += int(np.rint(shares * _WHOLE).astype(np.int64).sum())
    return inside / _WHOLE / ((stop_ns - begin_ns) / 1e9) if has_ended else None


def _first_cut_ns(rows: PhaseRows, clocks: ClockMap) -> int:
    """Return when the first of the requests that were cut began."""
    first_ns = _NEVER
    for chunk in rows.chunks(Population.SENT):
        cut = chunk.where(chunk["outcome"] == Outcome.CANCELLED)
        if cut.rows:
            starts = clocks.to_timing(cut["start_wall_ns"], cut["worker"])
            first_ns = min(first_ns, int(starts.min()))
    return first_ns
