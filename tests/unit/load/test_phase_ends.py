"""How a phase ends: by its duration, a stop, lost workers, or a clock that was set back."""

import random
from typing import Any

import pytest

from aiperf_svc.core.load.credit_ledger import MIN_LOOKAHEAD
from aiperf_svc.core.load.phase_machine import (
    MAX_CLOCK_STEP_NS,
    SETTLE_NS,
    GrantCredits,
    Instruction,
    PhaseRequested,
    PhaseStage,
    PublishReport,
    ReportClockSetBack,
    ReportMissingCredits,
    StopRequested,
    StopWorkers,
    TimePassed,
    WorkerLost,
)
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts
from tests.support.phase_events import (
    MS,
    NOW,
    P,
    S,
    at_rate,
    due,
    machine_of,
    returned,
    settle,
    started,
)


def test_phase_waits_for_requests_after_its_duration() -> None:
    machine = started("a", duration_ns=S, grace_ns=2 * S)
    (grant, _) = machine.handle(TimePassed(NOW))
    assert grant == GrantCredits("a", 0, 1 + MIN_LOOKAHEAD)
    stop = machine.stop_wall_ns
    machine.handle(returned("a", is_idle=False, completed=60))
    assert machine.handle(TimePassed(stop)) == [settle(1)]
    machine.handle(returned("a", completed=61, revoked=MIN_LOOKAHEAD - 60))
    assert machine.handle(TimePassed(stop + 1)) == [PublishReport()]
    assert machine.stop_wall_ns == stop


def test_late_open_loop_grants_everything_due_before_stop() -> None:
    machine = at_rate(10, "a", duration_ns=S)
    machine.handle(TimePassed(NOW))
    instructions = machine.handle(TimePassed(machine.stop_wall_ns + S))
    assert isinstance(instructions[0], GrantCredits)
    assert (machine.stage, machine.report().granted) == (PhaseStage.SETTLING, 10)


def test_duration_longer_than_the_credits_stops_nothing() -> None:
    machine = started("a", credits=1, duration_ns=S)
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1))
    machine.handle(TimePassed(NOW + 1))
    assert (machine.has_ended, machine.stop_wall_ns) == (True, 0)


def test_passes_are_whole_after_the_least_duration() -> None:
    machine = started("a", pass_size=100, min_duration_ns=S)
    machine.handle(TimePassed(NOW))
    begin, granted = machine.start_wall_ns, 1 + MIN_LOOKAHEAD
    machine.handle(returned("a", is_idle=False, completed=granted))
    machine.handle(TimePassed(begin + S - 1))
    assert machine.report().granted > 100
    for _ in range(9):
        done = machine.report().granted
        machine.handle(returned("a", completed=done))
        machine.handle(TimePassed(begin + S))
        if machine.has_ended:
            break
    assert (machine.report().granted, machine.stop_wall_ns) == (200, 0)
    assert machine.has_ended


def test_open_loop_ends_with_a_whole_pass() -> None:
    machine = at_rate(10, "a", pass_size=30, min_duration_ns=S)
    machine.handle(TimePassed(NOW))
    begin = machine.start_wall_ns
    machine.handle(TimePassed(begin + S))
    machine.handle(TimePassed(begin + 9 * S))
    assert (machine.report().granted, machine.stage) == (30, PhaseStage.SETTLING)


def test_unreturned_credits_are_lost_after_grace_period() -> None:
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


def test_phase_without_duration_waits_without_limit() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    assert machine.handle(TimePassed(NOW + 10**6 * S)) == [settle(1)]


def test_stop_reaches_workers_once_and_ends_the_phase() -> None:
    machine = started("a", "b", duration_ns=60 * S, ramp_ns=S)
    machine.handle(TimePassed(NOW))
    assert machine.handle(StopRequested()) == []
    stop = machine.start_wall_ns + S
    assert machine.handle(TimePassed(stop)) == [StopWorkers(("a", "b"), stop), settle(2)]
    assert machine.handle(TimePassed(stop + SETTLE_NS)) == [settle(2)]
    start = machine.start_wall_ns
    granted = 2 + 2 * MIN_LOOKAHEAD
    assert machine.report() == PhaseReport(P, start, stop, S, granted)
    for worker in ("a", "b"):
        granted = machine.counts()[worker].granted
        machine.handle(returned(worker, cancelled=1, revoked=granted - 1))
    assert machine.handle(TimePassed(stop + SETTLE_NS + 1)) == [PublishReport()]


