"""The inputs of the verdict, from the records and from the processes' own reports, and the table
row of a check that compares one of them with its limits."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.percentiles import is_thin, quantile
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.core.verdict.check_result import Reason, graded
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.core.verdict.token_agreement import TokenAgreement
from aiperf_svc.domain import metric_formulas as f
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.metric_formulas import Columns, Floats
from aiperf_svc.domain.outcomes import ErrorKind, Phase
from aiperf_svc.protocol.messages.records import ErrorSample

TAILS = (("p99", 0.99), ("p90", 0.90))
"""Candidates for the high percentile. The first one that the number of values supports is used."""


class LatencyBound(msgspec.Struct, frozen=True):
    """Bounds of the client's effect on one percentile of one latency, in milliseconds."""

    metric: str
    stat: str
    measured_ms: float
    lowest_ms: float
    """The percentile if every request had been written as late, and its event had arrived as early,
    as the uncertainty allows. The true value lies between this and `measured_ms`."""
    with_lag_ms: float
    """The percentile plus each request's own schedule lag, without connecting and caps."""

    @property
    def uncertain_share(self) -> float:
        """(measured - lowest) / measured."""
        return _share(self.measured_ms - self.lowest_ms, self.measured_ms)

    @property
    def lag_share(self) -> float:
        """(with lag - measured) / measured."""
        return _share(self.with_lag_ms - self.measured_ms, self.measured_ms)


class GapBound(msgspec.Struct, frozen=True):
    """Bounds of the effect of merged reads on one percentile of the times between chunks, in
    ms."""

    metric: str
    stat: str
    measured_ms: float
    lowest_ms: float
    highest_ms: float
    mean_ms: float
    """Mean of the metric. If a server puts several chunks into a segment, percentiles can be 0. The
    uncertainty is then compared with the mean, which merged reads hardly change."""

    @property
    def uncertain_share(self) -> float:
        """The larger distance from the measured value to a bound, as a share of that value or of
        the mean."""
        off = max(self.measured_ms - self.lowest_ms, self.highest_ms - self.measured_ms)
        return _share(off, max(self.measured_ms, self.mean_ms) or self.highest_ms)


