"""State machine for the stages of a phase: events in, instructions out, no I/O and no clock.

    planned ─ requested → granting ─ all granted, time is up, a stop, no worker left →
    settling ─ every credit returned or lost, or given up → ended

Open loop: due times are drawn, or taken from a schedule, and granted `GRANT_AHEAD_NS` before
they are due, so no request waits for a message. Closed loop: workers hold a few more credits
than they have users, and the ledger refills them. If a phase has a duration, its stop time is
announced with the start. Only an earlier stop needs a message.

Events carry the time. Returns and losses update the accounts immediately. The resulting decisions
are made at the next `TimePassed`, so the returns of many workers are handled together.
"""

import math
from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from aiperf_svc.core.control.control_intervals import grant_interval_s
from aiperf_svc.core.load.arrivals import Arrivals
from aiperf_svc.core.load.credit_ledger import CreditLedger, ended_credits
from aiperf_svc.core.load.fixed_schedule import FixedSchedule
from aiperf_svc.core.load.phase_plan import PhasePlan
from aiperf_svc.core.load.user_schedule import UserSchedule
from aiperf_svc.protocol.messages.credits import CreditsReturned
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts

ANNOUNCE_NS = 500_000_000
"""Time between a phase's announcement and its start. Every worker must receive it and connect over
a network in this time."""
NEAR_ANNOUNCE_NS = 100_000_000
NEAR_ANNOUNCE_PER_WORKER_NS = 10_000_000
"""The same if the target is on the workers' machine: connections take no time, but the workers
share its cores."""
CONNECTS_PER_S = 4_000
"""Connections that one worker opens per second. A phase with many users is announced earlier."""
GRANT_AHEAD_NS = 200_000_000
GRANT_EVERY_S = 0.05
LOOK_EVERY_S = 0.1
MIN_LOOK_S = 0.001
"""Maximum and minimum time between two checks of the clock in closed loop. Returned credits end the
wait, and the worker then gets new ones; only the end of the load depends on
time."""
SETTLE_EVERY_S = 0.1
SETTLE_NS = 5_000_000_000
"""Time after the end of the grace period in which live workers can still return credits."""


MAX_CLOCK_STEP_NS = 60_000_000_000
"""Maximum backward step of the clock after which a load continues. Its times follow the clock:
until the clock reaches its earlier value again, nothing is due and the load does not stop."""


class PhaseStage(StrEnum):
    PLANNED = "planned"
    GRANTING = "granting"
    """The phase is announced and credits are granted."""
    SETTLING = "settling"
    """No more credits are granted, and some have not been returned."""
    ENDED = "ended"


class PhaseRequested(msgspec.Struct, frozen=True):
    """Event: the run has reached this phase."""

    now_wall_ns: int
    not_before_wall_ns: int = 0
    """Earliest start, for several runs that start together."""


class TimePassed(msgspec.Struct, frozen=True):
    """Event: all instructions were carried out, including the wait."""

    now_wall_ns: int


class StopRequested(msgspec.Struct, frozen=True):
    """Event: the run was cancelled or has failed."""


class WorkerLost(msgspec.Struct, frozen=True):
    """Event: a worker is gone, with the credits that it has not returned."""

    worker: str


class AnnouncePhase(msgspec.Struct, frozen=True):
    """Instruction: announce the phase's times to these workers, in the order of their ranks."""

    workers: tuple[str, ...]
    start_wall_ns: int
    stop_wall_ns: int
    """Planned stop of the phase; 0: it ends when the credits run out."""


class GrantCredits(msgspec.Struct, frozen=True):
    """Instruction: grant a worker the indexes `first + k * stride` for k in 0..count-1."""

    worker: str
    first: int
    count: int
    stride: int = 1
    due_wall_ns: bytes = b""
    """Due times in open loop, int64 little-endian; empty in closed loop."""
    last_turns: int = 0
    """Number of turns after which the last conversation ends; 0: all of them."""


class StopWorkers(msgspec.Struct, frozen=True):
    """Instruction: tell these workers to stop sending and to cancel what is in flight."""

    workers: tuple[str, ...]
    at_wall_ns: int