def test_stop_after_duration_shortens_only_grace_period() -> None:
    machine = started("a", duration_ns=2 * S)
    machine.handle(TimePassed(NOW))
    end = machine.start_wall_ns + 2 * S
    machine.handle(TimePassed(end))
    machine.handle(StopRequested())
    assert machine.handle(TimePassed(end + S)) == [StopWorkers(("a",), end + S), settle(1)]
    assert machine.report().stop_wall_ns == end


def test_stop_between_requests_ends_the_load() -> None:
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


def test_workers_that_ignore_a_stop_are_abandoned() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    machine.handle(StopRequested())
    machine.handle(TimePassed(NOW + S))
    assert machine.handle(TimePassed(NOW + S + SETTLE_NS + 1)) == [
        ReportMissingCredits("a", 1),
        PublishReport(),
    ]


def test_phase_stopped_before_grants_ends_at_once() -> None:
    machine = machine_of("a")
    machine.handle(StopRequested())
    machine.handle(PhaseRequested(NOW))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]
    assert (machine.has_ended, machine.report().granted) == (True, 0)


def test_lost_worker_gets_no_credits_and_delays_nothing() -> None:
    machine = started("a", "b", credits=3)
    machine.handle(TimePassed(NOW))
    assert machine.handle(WorkerLost("b")) == []
    machine.handle(returned("a", completed=1))
    assert machine.handle(TimePassed(NOW)) == [GrantCredits("a", 2, 1), settle(1)]
    machine.handle(returned("a", completed=2))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]
    assert machine.report().granted_to_lost == {"b": 1}


def test_phase_without_workers_ends() -> None:
    machine = started("a", duration_ns=60 * S)
    machine.handle(TimePassed(NOW))
    machine.handle(WorkerLost("a"))
    assert machine.handle(TimePassed(NOW)) == [PublishReport()]


def test_returns_after_the_end_are_still_counted() -> None:
    machine = started("a", credits=1)
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1))
    machine.handle(TimePassed(NOW))
    machine.handle(returned("a", completed=1, requests_sent=2))
    machine.handle(StopRequested())
    machine.handle(WorkerLost("a"))
    assert machine.counts()["a"].requests_sent == 2
    assert machine.report().granted_to_lost == {"a": 1}


class _Load:
    """Workers that return their grants in some order or never, or are lost."""

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
        """End some or all of the worker's credits in one way or another."""
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
        # Nothing else ends a phase without duration if a worker never returns a credit.
        self.machine.handle(StopRequested())
        for later in (now, now + SETTLE_NS, now + 2 * SETTLE_NS):
            if not self.machine.has_ended:
                self.take(self.machine.handle(TimePassed(later)))
                self.work_all(is_over=True)

    def work_all(self, *, is_over: bool) -> None:
        """Once sending is over, let each worker that returns anything return everything."""
        for worker in self.names:
            if worker not in self.lost | self.silent and (is_over or self.chance.random() < 0.7):
                self.work(worker, is_all=is_over)


def test_every_issued_credit_is_returned_or_lost() -> None:
    for seed in range(200):
        check_account(seed)


def check_account(seed: int) -> None:
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
def test_load_stops_when_the_clock_steps_back_far(ended: int) -> None:
    machine = started("a", duration_ns=10 * S, credits=ended or None)
    now = machine.start_wall_ns + 5 * S
    machine.handle(TimePassed(now))
    back = now - MAX_CLOCK_STEP_NS - 1
    instructions = machine.handle(TimePassed(back))
    assert instructions[:2] == [
        ReportClockSetBack(MAX_CLOCK_STEP_NS + 1),
        StopWorkers(("a",), back),
    ]
    again = machine.handle(TimePassed(back + 1))
    assert not any(isinstance(each, ReportClockSetBack | StopWorkers) for each in again)


def test_small_clock_step_back_does_not_stop_load() -> None:
    machine = started("a", duration_ns=10 * S)
    now = machine.start_wall_ns + 5 * S
    machine.handle(TimePassed(now))
    machine.handle(TimePassed(now - MAX_CLOCK_STEP_NS))
    assert machine.stage is PhaseStage.GRANTING
