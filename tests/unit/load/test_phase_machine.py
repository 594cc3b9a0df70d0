"""The stages of a phase, event by event."""

import random
from typing import Any

import numpy as np
import pytest

from aiperf_svc.config.load_shapes import Arrival, Bursts, UserCentric
from aiperf_svc.core.control.control_intervals import grant_interval_s
from aiperf_svc.core.load.credit_ledger import LEAST_LOOKAHEAD
from aiperf_svc.core.load.phase_machine import (
    ANNOUNCE_NS,
    CONNECTS_PER_S,
    GRANT_EVERY_S,
    MOST_SET_BACK_NS,
    NEAR_ANNOUNCE_NS,
    NEAR_ANNOUNCE_PER_WORKER_NS,
    REFILL_S,
    SETTLE_EVERY_S,
    SETTLE_NS,
    AnnouncePhase,
    GrantCredits,
    Instruction,
    PhaseMachine,
    PhaseRequested,
    PhaseStage,
    PublishReport,
    ReportClockSetBack,
    ReportMissingCredits,
    StopRequested,
    StopWorkers,
    TimePassed,
    Wait,
    WorkerLost,
)
from aiperf_svc.core.load.phase_plan import PhasePlan
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.credits import CreditsReturned
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts

P = Phase.PROFILING
NOW = 1_700_000_000 * 10**9
MS = 10**6
S = 10**9
STEP = ((0, 10.0), (S, 10.0), (S, 1.0), (9 * S, 1.0))
BURSTS = Bursts.model_validate({"rate": 100, "length": "100ms", "every": "1s"})


def machine_of(*workers: str, **plan: Any) -> PhaseMachine:
    """With one user a worker unless the plan says otherwise."""
    given = {"phase": P, "credits": None, "concurrency": len(workers)}
    return PhaseMachine(PhasePlan(**(given | plan)), workers)


def started(*workers: str, **plan: Any) -> PhaseMachine:
    machine = machine_of(*workers, **plan)
    machine.handle(PhaseRequested(NOW))
    return machine


def at_rate(rate: float, *workers: str, **plan: Any) -> PhaseMachine:
    """An open loop with constant gaps."""
    arrival = Arrival(pattern="constant")
    return started(*workers, request_rate=rate, concurrency=0, arrival=arrival, **plan)


def returned(worker: str, *, is_idle: bool = True, **counts: int) -> CreditsReturned:
    return CreditsReturned(
        "run", worker, 1, counts=WorkerCounts(P, **counts), is_idle=is_idle, taken_mono_ns=NOW
    )


def refill(workers: int) -> Wait:
    return Wait(REFILL_S, ends_on_news=True, then_s=grant_interval_s(workers))


def settle(workers: int) -> Wait:
    return Wait(SETTLE_EVERY_S, ends_on_news=True, then_s=grant_interval_s(workers))


def due(*times_ns: int) -> bytes:
    return np.array(times_ns, dtype="<i8").tobytes()


def test_a_closed_loop_with_a_count_ends_when_all_are_returned() -> None:
    machine = machine_of("a", "b", credits=3, concurrency=2)
    start = NOW + ANNOUNCE_NS + S // CONNECTS_PER_S
    said = machine.handle(PhaseRequested(NOW))
    assert said == [AnnouncePhase(("a", "b"), start, 0), PublishReport()]
    said = machine.handle(TimePassed(NOW + 1))
    assert said == [GrantCredits("a", 0, 1), GrantCredits("b", 1, 1), refill(2)]
    assert machine.handle(returned("a", completed=1)) == []
    said = machine.handle(TimePassed(start))
    assert said == [GrantCredits("a", 2, 1), settle(2)]
    machine.handle(returned("a", completed=2))
    machine.handle(returned("b", errored=1))
    assert machine.handle(TimePassed(start + S)) == [PublishReport()]
    assert machine.has_ended
    assert machine.report() == PhaseReport(P, start, granted=3)


def test_a_phase_with_many_users_is_announced_earlier() -> None:
    machine = machine_of("a", "b", concurrency=3 * CONNECTS_PER_S)
    machine.handle(PhaseRequested(NOW))
    assert machine.start_wall_ns == NOW + ANNOUNCE_NS + 3 * S // 2


def test_where_the_target_is_near_a_phase_is_announced_later_but_by_the_number_of_workers() -> None:
    near = started("a", "b", concurrency=0, is_target_near=True)
    assert near.start_wall_ns == NOW + NEAR_ANNOUNCE_NS + 2 * NEAR_ANNOUNCE_PER_WORKER_NS
    many = started(*(f"worker-{n}" for n in range(99)), concurrency=0, is_target_near=True)
    assert many.start_wall_ns == NOW + ANNOUNCE_NS


