"""Objectives and goodput: reads, checks and judges limits on metrics.

Only a request with a response has a latency. If a server refuses most requests, the few that
succeed are often the fast ones, and their percentiles look good. So an objective checks two more
conditions besides its limit: the statistic omits no more requests than the error budget allows, and
it has enough values.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.slo import Slo
from aiperf_svc.config.units import format_share
from aiperf_svc.core.events.disturbance import HOLD_S, RECOVERED_SHARE, WINDOW_S, recovered_second
from aiperf_svc.core.results.slo_results import ObjectiveResult, TierResult, limit_of, outside
from aiperf_svc.core.scaling.timeline import Recovered
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows, exclude_abandoned
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.percentiles import QUANTILES, Distribution
from aiperf_svc.domain.metric_catalog import CATALOG, STREAM, Kind, Metric, Population, nearest_tags
from aiperf_svc.domain.number_text import significant
from aiperf_svc.domain.outcomes import Outcome

_SECOND_NS = 10**9

GOODPUT_METRICS = ("goodput", "good_request_count")
"""Metrics that require limits of a good request."""
FIRST_TOKEN_METRICS = ("intended_time_to_first_token", "time_to_first_token")
RATE_METRICS = ("requested_rate", "achieved_rate", "rate_achievement")
"""Metrics that require an open loop."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the phase's due requests."""

    completed: int
    errored: int = 0
    timed_out: int = 0
    """Part of `errored` that timed out."""
    cancelled: int = 0
    unsent: int = 0
    lost: int = 0

    @property
    def due(self) -> int:
        """Number of due requests."""
        return self.completed + self.errored + self.cancelled + self.unsent + self.lost

    def missing_from(self, metric: Metric) -> dict[str, int]:
        """Return the number of requests that the metric's statistics omit, by outcome. A metric
        with right-censored values includes them."""
        is_of_requests = metric.population is not Population.CONNECTIONS
        if metric.kind not in (Kind.RECORD, Kind.POOLED) or not is_of_requests:
            return {}
        if metric.population is Population.DUE:
            return {"failed": self.errored - self.timed_out, "lost": self.lost}
        if metric.population is Population.SENT:
            return {"lost": self.lost}
        return {
            "failed": self.errored - self.timed_out,
            "timed out": self.timed_out,
            "cancelled": self.cancelled,
            "unsent": self.unsent,
            "lost": self.lost,
        }


def over_budget(metric: Metric, failures: Failures, budget: float) -> str:
    """Return why the metric omits too many requests; empty if it does not."""
    missing = {name: count for name, count in failures.missing_from(metric).items() if count > 0}
    count = sum(missing.values())
    if not count or count / failures.due <= budget:
        return ""
    parts = ", ".join(f"{number:,} {name}" for name, number in missing.items())
    return (
        f"leaves out {count:,} of {failures.due:,} requests ({parts}), "
        f"{count / failures.due:.2%} against an error budget of {format_share(budget)}"
    )


def too_few_values(stat: str, distribution: Distribution) -> str:
    """Return why the percentile has too few values; empty if it has enough."""
    if stat not in distribution.unreliable:
        return ""
    q = QUANTILES[stat]
    needed = math.ceil(round(1 / min(q, 1 - q), 9))
    count = distribution.count + distribution.censored
    return f"{stat} needs {needed:,} values, there {'is' if count == 1 else 'are'} {count:,}"


def too_near(value: float | None, bound: str, limit: float, stat: str, found: Distribution) -> str:
    """Return why a value is too close to the limit, since the percentile of a histogram has an
    error. Empty if it is not."""
    error = found.relative_error
    if value is None or not error or stat not in QUANTILES:
        return ""
    minimum, maximum = found.stats["min"] or 0.0, found.stats["max"] or math.inf
    low, high = max(value / (1 + error), minimum), min(value / (1 - error), maximum)
    if outside(low, bound, limit) == outside(high, bound, limit):
        return ""
    return f"within {error:.1%} of the limit, the error of this percentile"


