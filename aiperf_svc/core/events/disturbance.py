"""Measures the effects of each event of a run on its load, from the records of the requests.

Only an open loop can be measured, because it keeps sending while a server is down. A request
belongs to the second in which it was due, not to that in which it was sent or answered.

The recovery is computed from counts of requests by second, because the number of requests does not
fall when a server does not respond. Second 0 begins with the disturbance. The share of good
requests among the due ones, not a rate, is compared with the share before. It does not depend on
random arrivals or stages of the load, and at a constant rate both comparisons are equal.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aiperf_svc.config.events import Event
from aiperf_svc.core.events.report import LOST_KINDS, Disturbance, DueCounts, EventReport
from aiperf_svc.core.stats.clock_map import ClockMap, Times
from aiperf_svc.core.stats.columns import Chunk, Mask, PhaseRows, exclude_abandoned
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.metric_formulas import Floats, last_content
from aiperf_svc.domain.outcomes import ErrorKind, Outcome

Counts = NDArray[np.int64]

WINDOW_S = 10
"""Length of the window for a share, because one second has too few requests."""
HOLD_S = 30
"""Time that the share must hold, because the end of one queue may be followed by another."""
BASELINE_S = 60
"""Maximum time before a disturbance that serves as its baseline."""
RECOVERED_SHARE = 0.95
"""Share of the baseline that counts as recovered."""
_ROUNDING = 1e-9


def recovered_second(good: Counts, due: Counts, *, least: float) -> int | None:
    """Return the first second from which the share of good requests stays at `least` or above.

    It is the lowest s for which every window of `WINDOW_S` seconds within [s, s + `HOLD_S`) has
    `good >= least * due`. A window without a request holds. None: there is no such second, or fewer
    than `HOLD_S` seconds follow it.
    """
    if len(due) < HOLD_S:
        return None
    excess = np.concatenate([[0.0], np.cumsum(good - least * due)])
    holds = excess[WINDOW_S:] - excess[:-WINDOW_S] >= -_ROUNDING * max(1, int(due.sum()))
    # Consecutive windows that together cover the time to hold.
    needed = HOLD_S - WINDOW_S + 1
    held = np.concatenate([[0], np.cumsum(holds)])
    found = np.flatnonzero(held[needed:] - held[:-needed] == needed)
    return int(found[0]) if len(found) else None


def debt(beyond: int, due: int, *, usual_share: float, rate: float) -> tuple[float, float]:
    """Return the SLO debt: the requests beyond the SLO that exceed the baseline's share, and the
    seconds in which the baseline's rate makes so many requests due.

    `beyond` of `due` requests missed the SLO; `usual_share` is the share of misses before.
    """
    requests = max(0.0, beyond - usual_share * due)
    return requests, requests / rate if rate else 0.0


def longest_gap(moments: NDArray[np.int64], *, begin: int, end: int) -> int:
    """Return the longest time without a moment that overlaps [begin, end), in the same unit.

    `moments` are in no particular order. A gap may begin before `begin`; a gap that is open at
    `end` ends there. Without an earlier moment, the first gap begins at `begin`.
    """
    ordered = np.sort(moments[moments < end])
    place = int(np.searchsorted(ordered, begin, side="right"))
    first = ordered[place - 1] if place else begin
    edges = np.concatenate([[first], ordered[place:], [end]])
    return int(np.diff(edges).max())


SECOND = 10**9
GAP_BIN_NS = 10**6
"""Resolution of gaps between tokens."""
_BINS_PER_S = SECOND // GAP_BIN_NS
SLOWER = 1.25
"""Without an SLO on first tokens, their limit is the baseline's p95 times this."""
MAX_BINS = 600
"""Maximum bins of a plot. Their width is a whole number of seconds."""
_TOKEN_COLUMNS = ("first_token_wall_ns", "second_token_wall_ns")
_UNCONNECTED = (ErrorKind.DNS, ErrorKind.CONNECT, ErrorKind.TLS)
_BROKEN = (
    ErrorKind.SEND,
    ErrorKind.NO_RESPONSE,
    ErrorKind.DISCONNECTED,
    ErrorKind.STREAM_RESET,
    ErrorKind.PROTOCOL,
)
_ENDED_BY_SERVER = (ErrorKind.SERVER, ErrorKind.ABORTED, ErrorKind.MALFORMED)
_UNANSWERED = (Outcome.UNSENT, Outcome.CANCELLED)
_NAMES = tuple(LOST_KINDS)


class Disturbances(NamedTuple):
    """Effects of a run's events on its load."""

    events: tuple[Disturbance, ...]
    counts: DueCounts | None
    """None without any requests."""

    @property
    def lost(self) -> int:
        """Number of lost requests that are also counted as errors."""
        not_errors = ("unsent", "unanswered")
        return sum(
            count
            for each in self.events
            for kind, count in each.lost.items()
            if kind not in not_errors
        )