def test_a_phase_starts_with_those_of_other_runs_unless_that_is_too_soon() -> None:
    for given, start in ((NOW + 3 * S, NOW + 3 * S), (NOW + 1, NOW + ANNOUNCE_NS)):
        machine = machine_of("a", concurrency=0, duration_ns=S)
        said = machine.handle(PhaseRequested(NOW, given))
        assert said == [AnnouncePhase(("a",), start, start + S), PublishReport()]


def test_a_replay_deals_its_times_out_and_ends_with_the_last() -> None:
    times = [0, 240, 260, 900]
    schedule = due(*(time * MS for time in times))
    machine = started("a", "b", concurrency=0, schedule_ns=schedule, credits=4)
    start = NOW + ANNOUNCE_NS
    assert machine.handle(TimePassed(start)) == [
        GrantCredits("a", 0, 1, 2, due(start)),
        GrantCredits("b", 1, 1, 2, due(start + 240 * MS)),
        Wait(GRANT_EVERY_S),
    ]
    said = machine.handle(TimePassed(start + 850 * MS))
    assert said == [
        GrantCredits("a", 2, 1, 2, due(start + 260 * MS)),
        GrantCredits("b", 3, 1, 2, due(start + 900 * MS)),
        settle(2),
    ]
    machine.handle(returned("a", completed=2))
    machine.handle(returned("b", completed=2))
    machine.handle(TimePassed(start + S))
    report = machine.report()
    assert (report.granted, report.scheduled) == (4, 4)
    assert report.scheduled_rate == pytest.approx(3 / 0.9)


def test_stages_are_granted_at_their_rates_and_are_what_was_planned() -> None:
    points = ((0, 10.0), (S, 10.0), (S, 20.0), (2 * S, 20.0))
    arrival = Arrival(pattern="constant")
    machine = started("a", concurrency=0, rate_points=points, arrival=arrival, duration_ns=2 * S)
    first = machine.handle(TimePassed(machine.start_wall_ns + S))
    assert isinstance(first[0], GrantCredits)
    # 10 in the first second, and 5 of the next 250 ms.
    assert first[0].count == 15
    assert machine.report().scheduled == 30
    assert machine.report().scheduled_rate == pytest.approx(15)


@pytest.mark.parametrize(
    ("load", "scheduled", "rate"),
    [
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 5}, 5, 10.0),
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 10}, 10, 10.0),
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 50}, 18, 2.0),
        ({"bursts": BURSTS, "request_rate": 10.0, "credits": 38}, 38, 19.0),
        ({"bursts": BURSTS, "credits": 20}, 20, 10.0),
        ({"bursts": BURSTS, "credits": 20, "duration_ns": 3 * S}, 20, 10.0),
        ({"bursts": BURSTS, "duration_ns": 2 * S}, 20, 10.0),
    ],
)
def test_a_rate_that_changes_was_planned_until_its_number_of_requests(
    load: dict[str, Any], scheduled: int, rate: float
) -> None:
    report = started("a", concurrency=0, **load).report()
    assert (report.scheduled, report.scheduled_rate) == (scheduled, pytest.approx(rate))