class SingleReads(msgspec.Struct, frozen=True):
    """Counts of streams of several tokens, and of those with all tokens in one read."""

    streams: int = 0
    in_one_read: int = 0

    @property
    def share(self) -> float:
        """Share of the streams with all tokens in one read, 0 to 1."""
        return self.in_one_read / self.streams if self.streams else 0.0


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of the verdict for the profiling phase."""

    totals: Totals
    accounts: Accounts
    is_open_loop: bool
    concurrency: int | None = None
    errors: tuple[tuple[str, int], ...] = ()
    """Kinds of errors and their counts, most frequent first."""
    error_status: int = 0
    """The most frequent HTTP status of errors; 0: most have none, or there are no errors."""
    connecting: int = 0
    """Unsent requests whose connections the target had not accepted by the stop, although the
    client had opened them in time."""
    connect_ms: float = 0.0
    """Median time to open a connection, over the requests that waited for one."""
    unasked: int = 0
    """Connections that received bytes without a pending request."""
    history_defects: tuple[int, ...] = ()
    """Responses of conversations with each `Defect` of their tool calls."""
    clock_jumps: int = 0
    """Requests whose times may include a clock step."""
    clock_step_share: float = 0.0
    """Largest clock step as a share of the phase's time, over all workers. Steps of the timing
    manager's clock seen by a worker count too."""
    held_back_share: float = 0.0
    """Largest share of the phase's time in which a worker paused its load, over all workers."""
    bounds: tuple[LatencyBound, ...] = ()
    receive_lag_ms: float = 0.0
    """p99 of the receive lag."""
    fastest_ms: float | None = None
    """5th percentile of TTFT if streaming, else of the request latency."""
    held_ratio: float | None = None
    """Mean concurrency over the configured one in closed loop, or the share of prefill slot time
    without a free slot while a user waited; None if the run is too short to tell."""
    prefill_concurrency: int | None = None
    rate_ratio: float | None = None
    """Rate over the due rate in open loop. Includes requests that the client tried to send to a
    target that did not accept them."""
    capped: int = 0
    """Requests that waited for the concurrency cap, a prefill slot or the connection limit, whether
    or not they were sent in the end."""
    arrivals_ratio: float | None = None
    """Scheduled arrivals over those expected from the rate; open loop."""
    arrivals_tolerance: float = 0.0
    """Deviation of `arrivals_ratio` from 1 that chance alone explains."""
    single_reads: SingleReads = SingleReads()
    gap_bounds: tuple[GapBound, ...] = ()
    clock_uncertainty_ms: float = 0.0
    workers: tuple[Health, ...] = ()
    timing: tuple[Health, ...] = ()
    """Health of the timing manager, which grants the workers' credits."""
    lost_services: tuple[str, ...] = ()
    finish_reasons: dict[str, int] = {}
    """Number of requests by finish reason."""
    uncounted: str = ""
    """Names of the metrics that are missing because no response has a token count; empty if some
    have one, or if the API generates no text."""
    blank_bounds: tuple[GapBound, ...] = ()
    """Bounds of the time to first token where it is unknown whether such deltas were tokens."""
    tokenizer: str = ""
    """Name of the counting tokenizer; empty if the server's counts are used."""
    tokens: TokenAgreement = msgspec.field(default_factory=TokenAgreement)
    """The client's counts compared with the server's."""
    requested_input_tokens: float = 0.0
    """Approximate mean length of the synthetic prompts; 0 if a tokenizer or nothing counts them."""
    requested_tolerance: float = 0.0
    """Random error to allow for in the mean of the drawn lengths."""
    longest_input_tokens: float = 0.0
    """Approximate mean length with the longest chat template; 0 if prompts have other content."""
    stated_input_tokens: float = 0.0
    """Mean length reported by the server."""
    is_length_forced: bool = False
    """True if the load prescribes output lengths."""
    failure: str = ""
    """Reason why the run failed; empty if it did not."""
    was_cancelled: bool = False
    """Whether the user stopped the run."""
    early_end: str = ""
    """Why the load ended early; empty if it did not."""
    error_budget: float = 0.0
    """Share of failures that the config accepts."""
    events: tuple[tuple[str, str], ...] = ()
    """Kind of each event, and why it is not verified; empty if it is."""

    @property
    def requests(self) -> int:
        """Requests with a record, except those that were not sent."""
        return self.totals.requests - self.totals.unsent

    @property
    def due(self) -> int:
        return self.requests + self.accounts.unsent + self.accounts.records_lost

    def share(self, count: int) -> float:
        """Return `count` as a share of all due requests."""
        return _share(count, self.due)

    def share_of_completed(self, count: int) -> float:
        return _share(count, self.totals.completed)

    @property
    def headline_bounds(self) -> tuple[LatencyBound, ...]:
        """Bounds of TTFT if there are any, else of the request latency."""
        first = self.bounds[0].metric if self.bounds else ""
        return tuple(bound for bound in self.bounds if bound.metric == first)


@dataclass(frozen=True, slots=True)
class Check:
    """A check that compares one number with fixed limits, as a table row."""

    name: str
    measured: Callable[[Evidence], float | None]
    """None if the check does not apply."""
    limits: tuple[float, float] | float
    """Limits in the form of `graded`."""
    text: Callable[[Evidence], str]
    remedy: str
    unit: str = "ratio"

    def __call__(self, evidence: Evidence) -> Reason | None:
        """Return the result of the check; None if it does not apply."""
        measured = self.measured(evidence)
        if measured is None:
            return None
        text, unit = self.text(evidence), self.unit
        return graded(self.name, measured, self.limits, text=text, remedy=self.remedy, unit=unit)


def latency_bounds(rows: PhaseRows, totals: Totals) -> tuple[LatencyBound, ...]:
    """Return bounds of the median and of the highest percentile that the number of requests
    supports, for TTFT (streaming) and request latency."""
    found: list[LatencyBound] = []
    if totals.is_streaming:
        found += _bounds(rows, "time_to_first_token", f.time_to_first_token, "ttft_uncertainty_ns")
    found += _bounds(rows, "request_latency", f.request_latency, "last_uncertainty_ns")
    return tuple(found)


def _bounds(
    rows: PhaseRows, metric: str, formula: f.Formula, uncertainty: str
) -> list[LatencyBound]:
    open_ms = f.duration_of(uncertainty)

    def lowest(chunk: Columns) -> Floats:
        value = formula(chunk)
        return np.maximum(value - open_ms(chunk) - f.write_time(chunk), 0.0)

    def with_lag(chunk: Columns) -> Floats:
        return formula(chunk) + f.client_lag(chunk)

    columns = [ordered(rows, each) for each in (formula, lowest, with_lag)]
    bounds = []
    for name, q in median_and_tail(len(columns[0]), TAILS):
        values = [quantile(column, q) for column in columns]
        bounds.append(LatencyBound(metric, name, *(value or 0.0 for value in values)))
    return bounds