@dataclass(frozen=True)
class DisturbedLoad:
    """The requests of a phase with events. Shares and latencies exclude clients that may leave
    early, as everywhere (`exclude_abandoned`)."""

    rows: PhaseRows
    clocks: ClockMap
    window: LoadWindow
    slo_ms: float | None
    """SLO's limit for the first token; None if it has none."""
    is_good: Callable[[Chunk], Mask] | None
    """Selects completed requests within the SLO; None: those within the limit for the first
    token."""

    def measure(self, events: Sequence[Event], reports: Sequence[EventReport]) -> Disturbances:
        """Return the effects of each event. An event without a report was not carried out."""
        known = {report.number: report for report in reports}
        of_each = [known.get(number, EventReport(number=number)) for number in range(len(events))]
        found = list(map(self._described, events, of_each))
        ends = [each.begin_s for each in found[1:]] + [self._length_s]
        begins = self._judged_begins(found, of_each, ends)
        free_from_s, measured = self.window.ramp_ns / 1e9, []
        for each, end_s in zip(found, ends, strict=True):
            is_judged = each.begin_s in begins
            done = self._measured(each, free_from_s, end_s, begins) if is_judged else each
            measured.append(done)
            # The baseline of the next event must be a server that has recovered from this one.
            free_from_s = max(free_from_s, done.end_s, done.begin_s + (done.recovery_s or 0.0))
        return Disturbances(tuple(measured), self._counts(measured))

    def _judged_begins(
        self, found: Sequence[Disturbance], reports: Sequence[EventReport], ends: Sequence[float]
    ) -> list[float]:
        """Return the begins of the events that were carried out, with a second before and after."""
        free_from_s, begins = self.window.ramp_ns / 1e9, list[float]()
        for each, report, end_s in zip(found, reports, ends, strict=True):
            has_time = min(each.begin_s - free_from_s, end_s - each.begin_s) >= 1
            if report.begin_wall_ns and has_time:
                begins.append(each.begin_s)
            free_from_s = max(free_from_s, each.end_s)
        return begins

    def _described(self, event: Event, report: EventReport) -> Disturbance:
        """Return the content of the report. A skipped event has its planned time."""
        begin_s, end_s = (
            (wall_ns - self.window.begin_ns) / SECOND if wall_ns else 0.0
            for wall_ns in (report.begin_wall_ns, report.end_wall_ns)
        )
        is_done = bool(report.begin_wall_ns)
        problem = report.problem
        if not problem and not (is_done and report.evidence and report.is_over):
            problem = "the runner has not reported it"
        return Disturbance(
            do=event.do,
            what=report.what,
            begin_s=begin_s if is_done else event.at / SECOND,
            end_s=max(begin_s, end_s) if is_done else event.at / SECOND,
            is_verified=not problem,
            evidence=report.evidence,
            problem=problem,
        )

    @property
    def _length_s(self) -> float:
        return (self.window.sent_until_ns - self.window.begin_ns) / SECOND

    def _due(self, chunk: Chunk) -> Times:
        return self.clocks.to_timing(chunk["due_wall_ns"], chunk["worker"])

    def _wall_ns(self, at_s: float) -> int:
        return self.window.begin_ns + round(at_s * SECOND)

    def _measured(
        self, event: Disturbance, free_from_s: float, end_s: float, begins: Sequence[float]
    ) -> Disturbance:
        """Return the effects of an event; `begins` are those of all judged events."""
        begin_ns, end_ns = self._wall_ns(event.begin_s), self._wall_ns(end_s)
        before_s = int(min(BASELINE_S, event.begin_s - free_from_s))
        after_s = (end_ns - begin_ns) // SECOND
        if before_s < 1 or after_s < 1:
            return event
        limit_ms, source = self._limit(begin_ns, before_s)
        seen = _Seconds(begin_ns, end_ns, before_s, is_first=event.begin_s == begins[0])
        if later := [at_s for at_s in begins if at_s > event.begin_s]:
            seen.next_ns = self._wall_ns(later[0])
        for chunk in self.rows.chunks():
            self._add(seen, chunk, limit_ms)
        begin_bin, end_bin = begin_ns // GAP_BIN_NS, end_ns // GAP_BIN_NS
        first_bin = begin_bin - before_s * _BINS_PER_S
        # The last token before the baseline starts its first gap.
        tokens = self._tokens[np.searchsorted(self._tokens, first_bin - _BINS_PER_S) :]
        has_tokens = bool(len(tokens))
        rate = seen.all_before / before_s
        requests, seconds = debt(
            int((seen.due - seen.good).sum()) + seen.lost_in_flight,
            int(seen.due.sum()) + seen.lost_in_flight,
            usual_share=1 - seen.good_before / max(1, seen.due_before),
            rate=rate,
        )
        usual = seen.completed_before / max(1, seen.due_before)
        lost = zip(_NAMES, seen.lost.tolist(), strict=True)
        # The end may cut the last second short.
        due, completed, within = (
            counts[:after_s] for counts in (seen.due, seen.completed, seen.within)
        )
        return replace(
            event,
            judged_s=float(after_s),
            baseline_s=float(before_s),
            baseline_rate=rate,
            lost={name: count for name, count in lost if count},
            longest_gap_s=longest_gap(tokens, begin=begin_bin, end=end_bin) / 1e3
            if has_tokens
            else None,
            usual_gap_s=longest_gap(tokens, begin=first_bin, end=begin_bin) / 1e3
            if has_tokens
            else None,
            throughput_recovery_s=_seconds(
                recovered_second(completed, due, least=RECOVERED_SHARE * usual)
            ),
            latency_recovery_s=_seconds(recovered_second(within, due, least=RECOVERED_SHARE)),
            limit_ms=limit_ms,
            limit_source=source,
            debt_requests=requests,
            debt_s=seconds,
        )

    def _limit(self, begin_ns: int, before_s: int) -> tuple[float, str]:
        """Return the limit for the first token: the SLO's, or one from the baseline's p95."""
        if self.slo_ms is not None:
            return self.slo_ms, "slo"
        values = []
        for chunk in map(exclude_abandoned, self.rows.chunks()):
            due = self._due(chunk)
            is_before = (due >= begin_ns - before_s * SECOND) & (due < begin_ns)
            chosen = chunk.where(is_before & (chunk["outcome"] == Outcome.COMPLETED))
            if chosen.rows:
                values.append(_first_ms(chosen))
        if not values:
            return 0.0, "baseline"
        return SLOWER * float(np.percentile(np.concatenate(values), 95)), "baseline"

    def _add(self, seen: "_Seconds", chunk: Chunk, limit_ms: float) -> None:
        """Count the requests of a chunk by the second in which they were due."""
        due, outcome = self._due(chunk), chunk["outcome"]
        end = self.clocks.to_timing(chunk["end_wall_ns"], chunk["worker"])
        completed = outcome == Outcome.COMPLETED
        has_failed = ~completed & (outcome != Outcome.ABANDONED)
        within = completed & (_first_ms(chunk) <= limit_ms)
        good = within if self.is_good is None else completed & self.is_good(chunk)
        seconds = (due - seen.begin_ns) // SECOND
        # A request is lost to one event. A broken request is lost to the last event before its end,
        # an unanswered one to the event after which it was due.
        breaks = has_failed & ~np.isin(outcome, _UNANSWERED) & (chunk["error"] != ErrorKind.TIMEOUT)
        is_later = breaks & (end >= seen.next_ns)
        is_after = (seconds >= 0) & (due < seen.end_ns) & ~is_later
        in_flight = has_failed & (seconds < 0) & (end >= seen.begin_ns)
        is_own = in_flight & ~is_later & (breaks | seen.is_first)
        # The verdict subtracts these from the errors, which include those of all clients.
        is_lost = is_own | (is_after & has_failed)
        seen.lost += np.bincount(lost_kinds(chunk.where(is_lost)), minlength=len(_NAMES))
        waits = ~chunk["is_abandoning"]
        in_flight, is_own, is_after = in_flight & waits, is_own & waits, is_after & waits
        is_before = waits & (seconds >= -seen.before_s) & (seconds < 0)
        is_usual = is_before & ~in_flight
        seen.all_before += int(np.count_nonzero(is_before))
        seen.due_before += int(np.count_nonzero(is_usual))
        seen.completed_before += int(np.count_nonzero(is_usual & completed))
        seen.good_before += int(np.count_nonzero(is_usual & good))
        places = seconds[is_after]
        for counts, mask in (
            (seen.due, None),
            (seen.completed, completed),
            (seen.within, within),
            (seen.good, good),
        ):
            chosen = places if mask is None else places[mask[is_after]]
            counts += np.bincount(chosen, minlength=len(counts))
        seen.lost_in_flight += int(np.count_nonzero(is_own))

    @functools.cached_property
    def _tokens(self) -> NDArray[np.int64]:
        """Distinct sorted times of tokens of completed requests, in `GAP_BIN_NS`."""
        found = [np.empty(0, dtype=np.int64)]
        for chunk in self.rows.chunks(Population.COMPLETED):
            columns = (*(chunk[name] for name in _TOKEN_COLUMNS), last_content(chunk))
            times = [self.clocks.to_timing(column, chunk["worker"]) for column in columns]
            found.append(np.unique(np.concatenate(times) // GAP_BIN_NS))
        return np.unique(np.concatenate(found))

    def _counts(self, events: Sequence[Disturbance]) -> DueCounts | None:
        """Return the requests by due time, for a plot."""
        length_s = self._length_s
        limit_ms = next((each.limit_ms for each in events if each.judged_s), 0.0)
        if not length_s or not limit_ms:
            return None
        width_s = int(-(-length_s // MAX_BINS))
        bins = max(1, int(-(-length_s // width_s)))
        rates = [np.zeros(bins, dtype=np.int64) for _ in range(3)]
        for chunk in map(exclude_abandoned, self.rows.chunks()):
            places = (self._due(chunk) - self.window.begin_ns) // (width_s * SECOND)
            places = np.clip(places, 0, bins - 1)
            completed = chunk["outcome"] == Outcome.COMPLETED
            good = _first_ms(chunk) <= limit_ms if self.is_good is None else self.is_good(chunk)
            within = completed & good
            for rate, chosen in zip(
                rates, (places, places[completed], places[within]), strict=True
            ):
                rate += np.bincount(chosen, minlength=bins)
        due, done, good = ((rate / width_s).tolist() for rate in rates)
        return DueCounts(
            width_s=float(width_s), due_per_s=due, completed_per_s=done, within_per_s=good
        )


class _Seconds:
    """Counts of the requests of a baseline, and of each second after an event."""

    def __init__(self, begin_ns: int, end_ns: int, before_s: int, *, is_first: bool) -> None:
        self.begin_ns, self.end_ns, self.before_s = begin_ns, end_ns, before_s
        self.is_first = is_first
        self.next_ns = np.iinfo(np.int64).max
        """Begin of the next judged event."""
        bins = -(-(end_ns - begin_ns) // SECOND)
        self.all_before = self.due_before = self.completed_before = self.good_before = 0
        """Requests of the baseline: all of them, then without those in flight at the event."""
        self.due, self.completed, self.within, self.good = (_zeros(bins) for _ in range(4))
        self.lost = _zeros(len(_NAMES))
        self.lost_in_flight = 0
        """Requests in flight at the event that were lost. They were due before the event."""


def _zeros(count: int) -> Counts:
    return np.zeros(count, dtype=np.int64)


def _seconds(found: int | None) -> float | None:
    return None if found is None else float(found)


def _first_ms(chunk: Chunk) -> Floats:
    """Return the time from due to first token, or to the last byte if the response is not a stream;
    NaN without one."""
    first = np.where(chunk["is_streamed"], chunk["first_token_wall_ns"], last_content(chunk))
    found: Floats = (first - chunk["due_wall_ns"]) / 1e6
    found[first == 0] = np.nan
    return found


def lost_kinds(chunk: Chunk) -> NDArray[np.int64]:
    """Return the kind of each lost request as an index into `LOST_KINDS`."""
    error, outcome = chunk["error"], chunk["outcome"]
    has_token = chunk["is_streamed"] & (chunk["first_token_wall_ns"] != 0)
    is_broken = np.isin(error, _BROKEN)
    rules: tuple[tuple[str, Mask], ...] = (
        ("unsent", outcome == Outcome.UNSENT),
        ("unanswered", outcome == Outcome.CANCELLED),
        ("timeout", error == ErrorKind.TIMEOUT),
        ("cut", has_token & (is_broken | np.isin(error, _ENDED_BY_SERVER))),
        ("reset", is_broken),
        ("refused", np.isin(error, _UNCONNECTED)),
        ("5xx", (error == ErrorKind.STATUS) & (chunk["status"] >= 500)),
    )
    places = [_NAMES.index(name) for name, _ in rules]
    found: NDArray[np.int64] = np.select(
        [mask for _, mask in rules], places, default=_NAMES.index("other")
    ).astype(np.int64)
    return found


def event_scalars(events: Sequence[Disturbance]) -> dict[str, float]:
    """Return the metrics of a run's events by tag, without times that were not reached."""
    judged = [each for each in events if each.judged_s]
    if not judged:
        return {}
    found = {
        "event_lost_requests": float(sum(each.lost_count for each in judged)),
        "event_slo_debt": sum(each.debt_s for each in judged),
    }
    gaps = [each.longest_gap_s for each in judged if each.longest_gap_s is not None]
    if gaps:
        found["event_token_gap"] = max(gaps)
    recoveries = [each.recovery_s for each in judged]
    known = [each for each in recoveries if each is not None]
    if len(known) == len(recoveries):
        found["event_recovery_time"] = max(known)
    return found
