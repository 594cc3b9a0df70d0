"""The result of a scenario, from the requests of one run.

A request without a response is a query with infinite latency, which is beyond every limit.

Early stopping, as in MLPerf's LoadGen, states what a finite run proves about a percentile. A run of
`n` queries proves, with a confidence of 99%, that a percentile `p` is below a limit if at most `t`
of the queries are beyond it and `n` is at least `h(t) + t`. `h(t)` is the smallest number of
queries within the limit for which so few failures have a probability below 1% if the true share
were exactly `p`: the regularised incomplete beta function of `p` with `h` and `t + 1` (MLPerf
Inference rules, appendix on early stopping). Conversely, the latency that all but `t` queries stay
below is an estimate of the percentile that is never too low.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.compare.student import incomplete_beta
from aiperf_svc.core.experiments.scenarios import (
    LIMITS,
    MIN_DURATION_NS,
    MIN_SAMPLES,
    SAMPLES_PER_QUERY,
    Scenario,
    known_model,
)
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.domain.metric_formulas import Floats, last_content
from aiperf_svc.domain.outcomes import Outcome

CONFIDENCE = 0.99


def min_within(beyond: int, percentile: float) -> int:
    """Return the minimum number of queries within the limit such that `beyond` queries beyond it
    still prove the percentile (0 to 1)."""
    high = 1
    while not _is_proof(high, beyond, percentile):
        high *= 2
    is_enough = partial(_is_proof, beyond=beyond, percentile=percentile)
    return bisect_left(range(high), True, lo=max(1, high // 2), key=is_enough)


def is_proven(queries: int, beyond: int, percentile: float) -> bool:
    """Return whether a run with `queries`, of which `beyond` exceed the limit, proves that the
    percentile is within the limit."""
    return queries - beyond > 0 and _is_proof(queries - beyond, beyond, percentile)


def min_queries(percentile: float) -> int:
    """Return the minimum queries of a run for an estimate of the percentile."""
    return min_within(1, percentile) + 1


def max_beyond(queries: int, percentile: float) -> int:
    """Return the maximum number of slowest queries that an estimate of the percentile excludes; 0:
    too few queries for an estimate."""
    counts = range(max(1, int(queries * (1 - percentile)) + 1))
    return bisect_left(counts, True, lo=1, key=lambda n: not is_proven(queries, n, percentile)) - 1


def estimate(ordered: Floats, percentile: float) -> float | None:
    """Return the estimate of a percentile from sorted values; None if there are too few."""
    beyond = max_beyond(len(ordered), percentile)
    return float(ordered[len(ordered) - beyond]) if beyond else None


def _is_proof(within: int, beyond: int, percentile: float) -> bool:
    return incomplete_beta(within, beyond + 1, percentile) < 1 - CONFIDENCE


LABEL = "MLPerf-style result, not an MLPerf submission"
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Samples(NamedTuple):
    """The requests of a run. Times are in nanoseconds, infinite without a response."""

    latency_ns: Floats
    ttft_ns: Floats
    """NaN for a response that did not stream."""
    tokens: Floats
    """Output tokens of each completed request; NaN if unknown."""
    hidden: Floats
    """Output tokens that were not streamed."""
    failed: int
    began_ns: int
    """Time at which the first query was due."""
    last_due_ns: int
    ended_ns: int
    """End of the last response."""
    queries_ns: Floats
    """Latency of each query, from the start of its first sample to the end of its last one."""

    @property
    def tpot_ns(self) -> Floats:
        """Time per streamed token after the first: (latency - TTFT) / (streamed tokens - 1). NaN
        for responses of one token."""
        streamed = self.tokens - self.hidden
        count = np.where(streamed > 1, streamed - 1, np.nan)
        done = np.isfinite(self.latency_ns)
        with np.errstate(invalid="ignore"):
            spans = np.where(done, (self.latency_ns - self.ttft_ns) / count, np.inf)
        return spans


class Gate(msgspec.Struct, frozen=True):
    name: str
    is_met: bool
    text: str


class Series(msgspec.Struct, frozen=True):
    """Values of all queries, sorted."""

    ordered: Floats

    @classmethod
    def of(cls, values: Floats) -> "Series":
        return cls(np.sort(values[~np.isnan(values)]))

    def percentile(self, percent: float) -> float | None:
        """Return sorted[floor(n p)]; None if there is no such value."""
        count = len(self.ordered)
        if not count:
            return None
        place = min(count - 1, math.floor(round(count * percent / 100, 9)))
        return _finite(self.ordered[place])

    def estimate(self, percent: float) -> float | None:
        """Return the early-stopping estimate; None with too few queries."""
        found = estimate(self.ordered, percent / 100)
        return None if found is None else _finite(found)

    def statistics(self) -> dict[str, object]:
        """Return the statistics of completed requests for result_summary.json."""
        done = self.ordered[np.isfinite(self.ordered)]
        stats: dict[str, object] = {}
        if len(done):
            ends = {"total": done.sum(), "min": done[0], "max": done[-1]}
            stats = {name: _as_whole_number(value) for name, value in ends.items()}
            stats |= {"median": float(np.median(done)), "avg": float(done.mean())}
            stats["std_dev"] = float(done.std(ddof=1)) if len(done) > 1 else 0.0
        return {
            **stats,
            "percentiles": {str(p): self.percentile(p) for p in PERCENTILES},
            "early_stopping_percentiles": {str(p): self.estimate(p) for p in PERCENTILES},
        }


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    scenario: Scenario
    model: str
    metric: str
    value: float | None
    unit: str
    gates: tuple[Gate, ...]
    completed: int
    failed: int
    duration_ns: int
    """From the first due time to the end of the last response."""
    samples_per_s: float
    tokens_per_s: float | None
    """None if the output tokens are unknown."""
    latency: Series
    ttft: Series
    tpot: Series
    tokens: Series

    @property
    def is_valid(self) -> bool:
        """True if every gate is met."""
        return all(gate.is_met for gate in self.gates)


def samples_of(
    columns: Mapping[str, NDArray[Any]],
    scenario: Scenario,
    *,
    clocks: ClockMap,
    without_row: int = 0,
) -> Samples:
    """Return the samples of the rows of a phase. In scenarios with a schedule, latencies count from
    the scheduled time. `clocks` are the workers', whose times are compared. `without_row` requests
    were due but not sent, or were lost with a process. They have no row and count as failed."""
    done = columns["outcome"] == Outcome.COMPLETED
    first = columns["due_wall_ns"] if scenario.has_limits else columns["start_wall_ns"]
    latency = np.where(done, last_content(columns) - first, np.inf)
    token = columns["first_token_wall_ns"]
    ttft = np.where(done, np.where(token == 0, np.nan, token - first), np.inf)
    tokens = columns["output_tokens"][done].astype(np.float64)
    every = np.full(len(done), np.nan)
    every[done] = np.where(tokens < 0, np.nan, tokens)
    due, ends = (
        clocks.to_timing(columns[name], columns["worker"])
        for name in ("due_wall_ns", "end_wall_ns")
    )
    ends = ends[done]
    missing = np.full(without_row, np.inf)
    latency = np.concatenate((latency, missing))
    return Samples(
        latency_ns=latency,
        ttft_ns=np.concatenate((ttft, missing)),
        tokens=np.concatenate((every, np.full(without_row, np.nan))),
        hidden=np.concatenate((columns["hidden_tokens"], np.zeros(without_row))),
        failed=int(np.count_nonzero(~done)) + without_row,
        began_ns=int(due.min()) if len(due) else 0,
        last_due_ns=int(due.max()) if len(due) else 0,
        ended_ns=int(ends.max()) if len(ends) else int(due.max()) if len(due) else 0,
        queries_ns=_queries(columns, done) if scenario is Scenario.MULTI_STREAM else latency,
    )


def _queries(columns: Mapping[str, NDArray[Any]], done: NDArray[np.bool_]) -> Floats:
    """Return the latency of each sent query. It is infinite if a sample has no response, or has no
    row because it was lost with a process."""
    order = np.argsort(columns["index"], kind="stable")
    number = columns["index"][order] // SAMPLES_PER_QUERY
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    if not len(begins):
        return np.empty(0)
    ends, starts = last_content(columns)[order], columns["start_wall_ns"][order]
    took = np.maximum.reduceat(ends, begins) - np.minimum.reduceat(starts, begins)
    is_whole = np.logical_and.reduceat(done[order], begins)
    is_whole &= np.diff(begins, append=len(number)) == SAMPLES_PER_QUERY
    return np.where(is_whole, took.astype(np.float64), np.inf)


def scenario_result(scenario: Scenario, samples: Samples, model: str) -> ScenarioResult:
    """Judge a run as a scenario. `model` is the name of the requested model."""
    latency, ttft, tpot = map(Series.of, (samples.queries_ns, samples.ttft_ns, samples.tpot_ns))
    duration_ns = max(0, samples.ended_ns - samples.began_ns)
    completed = len(samples.latency_ns) - samples.failed
    known = samples.tokens[~np.isnan(samples.tokens)]
    seconds = duration_ns / 1e9
    tokens_per_s = float(known.sum()) / seconds if len(known) and seconds else None
    metric, value, unit = "completed tokens", tokens_per_s, "tokens/s"
    if scenario is Scenario.SINGLE_STREAM:
        metric, unit = "early-stopping 90th percentile latency", "ns"
        value = latency.estimate(90.0)
    elif scenario is Scenario.MULTI_STREAM:
        metric, unit = "early-stopping 99th percentile latency of queries", "ns"
        value = latency.estimate(99.0)
    elif scenario is Scenario.OFFLINE:
        metric = "tokens"
    return ScenarioResult(
        scenario=scenario,
        model=model,
        metric=metric,
        value=value,
        unit=unit,
        gates=tuple(_gates(scenario, samples, duration_ns, ttft, tpot, model)),
        completed=completed,
        failed=samples.failed,
        duration_ns=duration_ns,
        samples_per_s=completed / seconds if seconds else 0.0,
        tokens_per_s=tokens_per_s,
        latency=latency,
        ttft=ttft,
        tpot=tpot,
        tokens=Series.of(samples.tokens),
    )


def _gates(
    scenario: Scenario,
    samples: Samples,
    duration_ns: int,
    ttft: Series,
    tpot: Series,
    model: str,
) -> Iterable[Gate]:
    known = known_model(model)
    length, subject = duration_ns, "run"
    if scenario.has_limits:
        length, subject = samples.last_due_ns - samples.began_ns, "schedule"
    yield Gate(
        "duration",
        length >= MIN_DURATION_NS,
        f"{subject} of {length / 1e9:.0f} s, at least {MIN_DURATION_NS / 1e9:.0f} s",
    )
    if not scenario.has_limits:
        minimum = min_queries(scenario.percentile)
        if scenario is Scenario.OFFLINE:
            minimum = MIN_SAMPLES.get(known or "", 1)
        queries = len(samples.queries_ns)
        yield Gate("queries", queries >= minimum, f"{queries:,} queries, at least {minimum:,}")
        return
    limits = LIMITS[known].get(scenario) if known else None
    if limits is None:
        yield Gate("limits", False, f"MLPerf has no limits for {model} in {scenario.value}")
        return
    yield _limit("TTFT", ttft, limits.ttft_ms, scenario)
    yield _limit("TPOT", tpot, limits.tpot_ms, scenario)


def _limit(name: str, series: Series, limit_ms: float, scenario: Scenario) -> Gate:
    """Return the gate for a limit: the estimate, which is never too low, must be below it."""
    percent = round(scenario.percentile * 100, 9)
    found = series.estimate(percent)
    text = f"no estimate below {limit_ms:g} ms from {len(series.ordered):,} queries"
    if found is not None:
        text = f"early-stopping estimate {found / 1e6:g} ms, to be below {limit_ms:g} ms"
    return Gate(f"p{percent:g} {name}", found is not None and found < limit_ms * 1e6, text)


def _as_whole_number(value: float) -> int | float:
    """Return a number of nanoseconds or tokens as an integer if it is one."""
    return int(value) if value == int(value) else float(value)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