def check_slo(slo: Slo, *, is_streaming: bool = True, is_open_loop: bool = True) -> list[str]:
    """Return every problem of an SLO as one line: what is wrong, and what was expected.
    `is_streaming`: responses stream; `is_open_loop`: requests have a rate. Some metrics need
    these."""
    problems: list[str] = []
    for number, objective in enumerate(slo.objectives):
        where = f"slo.objectives.{number}"
        metric = CATALOG.get(objective.metric)
        if metric is None:
            problems.append(f"{where}.metric: {unknown_metric(objective.metric)}")
            continue
        if not is_streaming:
            problems += _absent(f"{where}.metric", metric)
        if metric.tag in GOODPUT_METRICS and not slo.goodput:
            problems.append(f"{where}.metric: {metric.tag!r} has no data without slo.goodput")
        if metric.tag in RATE_METRICS and not is_open_loop:
            problems.append(f"{where}.metric: {metric.tag!r} has no data without load.request_rate")
        if metric.kind is Kind.SCALAR and objective.stat != "avg":
            problems.append(
                f"{where}.stat: {objective.stat!r}: {metric.tag} is one number; leave stat out"
            )
        if metric.kind is Kind.TIMED and objective.stat == "p75":
            problems.append(f"{where}.stat: 'p75': {metric.tag} has avg, p50, p90, p95, p99")
        for bound, limit in objective.bounds:
            problems += _bad_limit(f"{where}.{bound}", metric, limit)
    sets = {"slo.goodput": slo.goodput}
    sets |= {f"slo.goodput_tiers.{name}": each for name, each in slo.goodput_tiers.items()}
    for where, limits in sets.items():
        problems += _bad_limits(where, limits, is_streaming=is_streaming)
    return problems


def _bad_limits(key: str, limits: Mapping[str, float | str], *, is_streaming: bool) -> list[str]:
    problems: list[str] = []
    for tag, limit in limits.items():
        where = f"{key}.{tag}"
        metric = CATALOG.get(tag)
        if metric is None:
            problems.append(f"{where}: {unknown_metric(tag)}")
        elif metric.compute is None:
            problems.append(f"{where}: {tag} has no value for a single request; name one that has")
        else:
            problems += _bad_limit(where, metric, limit)
            if not is_streaming:
                problems += _absent(where, metric)
    return problems


def judge(
    limits: Slo,
    measured: Callable[[str, str], float | None],
    distributions: Mapping[str, Distribution],
    failures: Failures,
) -> tuple[ObjectiveResult, ...]:
    """Compare the measured values, `measured(tag, stat)`, with every limit.

    An objective is missed if its value exceeds the limit, or if the statistic omits more requests
    than the error budget allows. Otherwise it is not judged if it has no value, or if a percentile
    has too few values or is closer to the limit than its error.
    """
    results = []
    for objective in limits.objectives:
        metric, stat = CATALOG[objective.metric], objective.stat
        value, found = measured(metric.tag, stat), distributions.get(metric.tag)
        over = over_budget(metric, failures, limits.error_budget)
        thin = "" if found is None else too_few_values(stat, found)
        for bound, raw in objective.bounds:
            limit = limit_of(metric.shown_unit, raw)
            beyond = None if value is not None or found is None else found.beyond.get(stat)
            near = "" if found is None else too_near(value, bound, limit, stat, found)
            missed = "" if near else outside(value, bound, limit, beyond=beyond)
            cut = ""
            if beyond is not None:
                cut = f"beyond {significant(beyond)}, among the requests that were cut off"
            reason = "; ".join(filter(None, (missed, near, cut, over, thin)))
            if value is None and not reason:
                reason = "not measured"
            results.append(
                ObjectiveResult(
                    metric.tag,
                    stat,
                    bound,
                    limit,
                    value,
                    metric.shown_unit,
                    ok=not reason,
                    reason=reason,
                    judged=not reason or bool(missed or over),
                )
            )
    return tuple(results)


def count_good(rows: PhaseRows, limits: Mapping[str, float | str]) -> int:
    """Count the completed requests within every limit. A request with an undefined metric is bad. A
    limit is the highest good value, or the lowest one if higher is better."""
    return sum(_count_good(rows.chunks(Population.COMPLETED), limits))


def _count_good(chunks: Iterable[Chunk], limits: Mapping[str, float | str]) -> tuple[int, int]:
    """Return the number of good requests of clients that wait, and of those that leave early."""
    waiting = leaving = 0
    for chunk in chunks:
        good = is_good(chunk, limits)
        leaves = int(np.count_nonzero(good & chunk["is_abandoning"]))
        waiting += int(np.count_nonzero(good)) - leaves
        leaving += leaves
    return waiting, leaving


def good_requests(rows: PhaseRows, limits: Mapping[str, float | str]) -> dict[str, float]:
    """Return the number of good requests by tag; empty without limits."""
    return {"good_request_count": float(count_good(rows, limits))} if limits else {}


