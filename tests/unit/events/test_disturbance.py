"""The effect of an event on an open loop, in exact numbers."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.events.disturbance import DisturbedLoad, event_scalars
from aiperf_svc.core.events.report import Disturbance, EventReport
from aiperf_svc.core.results import slo
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow, PhaseTimes
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run
from tests.support.fake_run import MS, START_NS

SECOND = 1_000 * MS
RATE, LENGTH_S, KILLED_S = 20, 120, 60
LOAD: dict[str, Any] = {"request_rate": RATE, "duration": f"{LENGTH_S}s"}
KILL = {"at": "60s", "do": "kill"}


def report(**fields: Any) -> EventReport:
    """Return a report of a verified event at 60 s."""
    defaults: dict[str, Any] = {
        "number": 0,
        "what": "process 7 (server)",
        "evidence": "gone",
        "is_over": True,
    }
    return EventReport(**(defaults | {"begin_wall_ns": START_NS + KILLED_S * SECOND} | fields))


def steady_load() -> Rows:
    """Return a request every 50 ms, whose tokens arrive 20, 25, … 65 ms after it is due."""
    due = START_NS + np.arange(RATE * LENGTH_S, dtype=np.int64) * (SECOND // RATE)
    first = due + 20 * MS
    return fake_run.make_rows(
        len(due),
        due_wall_ns=due,
        start_wall_ns=due,
        sent_wall_ns=due,
        first_token_wall_ns=first,
        second_token_wall_ns=first + 5 * MS,
        last_token_wall_ns=first + 45 * MS,
        end_wall_ns=first + 45 * MS,
        output_tokens=10,
        chunks=10,
    )


def fail(rows: Rows, chosen: Any, error: ErrorKind, *, status: int = 0) -> None:
    """Make requests fail without a token."""
    rows["outcome"][chosen], rows["error"][chosen] = Outcome.ERRORED, error
    rows["status"][chosen] = status
    for name in ("first", "second", "last"):
        rows[f"{name}_token_wall_ns"][chosen] = 0


def killed_load() -> Rows:
    """Return the steady load with 12 s of refused connections and one stream that is cut off."""
    rows = steady_load()
    # Due at 59.95 s, with its first token at 59.97 s. It should have ended at 60.015 s.
    cut = RATE * KILLED_S - 1
    rows["outcome"][cut], rows["error"][cut] = Outcome.ERRORED, ErrorKind.DISCONNECTED
    rows["last_token_wall_ns"][cut] = rows["end_wall_ns"][cut] = START_NS + 60_000 * MS
    fail(rows, slice(RATE * KILLED_S, RATE * (KILLED_S + 12)), ErrorKind.CONNECT)
    fail(rows, slice(RATE * (KILLED_S + 12), RATE * (KILLED_S + 13)), ErrorKind.STATUS, status=503)
    return rows


def measure(rows: Rows, *reports: EventReport, **more: Any) -> tuple[Disturbance, ...]:
    config = fake_run.config(**({**LOAD, "events": [KILL]} | more))
    stop_ns = START_NS + LENGTH_S * SECOND
    window = LoadWindow(
        begin_ns=START_NS, ramp_ns=0, stop_ns=stop_ns, sent_until_ns=stop_ns, end_ns=stop_ns
    )
    phase = PhaseRows(fake_run.columns_of(rows))
    is_good = partial(slo.is_good, limits=config.slo.goodput) if config.slo.goodput else None
    limit_ms = slo.first_token_limit_ms(config.slo)
    load = DisturbedLoad(phase, ClockMap(), window, limit_ms, is_good)
    return load.measure(config.events, reports or (report(),)).events


def summary(rows: Rows, *reports: EventReport) -> Summary:
    config = fake_run.config(**LOAD, events=[KILL])
    times = PhaseTimes(start_wall_ns=START_NS, stop_wall_ns=START_NS + LENGTH_S * SECOND)
    return fake_run.results(rows, config=config, profiling=times, events=reports)


def test_outage_in_exact_numbers() -> None:
    (found,) = measure(killed_load())
    assert (found.baseline_s, found.baseline_rate, found.judged_s) == (60.0, 20.0, 60.0)
    assert found.lost == {"refused": 240, "5xx": 20, "cut": 1}
    assert found.throughput_recovery_s == found.latency_recovery_s == 13.0
    # The last token before arrived at 59.965 s, and the first one after at 73.02 s.
    assert found.longest_gap_s == pytest.approx(13.055)
    assert found.usual_gap_s == pytest.approx(0.045, abs=0.011)
    assert (found.limit_ms, found.limit_source) == (25.0, "baseline")
    assert found.debt_requests == 261.0
    assert found.debt_s == pytest.approx(261 / 20)


def test_stall_without_a_loss_shows_in_first_tokens() -> None:
    rows = steady_load()
    stalled = slice(RATE * KILLED_S, RATE * (KILLED_S + 5))
    resumed_ns = START_NS + 65 * SECOND
    for name in ("first_token", "second_token", "last_token", "end"):
        times = rows[f"{name}_wall_ns"]
        times[stalled] = resumed_ns + (times[stalled] - rows["due_wall_ns"][stalled])
    end_ns = START_NS + 65 * SECOND
    (found,) = measure(rows, report(end_wall_ns=end_ns), events=[KILL | STALL])
    assert found.lost == {}
    assert found.throughput_recovery_s == 0.0
    assert found.latency_recovery_s == 5.0
    assert found.recovery_s == 5.0
    assert (found.begin_s, found.end_s) == (60.0, 65.0)
    assert found.debt_requests == 100.0


STALL = {"do": "stall", "duration": "5s"}


def test_slo_replaces_the_limit_of_the_baseline() -> None:
    (found,) = measure(killed_load(), slo={"goodput": {"time_to_first_token": "300ms"}})
    assert (found.limit_ms, found.limit_source) == (300.0, "slo")
    objective = {"metric": "time_to_first_token", "stat": "p99", "max": "400ms"}
    (found,) = measure(killed_load(), slo={"objectives": [objective]})
    assert (found.limit_ms, found.limit_source) == (400.0, "slo")


def test_next_event_ends_the_judgement() -> None:
    later = {"at": "100s", "do": "kill"}
    rows = killed_load()
    fail(rows, slice(RATE * 100, RATE * 102), ErrorKind.TIMEOUT)
    second = report(number=1, begin_wall_ns=START_NS + 100 * SECOND)
    first, second_found = measure(rows, report(), second, events=[KILL, later])
    assert (first.judged_s, first.throughput_recovery_s) == (40.0, None)
    # From 73 s on, only 27 s remain before the next event, too few to hold for 30 s.
    assert first.recovery_text(first.recovery_s) == "> 40 s"
    assert (second_found.baseline_s, second_found.judged_s) == (40.0, 20.0)
    assert second_found.lost == {"timeout": 40}


def test_request_is_lost_to_one_of_several_events() -> None:
    rows, second = steady_load(), report(number=1, begin_wall_ns=START_NS + 100 * SECOND)
    cut, late = slice(RATE * 100 - 10, RATE * 100), slice(RATE * 90, RATE * 91)
    fail(rows, cut, ErrorKind.DISCONNECTED)
    rows["end_wall_ns"][cut] = START_NS + 100 * SECOND
    fail(rows, late, ErrorKind.TIMEOUT)
    rows["end_wall_ns"][late] = START_NS + 105 * SECOND
    first, later = measure(rows, report(), second, events=[KILL, KILL | {"at": "100s"}])
    assert (first.lost, first.debt_requests) == ({"timeout": RATE}, RATE)
    assert (later.lost, later.debt_requests) == ({"reset": 10}, 10)


def test_baseline_begins_after_the_previous_events_recovery() -> None:
    rows, later = killed_load(), {"at": "105s", "do": "kill"}
    second = report(number=1, begin_wall_ns=START_NS + 105 * SECOND)
    first, second_found = measure(rows, report(), second, events=[KILL, later])
    assert first.recovery_s == 13.0
    assert second_found.baseline_s == 32.0
    assert second_found.usual_gap_s == pytest.approx(0.045, abs=0.011)


def test_clients_that_leave_on_purpose_are_not_lost() -> None:
    rows = steady_load()
    left = slice(RATE * 70, RATE * 80)
    rows["outcome"][left], rows["flags"][left] = Outcome.ABANDONED, Flag.ABANDONS
    (found,) = measure(rows)
    assert (found.lost, found.recovery_s, found.debt_requests) == ({}, 0.0, 0.0)


def test_shares_leave_out_clients_that_may_leave() -> None:
    rows = steady_load()
    leaving = np.arange(len(rows)) % 2 == 0
    rows["flags"][leaving] = Flag.ABANDONS
    # Only fast requests of such clients complete, and they would lower the limit.
    rows["first_token_wall_ns"][leaving] -= 19 * MS
    fail(rows, slice(RATE * KILLED_S, RATE * (KILLED_S + 2)), ErrorKind.CONNECT)
    (found,) = measure(rows)
    assert (found.baseline_rate, found.limit_ms) == (RATE / 2, 25.0)
    assert (found.debt_requests, found.debt_s) == (RATE, 2.0)
    assert found.lost == {"refused": 2 * RATE}, "errors count those of all clients"


def test_verified_event_leaves_the_run_valid() -> None:
    found = summary(killed_load(), report())
    check = {each.check: each for each in found.verdict.checks}
    assert check["events"].severity is Severity.VALID
    # A tenth of the requests failed, as requested.
    assert check["errors"].severity is Severity.DEGRADED
    assert found.scalars["event_lost_requests"] == 261
    assert found.scalars["event_recovery_time"] == 13.0
    assert found.due_counts is not None
    assert found.due_counts.width_s == 1.0
    assert found.due_counts.due_per_s == [20.0] * LENGTH_S
    assert found.due_counts.completed_per_s[58:75] == [20.0, 19.0, *[0.0] * 13, 20.0, 20.0]


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ((), "number 1 (kill): the runner has not reported it"),
        ((report(is_over=False),), "number 1 (kill): the runner has not reported it"),
        ((report(evidence=""),), "number 1 (kill): the runner has not reported it"),
        ((report(problem="no such process: 7"),), "number 1 (kill): no such process: 7"),
    ],
)
def test_event_without_proof_makes_the_run_invalid(
    reports: tuple[EventReport, ...], text: str
) -> None:
    verdict = summary(steady_load(), *reports).verdict
    assert verdict.verdict is Severity.INVALID
    (reason,) = (each for each in verdict.reasons if each.check == "events")
    assert text in reason.text


def test_failed_event_is_not_measured() -> None:
    (found,) = measure(steady_load(), EventReport(number=0, problem="no such process"))
    assert (found.begin_s, found.judged_s, found.lost) == (60.0, 0.0, {})
    assert event_scalars([found]) == {}


@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_a_slow_reference(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = steady_load()
    failed = random.random(len(rows)) < 0.1
    fail(rows, failed, ErrorKind.TIMEOUT)
    rows["end_wall_ns"][failed] += random.integers(0, 20 * SECOND, failed.sum())
    (found,) = measure(rows)
    begin = START_NS + KILLED_S * SECOND
    lost = due = good = usual_due = usual_good = 0
    for row in rows:
        is_after, is_lost = row["due_wall_ns"] >= begin, row["outcome"] == Outcome.ERRORED
        if is_after or (is_lost and row["end_wall_ns"] >= begin):
            due, lost, good = due + 1, lost + is_lost, good + (not is_lost)
        else:
            usual_due, usual_good = usual_due + 1, usual_good + (not is_lost)
    assert found.lost == {"timeout": lost}
    share = 1 - usual_good / usual_due
    assert found.debt_requests == pytest.approx(max(0.0, due - good - share * due))