def ordered(rows: PhaseRows, formula: f.Formula) -> Floats:
    """Return the values of completed requests in order."""
    values = rows.collect(formula, Population.COMPLETED)
    values.sort()
    return values


def median_and_tail(count: int, tails: tuple[tuple[str, float], ...]) -> list[tuple[str, float]]:
    """Return the median and the first of `tails` that so many values support, by name; empty
    without values."""
    if not count:
        return []
    tail = next((pair for pair in tails if not is_thin(pair[1], count)), None)
    return [("p50", 0.50), *((tail,) if tail else ())]


def achieved_share(totals: Totals, unsent: int) -> float | None:
    """Return the rate of written requests over the due rate: the share that was written at all,
    times the ratio of the due times' span to the starts' span. A request whose connection failed
    was not written. None if nothing was due."""
    return _share_of_due(totals, unsent, totals.written)


def turns_share(totals: Totals, *, rate: float, begin_ns: int, stop_ns: int) -> float:
    """Return the written requests over the turns of users who take turns regularly until the stop,
    at this total rate."""
    requested = int(rate * (stop_ns - begin_ns) / 1e9)
    return totals.written / requested if requested else 1.0


def client_share(totals: Totals, unsent: int, *, connecting: int) -> float | None:
    """Return `achieved_share`, counting requests as written that the client tried to send and the
    target did not accept, at all or until the stop."""
    return _share_of_due(totals, unsent, totals.written + totals.unreachable + connecting)


def connect_ms(rows: PhaseRows) -> float:
    """Return the median time to open a connection, over the requests that waited for one; 0 if none
    did."""

    def opening(chunk: Columns) -> Floats:
        values = f.connecting(chunk)
        values[values == 0] = np.nan
        return values

    return quantile(np.sort(rows.collect(opening, Population.SENT)), 0.50) or 0.0


def _share_of_due(totals: Totals, unsent: int, count: int) -> float | None:
    due = totals.requests - totals.unsent + unsent
    if not due:
        return None
    due_span = totals.last_due - totals.first_due
    start_span = totals.last_start - totals.first_start
    stretched = due_span / start_span if 0 < due_span < start_span else 1.0
    return count / due * stretched


def arrivals_ratio(
    issued: int, *, rate: float, duration_s: float, ramp_s: float, variation: float
) -> tuple[float, float] | None:
    """Return the arrivals over `rate x duration` (a whole linear ramp offers half), and the
    deviation from 1 that chance explains: four standard deviations of a renewal count with the
    given coefficient of variation between arrivals (Cox, Renewal Theory, 1962, section 4.5). None
    if fewer than one is expected."""
    ramped_s = min(duration_s, ramp_s)
    offered = ramped_s / (2 * ramp_s) if ramp_s else 0.0
    expected = rate * (duration_s - ramped_s + ramped_s * offered)
    if expected < 1:
        return None
    # A constant schedule may still gain or lose one arrival at its edges.
    return issued / expected, (4 * variation * expected**0.5 + 1) / expected


def errors_by_kind(totals: Totals) -> tuple[tuple[str, int], ...]:
    """Return the names of the kinds of errors and their counts, most frequent first."""
    found = [
        (kind.name.lower().replace("_", " "), int(totals.errors[kind]))
        for kind in ErrorKind
        if kind is not ErrorKind.NONE and totals.errors[kind]
    ]
    return tuple(sorted(found, key=lambda pair: -pair[1]))


def most_frequent_status(samples: Iterable[ErrorSample]) -> int:
    """Return the most frequent HTTP status of errors in the profiling phase; 0 represents errors
    without one."""
    counts: Counter[int] = Counter()
    for each in samples:
        if each.phase is Phase.PROFILING:
            counts[each.status] += each.count
    return max(counts, key=counts.__getitem__, default=0)


def clock_uncertainty_ms(clocks: ClockMap) -> float:
    """Return the largest clock uncertainty over all workers on machines other than the timing
    manager's."""
    return clocks.uncertainty_ns / f.NS_PER_MS


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