class ReportMissingCredits(msgspec.Struct, frozen=True):
    """Instruction: report that this worker never returned `count` credits. They count as lost."""

    worker: str
    count: int


class ReportClockSetBack(msgspec.Struct, frozen=True):
    """Instruction: report that the load stops because the clock was set back by this time."""

    by_ns: int


class PublishReport(msgspec.Struct, frozen=True):
    """Instruction: put a new `PhaseReport` of every phase into the heartbeats."""


class Wait(msgspec.Struct, frozen=True):
    """Instruction, always the last one: wait, then report `TimePassed`."""

    at_most_s: float
    ends_on_news: bool = False
    """True if a return, a loss or a stop request ends the wait."""
    then_s: float = 0.0
    """Additional time to wait in any case."""


Event = PhaseRequested | TimePassed | CreditsReturned | WorkerLost | StopRequested
"""A return is the worker's unchanged message, since there are thousands per second."""
Instruction = (
    AnnouncePhase
    | GrantCredits
    | StopWorkers
    | ReportMissingCredits
    | ReportClockSetBack
    | PublishReport
    | Wait
)


class PhaseMachine:
    """Decides which credits are granted in a phase, when it stops, and when it has ended."""

    def __init__(self, plan: PhasePlan, workers: Sequence[str]) -> None:
        """Set up a phase for `workers`, in the order of their ranks."""
        self.plan = plan
        self.stage = PhaseStage.PLANNED
        self.start_wall_ns = 0
        self.stop_wall_ns = 0
        """Time of the stop; 0: the phase ends when the credits run out, or they ran out before the
        stop."""
        users = {
            name: len(range(rank, plan.concurrency, len(workers))) if not plan.is_open_loop else 0
            for rank, name in enumerate(workers)
        }
        self._ledger = CreditLedger(plan.phase, users=users, total=plan.credits)
        self._max_users = max(users.values(), default=0)
        self._schedule = _schedule(plan)
        self._users = _user_schedule(plan)
        self._arrivals = self._schedule or self._users or _arrivals(plan)
        self._cancel_wall_ns = 0
        """Time at which workers cancel what is in flight; 0: never."""
        self._seen_wall_ns = 0
        """Time of the latest event that has one."""
        self._is_stopping = False
        self._has_stopped = False
        """True after the workers got the order to stop."""
        self.story: deque[tuple[PhaseStage, type]] = deque(maxlen=32)
        """Latest events except returns, for error messages."""

    @property
    def has_ended(self) -> bool:
        """Whether every credit is accounted for."""
        return self.stage is PhaseStage.ENDED

    def counts(self) -> dict[str, WorkerCounts]:
        """Return the newest counts of each worker, with the number granted to it."""
        return self._ledger.counts()

    def report(self) -> PhaseReport:
        """Return the times of the phase and the number of credits granted so far."""
        counts = self._ledger.counts()
        scheduled, scheduled_rate = self._scheduled()
        return PhaseReport(
            phase=self.plan.phase,
            start_wall_ns=self.start_wall_ns,
            stop_wall_ns=self.stop_wall_ns,
            ramp_ns=self.plan.ramp_ns,
            granted=self._ledger.granted,
            granted_to_lost={name: counts[name].granted for name in self._ledger.lost_workers},
            scheduled=scheduled,
            scheduled_rate=scheduled_rate,
        )

    def _scheduled(self) -> tuple[int, float]:
        """Return the planned number of conversations until the stop, and their rate, unless the
        config has a constant rate."""
        until_ns = self.stop_wall_ns - self.start_wall_ns if self.stop_wall_ns else None
        curve = self.plan.curve
        if curve is not None:
            until_s = self.plan.duration_ns / 1e9 if until_ns is None else until_ns / 1e9
            if self.plan.credits is not None:
                # Just below the number, or a pause after the last arrival would be included.
                number = np.nextafter([float(self.plan.credits)], 0.0)
                until_s = min(until_s or math.inf, float(curve.times(number)[0]))
            expected = curve.expected(until_s)
            return round(expected), expected / until_s if until_s > 0 else 0.0
        if self._schedule is None:
            return 0, 0.0
        return self._schedule.planned(credits=self.plan.credits, before_ns=until_ns)

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions to carry out."""
        if isinstance(event, CreditsReturned):
            self._ledger.returned(
                event.sender,
                event.counts,
                is_idle=event.is_idle,
                taken_mono_ns=event.taken_mono_ns,
            )
            return []
        self.story.append((self.stage, type(event)))
        match event:
            case TimePassed(now_wall_ns=now) if self.stage is PhaseStage.GRANTING:
                return [*self._look_at_clock(now), *self._grant(now)]
            case TimePassed(now_wall_ns=now) if self.stage is PhaseStage.SETTLING:
                return [*self._look_at_clock(now), *self._settle(now)]
            case WorkerLost(worker=worker):
                self._ledger.lose(worker)
            case StopRequested():
                self._is_stopping = True
            case PhaseRequested() if self.stage is PhaseStage.PLANNED:
                return self._announce(event)
            case _:
                story = [f"{stage.value}: {kind.__name__}" for stage, kind in self.story]
                raise AssertionError(f"not expected in {self.plan.phase.name.lower()}: {story}")
        return []

    def _look_at_clock(self, now: int) -> list[Instruction]:
        """Stop the load if the clock was set back too far."""
        back_ns, self._seen_wall_ns = self._seen_wall_ns - now, now
        if back_ns <= MAX_CLOCK_STEP_NS:
            return []
        self._is_stopping = True
        return [ReportClockSetBack(back_ns)]

    def _announce(self, requested: PhaseRequested) -> list[Instruction]:
        plan = self.plan
        self._seen_wall_ns = requested.now_wall_ns
        connecting_ns = math.ceil(self._max_users / CONNECTS_PER_S * 1e9)
        soonest_wall_ns = requested.now_wall_ns + self._announce_ns() + connecting_ns
        self.start_wall_ns = max(soonest_wall_ns, requested.not_before_wall_ns)
        if plan.duration_ns:
            self.stop_wall_ns = self.start_wall_ns + plan.duration_ns
            self._cancel_wall_ns = self.stop_wall_ns + plan.grace_ns
        self.stage = PhaseStage.GRANTING
        return [
            AnnouncePhase(tuple(self._ledger.workers), self.start_wall_ns, self.stop_wall_ns),
            PublishReport(),
        ]

    def _announce_ns(self) -> int:
        near_ns = NEAR_ANNOUNCE_NS + len(self._ledger.workers) * NEAR_ANNOUNCE_PER_WORKER_NS
        return min(near_ns, ANNOUNCE_NS) if self.plan.is_target_near else ANNOUNCE_NS

    # --- granting --------------------------------------------------------------------------------

    def _grant(self, now: int) -> list[Instruction]:
        workers = len(self._ledger.workers)
        # In open loop everything due before the stop is granted, however late this machine runs.
        # Requests that cannot be sent in time then count as unsent instead of being ignored.
        is_time_up = self._arrivals is None and self.stop_wall_ns and now >= self.stop_wall_ns
        if is_time_up or self._is_stopping or not workers:
            return self._settle(now)
        plan, ledger = self.plan, self._ledger
        if plan.pass_size and now - self.start_wall_ns >= plan.min_duration_ns:
            ledger.end_at_multiple(plan.pass_size)
        instructions: list[Instruction] = []
        if self._arrivals is not None:
            horizon = now + GRANT_AHEAD_NS + round(GRANT_EVERY_S * 1e9)
            if self.stop_wall_ns:
                horizon = min(horizon, self.stop_wall_ns)
            instructions += self._due_before(horizon, self._arrivals)
            is_last = horizon == self.stop_wall_ns
            wait = Wait(GRANT_EVERY_S)
        else:
            instructions += self._refills()
            is_last = False
            left_s = (self.stop_wall_ns - now) / 1e9 if self.stop_wall_ns else LOOK_EVERY_S
            look_s = max(MIN_LOOK_S, min(left_s, LOOK_EVERY_S))
            wait = Wait(look_s, ends_on_news=True, then_s=grant_interval_s(workers))
        if is_last or self._ledger.remaining == 0:
            return instructions + self._settle(now)
        return [*instructions, wait]

    def _refills(self) -> list[GrantCredits]:
        return [
            GrantCredits(
                grant.worker,
                grant.first,
                grant.count,
                last_turns=self._last_turns(grant.first + grant.count - 1),
            )
            for grant in self._ledger.closed_loop_grants()
        ]

    def _due_before(
        self, horizon: int, arrivals: Arrivals | FixedSchedule | UserSchedule
    ) -> list[GrantCredits]:
        """Deal arrivals to the workers in turn, so each worker gets a thinned version of the same
        process."""
        ledger = self._ledger
        due = arrivals.take(before_ns=horizon - self.start_wall_ns, at_most=ledger.remaining)
        due = due + self.start_wall_ns
        workers = ledger.workers
        grants = []
        while len(due) and self._users and ledger.next_index < len(self._users.first):
            # A conversation of which only some turns run is granted separately.
            index = ledger.next_index
            worker = workers[index % len(workers)]
            ledger.grant(worker, 1)
            turns = self._last_turns(index) or self._users.first[index]
            times = due[:1].astype("<i8").tobytes()
            grants.append(GrantCredits(worker, index, 1, due_wall_ns=times, last_turns=turns))
            due = due[1:]
        first, stride = ledger.next_index, len(workers)
        for position in range(min(stride, len(due))):
            mine = due[position::stride]
            worker = workers[(first + position) % stride]
            ledger.grant(worker, len(mine))
            grants.append(
                GrantCredits(
                    worker,
                    first + position,
                    len(mine),
                    stride,
                    mine.astype("<i8").tobytes(),
                    self._last_turns(first + position + (len(mine) - 1) * stride),
                )
            )
        return grants

    def _last_turns(self, last_index: int) -> int:
        """Return the turns of the last conversation of a grant that ends with this index; 0:
        all."""
        total = self.plan.credits
        return self.plan.last_turns if total is not None and last_index == total - 1 else 0

    # --- the end ---------------------------------------------------------------------------------

    def _settle(self, now: int) -> list[Instruction]:
        """Wait until every credit is returned or lost. Stop early if requested."""
        self.stage = PhaseStage.SETTLING
        instructions: list[Instruction] = []
        workers = tuple(self._ledger.workers)
        if self._is_stopping and not self._has_stopped:
            self._has_stopped = True
            # The duration may already be over, so nothing was due since; or the start may be in the
            # future.
            self.stop_wall_ns = max(self.start_wall_ns, min(now, self.stop_wall_ns or now))
            self._cancel_wall_ns = now
            instructions.append(StopWorkers(workers, now))
        if self._ledger.is_settled:
            return self._end()
        if self._cancel_wall_ns and now > self._cancel_wall_ns + SETTLE_NS:
            return [*instructions, *self._give_up(), *self._end()]
        wait = Wait(SETTLE_EVERY_S, ends_on_news=True, then_s=grant_interval_s(len(workers)))
        return [*instructions, wait]

    def _give_up(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for worker, counts in self._ledger.counts().items():
            missing = counts.granted - ended_credits(counts)
            if missing:
                self._ledger.lose(worker)
                instructions.append(ReportMissingCredits(worker, missing))
        return instructions

    def _end(self) -> list[Instruction]:
        self.stage = PhaseStage.ENDED
        if self._ledger.has_run_out:
            self.stop_wall_ns = 0
        return [PublishReport()]


def _schedule(plan: PhasePlan) -> FixedSchedule | None:
    if not plan.schedule_ns:
        return None
    return FixedSchedule(np.frombuffer(plan.schedule_ns, dtype="<i8").astype(np.int64, copy=False))


def _user_schedule(plan: PhasePlan) -> UserSchedule | None:
    users = plan.user_centric
    if users is None:
        return None
    turns = np.frombuffer(plan.turns, dtype="<u2").astype(np.uint16, copy=False)
    return UserSchedule(users=users.users, rate=users.rate, turns=turns)


def _arrivals(plan: PhasePlan) -> Arrivals | None:
    rate = plan.curve or plan.request_rate
    if rate is None:
        return None
    return Arrivals(
        rate=rate,
        pattern=plan.arrival.pattern,
        burstiness=plan.arrival.burstiness,
        ramp_ns=plan.ramp_ns,
        seed=plan.random_seed,
        phase=int(plan.phase),
    )