def judge_tiers(
    limits: Slo, rows: PhaseRows, *, due: int, window_ns: int
) -> tuple[TierResult, ...]:
    """Return the goodput of each tier, in the config's order. `due` is the number of due requests
    of clients that wait for the end."""
    found = []
    for name, tier in limits.goodput_tiers.items():
        waiting, leaving = _count_good(rows.chunks(Population.COMPLETED), tier)
        good = waiting + leaving
        share = waiting / due if due else None
        rate = good / (window_ns / 1e9) if window_ns else None
        found.append(TierResult(name, tier, good, share, rate))
    return tuple(found)


def is_good(chunk: Chunk, limits: Mapping[str, float | str]) -> NDArray[np.bool_]:
    """Return which of these requests are within every limit, assuming that they completed."""
    good = np.ones(chunk.rows, dtype=np.bool_)
    for tag, raw in limits.items():
        metric = CATALOG[tag]
        limit = limit_of(metric.shown_unit, raw)
        assert metric.compute is not None
        values = metric.compute(chunk)
        # A comparison with NaN is false: undefined is bad.
        good &= values >= limit if metric.better == "higher" else values <= limit
    return good


def first_token_limit_ms(limits: Slo) -> float | None:
    """Return the limit for the time to the first token, from good requests or an objective; None
    without one."""
    first_token_limits = [(tag, limits.goodput.get(tag)) for tag in FIRST_TOKEN_METRICS]
    for tag, raw in (*first_token_limits, *_upper_limits(limits).items()):
        if tag in FIRST_TOKEN_METRICS and raw is not None:
            return limit_of(CATALOG[tag].shown_unit, raw)
    return None


def limits_of(slo: Slo) -> dict[str, float | str]:
    """Return the limits for single requests: those of the goodput, or else the objectives' upper
    ones."""
    return dict(slo.goodput) or _upper_limits(slo)


def _upper_limits(slo: Slo) -> dict[str, float | str]:
    """Return the upper limits of the objectives on metrics of requests. If a metric has several,
    the highest one, because half of the requests may exceed a limit on the median."""
    found: dict[str, float | str] = {}
    for each in slo.objectives:
        metric = CATALOG[each.metric]
        if each.max is None or metric.compute is None:
            continue
        known, unit = found.get(metric.tag), metric.shown_unit
        if known is None or limit_of(unit, each.max) > limit_of(unit, known):
            found[metric.tag] = each.max
    return found


def recovery(
    rows: PhaseRows, clocks: ClockMap, window: LoadWindow, slo: Slo
) -> tuple[Recovered, str]:
    """Return a function that finds when the SLO holds again, and its criterion in words, empty
    without a limit for single requests."""
    limits = limits_of(slo)
    if not limits:
        return lambda begin_s, end_s: None, ""
    length = max(1, -(-(window.sent_until_ns - window.begin_ns) // _SECOND_NS))
    due, good = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    for chunk in map(exclude_abandoned, rows.chunks()):
        seconds = clocks.to_timing(chunk["due_wall_ns"], chunk["worker"]) - window.begin_ns
        seconds //= _SECOND_NS
        is_counted = (seconds >= 0) & (seconds < length)
        is_kept = is_counted & (chunk["outcome"] == Outcome.COMPLETED) & is_good(chunk, limits)
        due += np.bincount(seconds[is_counted], minlength=length)
        good += np.bincount(seconds[is_kept], minlength=length)

    def recovered(begin_s: float, end_s: float) -> float | None:
        first, last = int(begin_s), min(int(end_s), length)
        second = recovered_second(good[first:last], due[first:last], least=RECOVERED_SHARE)
        return None if second is None else max(begin_s, float(first + second))

    named = ", ".join(f"{tag} {limit}" for tag, limit in limits.items())
    words = (
        f"{RECOVERED_SHARE:.0%} of the requests due in each {WINDOW_S} s are within {named}, for "
        f"{HOLD_S} s"
    )
    return recovered, words


def _bad_limit(where: str, metric: Metric, limit: float | str) -> list[str]:
    try:
        limit_of(metric.shown_unit, limit)
    except ValueError as error:
        return [f"{where}: {limit!r}: {error}"]
    return []


def _absent(where: str, metric: Metric) -> list[str]:
    if STREAM not in metric.needs:
        return []
    return [
        f"{where}: {metric.tag!r} has no data without streaming; add --streaming "
        "(endpoint.streaming)"
    ]


def unknown_metric(tag: str) -> str:
    """Return the message for an unknown metric, with similar names."""
    near = nearest_tags(tag)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; see docs/metrics.md for all"
    return f"{tag!r} is not a metric{hint}"