def test_users_in_the_middle_of_a_conversation_are_granted_what_is_left_of_it() -> None:
    users = UserCentric(rate=100, users=4)  # a turn each 40 ms
    turns = np.array([5], dtype="<u2").tobytes()
    machine = started("a", "b", concurrency=0, user_centric=users, turns=turns, credits=9)
    start = machine.start_wall_ns
    granted = [g for g in machine.handle(TimePassed(start)) if isinstance(g, GrantCredits)]
    assert [(g.worker, g.first, g.count, g.last_turns) for g in granted] == [
        *(("a", 0, 1, 0), ("b", 1, 1, 1), ("a", 2, 1, 2), ("b", 3, 1, 3)),
        *(("a", 4, 2, 0), ("b", 5, 2, 0)),
    ]
    begins = [np.frombuffer(g.due_wall_ns, dtype="<i8") - start for g in granted]
    assert [int(at[0]) // MS for at in begins[:4]] == [0, 10, 20, 30]
    # The user with one turn left begins anew 40 ms after it, the one with two after 80 ms.
    assert (begins[4] // MS).tolist() == [50, 150]
    assert (begins[5] // MS).tolist() == [100, 200]


def test_a_replay_that_is_stopped_was_planned_until_the_stop() -> None:
    schedule = due(*(time * S for time in range(100)))
    machine = started("a", concurrency=0, schedule_ns=schedule, credits=100, duration_ns=4 * S)
    machine.handle(TimePassed(machine.start_wall_ns))
    assert machine.report().scheduled == 4
    assert machine.report().scheduled_rate == 1.0
    machine.handle(StopRequested())
    machine.handle(TimePassed(machine.start_wall_ns + 2 * S))
    assert machine.report().scheduled == 2


def test_an_open_loop_deals_arrivals_out_in_turn_ahead_of_their_time() -> None:
    machine = at_rate(10, "a", "b", duration_ns=S // 2)
    start = NOW + ANNOUNCE_NS
    assert machine.handle(TimePassed(NOW)) == [Wait(GRANT_EVERY_S)]
    # Granted are those that are due within 250 ms.
    assert machine.handle(TimePassed(start)) == [
        GrantCredits("a", 0, 2, 2, due(start, start + 200 * MS)),
        GrantCredits("b", 1, 1, 2, due(start + 100 * MS)),
        Wait(GRANT_EVERY_S),
    ]
    assert machine.handle(TimePassed(start + 50 * MS)) == [Wait(GRANT_EVERY_S)]
    # The horizon is now the stop, which the arrival at 500 ms does not precede.
    assert machine.handle(TimePassed(start + 400 * MS)) == [
        GrantCredits("b", 3, 1, 2, due(start + 300 * MS)),
        GrantCredits("a", 4, 1, 2, due(start + 400 * MS)),
        settle(2),
    ]
    assert machine.stage is PhaseStage.SETTLING


def test_an_open_loop_with_a_count_grants_no_more_than_that() -> None:
    machine = at_rate(1_000, "a", credits=3)
    start = NOW + ANNOUNCE_NS
    said = machine.handle(TimePassed(start))
    assert said == [
        GrantCredits("a", 0, 3, 1, due(start, start + MS, start + 2 * MS)),
        settle(1),
    ]


def test_only_the_last_conversation_is_cut_short() -> None:
    closed = started("a", "b", credits=2, last_turns=1)
    assert closed.handle(TimePassed(NOW)) == [
        GrantCredits("a", 0, 1),
        GrantCredits("b", 1, 1, last_turns=1),
        settle(2),
    ]
    opened = at_rate(1_000, "a", "b", credits=3, last_turns=2)
    grants = opened.handle(TimePassed(NOW + ANNOUNCE_NS))[:-1]
    assert [g.last_turns for g in grants if isinstance(g, GrantCredits)] == [2, 0]


def test_after_its_duration_a_phase_grants_nothing_and_waits_for_what_is_in_flight() -> None:
    machine = started("a", duration_ns=S, grace_ns=2 * S)
    (grant, _) = machine.handle(TimePassed(NOW))
    assert grant == GrantCredits("a", 0, 1 + LEAST_LOOKAHEAD)
    stop = machine.stop_wall_ns
    machine.handle(returned("a", is_idle=False, completed=60))
    assert machine.handle(TimePassed(stop)) == [settle(1)]
    machine.handle(returned("a", completed=61, revoked=LEAST_LOOKAHEAD - 60))
    assert machine.handle(TimePassed(stop + 1)) == [PublishReport()]
    assert machine.stop_wall_ns == stop


def test_a_duration_that_was_longer_than_its_credits_lasted_is_no_stop() -> None:
    machine = started("a", credits=1, duration_ns=S)
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1))
    machine.handle(TimePassed(NOW + 1))
    assert (machine.has_ended, machine.stop_wall_ns) == (True, 0)


def test_what_live_workers_never_return_is_given_up_after_the_grace_period() -> None:
    machine = started("a", "b", duration_ns=S, grace_ns=2 * S)
    machine.handle(TimePassed(NOW))
    granted = machine.counts()["a"].granted
    machine.handle(returned("a", completed=granted))
    machine.handle(returned("b", is_idle=False, completed=2, cancelled=1))
    last = machine.stop_wall_ns + 2 * S + SETTLE_NS
    assert machine.handle(TimePassed(last)) == [settle(2)]
    assert machine.handle(TimePassed(last + 1)) == [
        ReportMissingCredits("b", granted - 3),
        PublishReport(),
    ]
    assert machine.report().granted_to_lost == {"b": granted}


def test_without_a_duration_a_phase_waits_as_long_as_it_takes() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    assert machine.handle(TimePassed(NOW + 10**6 * S)) == [settle(1)]


def test_a_stop_reaches_the_workers_once_and_is_the_phases_end() -> None:
    machine = started("a", "b", duration_ns=60 * S, ramp_ns=S)
    machine.handle(TimePassed(NOW))
    assert machine.handle(StopRequested()) == []
    stop = machine.start_wall_ns + S
    assert machine.handle(TimePassed(stop)) == [StopWorkers(("a", "b"), stop), settle(2)]
    assert machine.handle(TimePassed(stop + SETTLE_NS)) == [settle(2)]
    start = machine.start_wall_ns
    granted = 2 + 2 * LEAST_LOOKAHEAD
    assert machine.report() == PhaseReport(P, start, stop, S, granted)
    for worker in ("a", "b"):
        granted = machine.counts()[worker].granted
        machine.handle(returned(worker, cancelled=1, revoked=granted - 1))
    assert machine.handle(TimePassed(stop + SETTLE_NS + 1)) == [PublishReport()]


def test_a_stop_after_the_duration_cuts_the_grace_and_not_the_time_of_the_load() -> None:
    machine = started("a", duration_ns=2 * S)
    machine.handle(TimePassed(NOW))
    end = machine.start_wall_ns + 2 * S
    machine.handle(TimePassed(end))
    machine.handle(StopRequested())
    assert machine.handle(TimePassed(end + S)) == [StopWorkers(("a",), end + S), settle(1)]
    assert machine.report().stop_wall_ns == end


def test_a_stop_between_two_requests_ends_the_load_and_its_time() -> None:
    machine = at_rate(1, "a", duration_ns=60 * S)
    begin = machine.start_wall_ns
    machine.handle(TimePassed(begin))
    machine.handle(returned("a", completed=1))
    machine.handle(StopRequested())
    assert machine.handle(TimePassed(begin + S // 2)) == [PublishReport()]
    assert machine.report().stop_wall_ns == begin + S // 2


@pytest.mark.parametrize("plan", [{"schedule_ns": due(0, S), "credits": 2}, {"duration_ns": 9 * S}])
def test_a_stop_before_the_start_leaves_no_time(plan: dict[str, Any]) -> None:
    machine = started("a", **plan)
    machine.handle(StopRequested())
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]
    assert machine.report().stop_wall_ns == machine.start_wall_ns


def test_workers_that_ignore_a_stop_are_given_up() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    machine.handle(StopRequested())
    machine.handle(TimePassed(NOW + S))
    assert machine.handle(TimePassed(NOW + S + SETTLE_NS + 1)) == [
        ReportMissingCredits("a", 1),
        PublishReport(),
    ]


def test_a_phase_that_is_stopped_before_it_grants_ends_at_once() -> None:
    machine = machine_of("a")
    machine.handle(StopRequested())
    machine.handle(PhaseRequested(NOW))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]
    assert (machine.has_ended, machine.report().granted) == (True, 0)


def test_a_lost_worker_gets_no_more_credits_and_does_not_hold_the_phase() -> None:
    machine = started("a", "b", credits=3)
    machine.handle(TimePassed(NOW))
    assert machine.handle(WorkerLost("b")) == []
    machine.handle(returned("a", completed=1))
    assert machine.handle(TimePassed(NOW)) == [GrantCredits("a", 2, 1), settle(1)]
    machine.handle(returned("a", completed=2))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]
    assert machine.report().granted_to_lost == {"b": 1}


def test_a_phase_whose_workers_are_all_lost_ends() -> None:
    machine = started("a", duration_ns=60 * S)
    machine.handle(TimePassed(NOW))
    machine.handle(WorkerLost("a"))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]


