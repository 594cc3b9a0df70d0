"""Types of a run's events: the runner's report of each, and its effects on the load.

This module only has types, which the runner imports without NumPy.
"""

from collections.abc import Sequence

import msgspec

from aiperf_svc.domain.number_text import significant
from aiperf_svc.domain.shown_table import ShownTable

LOST_KINDS = {
    "refused": "no connection: refused, unreachable, or not accepted in time",
    "reset": "the connection broke before the first token",
    "timeout": "no complete response within the request timeout",
    "5xx": "a response with status 500 or above",
    "cut": "the response ended after the first token and before its end",
    "unanswered": "no complete response by the end of the run's grace period",
    "unsent": "due but not sent before the load's end",
    "other": "any other error",
}
"""Kinds of lost requests, and their meanings."""


class EventReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runner's report of one event. Times are by the clock of the run's records manager."""

    number: int
    """Its index in `events` of the config."""
    what: str = ""
    """Name of the disturbed object."""
    begin_wall_ns: int = 0
    """Time just before it was carried out; 0: not carried out."""
    end_wall_ns: int = 0
    """Time at which it was undone; 0: not yet, or nothing to undo."""
    evidence: str = ""
    """Evidence that it happened and was undone; empty: not verified."""
    problem: str = ""
    """Why it was not carried out, verified or undone."""
    is_over: bool = False
    """True if the report is final."""


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of an event on the load. Times are in seconds; `begin_s` and `end_s` count from the
    start of the load. Requests belong to the time at which they were due."""

    do: str
    """Kind of the event."""
    what: str
    begin_s: float
    end_s: float
    """When it was undone; its begin if it is not undone."""
    is_verified: bool
    evidence: str
    problem: str
    judged_s: float = 0.0
    """Time from its begin to the next event or the end of the load, over which it is judged."""
    baseline_s: float = 0.0
    """Length of its baseline, the time before it."""
    baseline_rate: float = 0.0
    """Due requests per second in the baseline, of clients that wait for the end."""
    lost: dict[str, int] = {}
    """Requests without a whole response, by kind: those due since its begin, and those in flight at
    its begin. With several events, a broken request is lost to the last event before its end, an
    unanswered one to the event after which it was due."""
    longest_gap_s: float | None = None
    """Longest time without a token of a completed request. The first, second and last token of each
    request are known. None without a measurement."""
    usual_gap_s: float | None = None
    """The same in the baseline."""
    throughput_recovery_s: float | None = None
    """Time from its begin until the share of completed requests stays at 95% of the baseline's;
    None: not reached in `judged_s`."""
    latency_recovery_s: float | None = None
    """Time from its begin until 95% of the due requests stay within `limit_ms`; None: not reached
    in `judged_s`."""
    limit_ms: float = 0.0
    """Limit for the time from due to first token, or to the last one without a stream."""
    limit_source: str = ""
    """Source of this limit: `slo` or `baseline`."""
    debt_requests: float = 0.0
    """Requests beyond the SLO that exceed the baseline's share."""
    debt_s: float = 0.0
    """The same in seconds of the baseline's rate."""

    @property
    def lost_count(self) -> int:
        return sum(self.lost.values())

    @property
    def recovery_s(self) -> float | None:
        """Time after which both throughput and latency have recovered; None: not reached."""
        if self.throughput_recovery_s is None or self.latency_recovery_s is None:
            return None
        return max(self.throughput_recovery_s, self.latency_recovery_s)

    @property
    def summary(self) -> str:
        """How it was verified, and its baseline, on one line."""
        proof = f"verified: {self.evidence}" if self.is_verified else self.problem
        if not self.judged_s:
            return f"{self.do}: {proof}"
        source = "the SLO" if self.limit_source == "slo" else "1.25 x the p95 before it"
        limit = f"{significant(self.limit_ms)} ms ({source})"
        return (
            f"{self.do}: {proof}; judged for {self.judged_s:.0f} s, compared with the "
            f"{self.baseline_s:.0f} s before it; limit for the first token {limit}"
        )

    def recovery_text(self, recovery_s: float | None) -> str:
        return f"> {self.judged_s:.0f} s" if recovery_s is None else f"{recovery_s:.0f} s"


class DueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by due time from the start of the load, as a rate in each bin of
    `width_s`."""

    width_s: float
    due_per_s: list[float]
    completed_per_s: list[float]
    within_per_s: list[float]
    """Requests within the SLO, or within the limit of the first event."""


def event_tables(events: Sequence[Disturbance]) -> list[ShownTable]:
    """Return a row for each event, and notes on how it was verified."""
    rows = []
    for each in events:
        begin = f"{each.begin_s:.1f} s"
        if each.end_s > each.begin_s:
            begin += f" to {each.end_s:.1f} s"
        if not each.judged_s:
            rows.append([begin, each.do, each.what, *["–"] * 5])
            continue
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in each.lost.items())
        gap = "–" if each.longest_gap_s is None else f"{each.longest_gap_s:.2f} s"
        usual = "" if each.usual_gap_s is None else f" (before: {each.usual_gap_s:.2f} s)"
        row = [
            begin,
            each.do,
            each.what,
            kinds or "0",
            gap + usual,
            each.recovery_text(each.throughput_recovery_s),
            each.recovery_text(each.latency_recovery_s),
            f"{each.debt_s:.1f} s",
        ]
        rows.append(row)
    title = "Events, by due time of the requests"
    columns = (
        *("at", "event", "of", "lost requests", "longest gap", "throughput recovers"),
        *("first token recovers", "SLO debt"),
    )
    notes = [each.summary for each in events if each.is_verified]
    alerts = [each.summary for each in events if not each.is_verified]
    return [ShownTable(title, columns, rows, notes, alerts, texts=range(len(columns)))]