def test_what_comes_after_the_end_is_still_in_the_accounts() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1))
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1, requests_sent=2))
    machine.handle(StopRequested())
    machine.handle(WorkerLost("a"))
    assert machine.counts()["a"].requests_sent == 2
    assert machine.report().granted_to_lost == {"a": 1}


def test_an_event_that_does_not_fit_the_stage_is_refused_with_the_story() -> None:
    with pytest.raises(AssertionError, match=r"in profiling: .*planned: TimePassed"):
        machine_of("a").handle(TimePassed(NOW))
    with pytest.raises(AssertionError, match=r"planned: PhaseRequested.*granting: PhaseRequested"):
        started("a").handle(PhaseRequested(NOW))


class _Load:
    """Workers that take what is granted and return it in some order, or never, or are lost."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names = [f"w{i}" for i in range(chance.randrange(1, 5))]
        plan: dict[str, Any] = {"concurrency": chance.randrange(1, 40)}
        if chance.random() < 0.5:
            plan |= {"request_rate": 10 ** chance.uniform(0, 4)}
        if chance.random() < 0.6:
            plan |= {"credits": chance.randrange(1, 500)}
        if chance.random() < 0.6 or "credits" not in plan:
            plan |= {"duration_ns": chance.randrange(1, 3 * S), "grace_ns": S}
        self.machine = machine_of(*self.names, **plan)
        self.held = dict.fromkeys(self.names, 0)
        self.counts = {name: WorkerCounts(P) for name in self.names}
        self.silent = {name for name in self.names if chance.random() < 0.1}
        self.lost: set[str] = set()
        self.is_stopped = False
        self.indexes: list[int] = []
        self.reports = 0

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case GrantCredits(worker=worker, first=first, count=count, stride=stride):
                    assert worker not in self.lost
                    self.held[worker] += count
                    self.indexes += range(first, first + count * stride, stride)
                case StopWorkers():
                    assert not self.is_stopped
                    self.is_stopped = True
                case PublishReport():
                    self.reports += 1

    def work(self, worker: str, *, is_all: bool) -> None:
        """Some of what the worker holds, or all of it, ends in one way or another."""
        held, counts = self.held[worker], self.counts[worker]
        ends = held if is_all else self.chance.randint(0, held)
        kind = self.chance.choice(["completed", "errored", "cancelled", "unsent", "revoked"])
        self.held[worker] -= ends
        fields = {f: getattr(counts, f) for f in counts.__struct_fields__}
        fields[kind] += ends
        self.counts[worker] = WorkerCounts(**fields)
        del fields["phase"]
        self.machine.handle(returned(worker, is_idle=not self.held[worker], **fields))

    def run(self) -> None:
        now = NOW
        self.take(self.machine.handle(PhaseRequested(now)))
        for _ in range(300):
            if self.machine.has_ended:
                return
            now += self.chance.choice([1, 10 * MS, 50 * MS, 100 * MS])
            self.work_all(is_over=self.is_stopped or 0 < self.machine.stop_wall_ns <= now)
            if self.chance.random() < 0.005:
                self.lost.add(lost := self.chance.choice(self.names))
                self.machine.handle(WorkerLost(lost))
            if self.chance.random() < 0.002:
                self.machine.handle(StopRequested())
            self.take(self.machine.handle(TimePassed(now)))
        # Nothing else ends the wait for a worker that never returns a credit of a phase without a
        # duration.
        self.machine.handle(StopRequested())
        for later in (now, now + SETTLE_NS, now + 2 * SETTLE_NS):
            if not self.machine.has_ended:
                self.take(self.machine.handle(TimePassed(later)))
                self.work_all(is_over=True)

    def work_all(self, *, is_over: bool) -> None:
        """Once sending is over, whoever returns anything returns everything."""
        for worker in self.names:
            if worker not in self.lost | self.silent and (is_over or self.chance.random() < 0.7):
                self.work(worker, is_all=is_over)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_what_was_issued_is_returned_or_lost(seed: int) -> None:
    load = _Load(random.Random(seed))
    load.run()
    machine = load.machine
    assert machine.has_ended
    assert load.reports == 2
    assert sorted(load.indexes) == list(range(machine.report().granted))
    total = machine.plan.credits
    assert total is None or machine.report().granted <= total
    lost = machine.report().granted_to_lost
    for worker, counts in machine.counts().items():
        ended = counts.completed + counts.errored + counts.cancelled
        ended += counts.unsent + counts.revoked
        missing = counts.granted - ended
        assert missing == 0 or worker in lost
        assert missing == 0 or worker in load.lost | load.silent


@pytest.mark.parametrize("ended", [0, 1])
def test_a_load_stops_when_the_clock_was_set_back_so_far_that_it_would_not_end(ended: int) -> None:
    machine = started("a", duration_ns=10 * S, credits=ended or None)
    now = machine.start_wall_ns + 5 * S
    machine.handle(TimePassed(now))
    back = now - MOST_SET_BACK_NS - 1
    said = machine.handle(TimePassed(back))
    assert said[:2] == [ReportClockSetBack(MOST_SET_BACK_NS + 1), StopWorkers(("a",), back)]
    again = machine.handle(TimePassed(back + 1))
    assert not any(isinstance(each, ReportClockSetBack | StopWorkers) for each in again)


def test_a_load_goes_on_after_a_step_back_that_it_survives() -> None:
    machine = started("a", duration_ns=10 * S)
    now = machine.start_wall_ns + 5 * S
    machine.handle(TimePassed(now))
    machine.handle(TimePassed(now - MOST_SET_BACK_NS))
    assert machine.stage is PhaseStage.GRANTING
