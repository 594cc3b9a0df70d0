"""The order of a run's steps: events in, instructions out, no I/O and no clock.

Each attempt at a step goes through three stages on all its ranks, and none begins before all of
them have finished the one before:

    prepare ─ all servers listen → run ─ all commands have ended → finish ─ all output is sent

A rank that reports a problem, a stage that takes too long, or a request to stop ends the attempt:
its ranks are told to finish at once. A failed step is tried again as often as the spec says. A step
that only prepares must succeed, or the run ends. A measured step that failed is not repeated, and
the others go on: none depends on another.

Orders are sent again until the ranks' status shows that they are done, so a lost message costs a
moment.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.protocol.messages.steps import RankStatus, StepStage
from aiperf_svc.workloads.steps import PlannedStep, Step

START_AHEAD_NS = 250_000_000
"""Time from the order to run until the due time: longer than a message takes, so all ranks wait."""
PREPARE_NS = 60 * SECOND_NS
"""Longest time for files and servers of one step."""
FINISH_NS = 120 * SECOND_NS
"""Longest time to end what runs and to bring back the output."""
REPEAT_NS = SECOND_NS
"""Between two sendings of an order that is not done."""


class StatusReceived(msgspec.Struct, frozen=True):
    """Event: a rank says how far it is."""

    rank: int
    status: RankStatus


class TimePassed(msgspec.Struct, frozen=True):
    """Event: so late is it. The first one starts the first step."""

    now_wall_ns: int


class RankLost(msgspec.Struct, frozen=True):
    """Event: a rank is gone, and nothing more will come from it."""

    rank: int


class StopRequested(msgspec.Struct, frozen=True):
    """Event: the run is cancelled or has failed."""


class OrderRank(msgspec.Struct, frozen=True):
    """Instruction: send this order to a rank."""

    rank: int
    plan: PlannedStep
    stage: StepStage
    abort_reason: str = ""
    """Why all commands are to be ended; empty: they have ended, or are not to."""
    due_wall_ns: int = 0


class Attempted(msgspec.Struct, frozen=True):
    """Instruction: note the end of an attempt, for the accounts and the display."""

    plan: PlannedStep
    problem: str
    """Why it failed; empty when it did not."""
    lost_ranks: tuple[int, ...]
    """Ranks whose output will not come."""


Event = StatusReceived | TimePassed | RankLost | StopRequested
Instruction = OrderRank | Attempted


class RunEnd(StrEnum):
    """Why there are no more steps."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    PREPARATION_FAILED = "preparation-failed"
    RANK_LOST = "rank-lost"


class StepMachine:
    """Decides what each rank does when."""

    def __init__(self, steps: Sequence[Step], *, repetitions: int, retries: int) -> None:
        self._queue: deque[tuple[int, Step]] = deque(
            [(0, step) for step in steps if not step.is_measured]
            + [(n + 1, s) for n in range(repetitions) for s in steps if s.is_measured]
        )
        self._retries = retries
        self.total = len(self._queue)
        """Steps of the run, repetitions included."""
        self.ended = 0
        """Steps that need no further attempt."""
        self.end: RunEnd | None = None
        """None while there are steps to run."""
        self.failures: list[str] = []
        """What went wrong, one text for each failed attempt that was the last one."""
        self.attempt_count = 0
        self.plan: PlannedStep | None = None
        """The attempt under way."""
        self.stage = StepStage.PREPARE
        self.due_wall_ns = 0
        """Due time of the attempt under way, when it is running."""
        self._problem = ""
        self._since_wall_ns = 0
        self._sent_wall_ns = 0
        self._done: dict[int, StepStage] = {}
        self._lost: set[int] = set()
        self._is_stopping = False
        self._failed: set[str] = set()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the current attempt that are still there."""
        if self.plan is None:
            return ()
        return tuple(rank for rank in self.plan.step.ranks if rank not in self._lost)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return the instructions to carry out."""
        match event:
            case StatusReceived(rank=rank, status=status):
                self._take_status(rank, status)
            case RankLost(rank=rank):
                if rank not in self._lost:
                    self._note(f"rank {rank} was lost")
                    self._lost.add(rank)
            case StopRequested():
                self._is_stopping = True
                self._note("stopped")
            case TimePassed(now_wall_ns=now):
                return self._go_on(now)
        return []

    def _take_status(self, rank: int, status: RankStatus) -> None:
        if self.plan is None or status.step != self.plan.number or status.stage is None:
            return
        self._done[rank] = status.stage
        if status.problem:
            self._note(status.problem)

    def _note(self, problem: str) -> None:
        """Record a problem. Only the first counts; others follow from it."""
        if self.plan is not None and not self._problem:
            self._problem = problem

    def _go_on(self, now: int) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self.end is None:
            if self.plan is None:
                if not self._begin(now):
                    break
                instructions += self._orders(now)
            elif self._is_stage_over(now):
                if self.stage is StepStage.FINISH:
                    instructions.append(self._conclude())
                else:
                    self._advance(now)
                    instructions += self._orders(now)
            else:
                if now - self._sent_wall_ns >= REPEAT_NS:
                    instructions += self._orders(now)
                break
        return instructions

    def _begin(self, now: int) -> bool:
        """Take the next step; whether there is one."""
        while self._queue and self._queue[0][1].name in self._failed:
            self._queue.popleft()
            self.ended += 1
        if self._is_stopping or not self._queue:
            self.end = RunEnd.STOPPED if self._is_stopping else RunEnd.COMPLETE
            return False
        repetition, step = self._queue[0]
        if self._lost & set(step.ranks):
            self.end = RunEnd.RANK_LOST
            return False
        self._start(PlannedStep(number=0, attempt=1, repetition=repetition, step=step), now)
        return True

    def _start(self, plan: PlannedStep, now: int) -> None:
        self.attempt_count += 1
        self.plan = msgspec.structs.replace(plan, number=self.attempt_count)
        self.stage, self._problem = StepStage.PREPARE, ""
        self.due_wall_ns = 0
        self._done, self._since_wall_ns = {}, now

    def _is_stage_over(self, now: int) -> bool:
        if all(_has_reached(self._done.get(rank), self.stage) for rank in self.ranks):
            return True
        assert self.plan is not None
        if self.stage is StepStage.FINISH:
            limit_ns, what = FINISH_NS, "its output did not come"
        elif self._problem:
            return True
        elif self.stage is StepStage.PREPARE:
            limit_ns, what = PREPARE_NS, "not ready"
        else:
            limit_ns, what = self.plan.step.timeout_ns, "still running"
        since = self.due_wall_ns if self.stage is StepStage.RUN else self._since_wall_ns
        if now - since < limit_ns:
            return False
        late = [r for r in self.ranks if not _has_reached(self._done.get(r), self.stage)]
        names = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        self._note(f"{names}: {what} after {limit_ns / 1e9:g} s")
        return True

    def _advance(self, now: int) -> None:
        self._since_wall_ns = now
        if self.stage is StepStage.PREPARE and not self._problem:
            self.stage, self.due_wall_ns = StepStage.RUN, now + START_AHEAD_NS
        else:
            self.stage = StepStage.FINISH

    def _orders(self, now: int) -> list[Instruction]:
        assert self.plan is not None
        self._sent_wall_ns = now
        return [
            OrderRank(
                rank,
                self.plan,
                self.stage,
                self._problem if self.stage is StepStage.FINISH else "",
                self.due_wall_ns,
            )
            for rank in self.ranks
            if not _has_reached(self._done.get(rank), self.stage)
        ]

    def _conclude(self) -> Attempted:
        assert self.plan is not None
        plan, problem = self.plan, self._problem
        step = plan.step
        silent = {r for r in self.ranks if self._done.get(r) is not StepStage.FINISH}
        lost = tuple(sorted((set(step.ranks) & self._lost) | silent))
        self.plan = None
        can_retry = problem and not self._is_stopping and not lost
        if can_retry and plan.attempt <= self._retries:
            self._start(
                msgspec.structs.replace(plan, attempt=plan.attempt + 1), self._since_wall_ns
            )
            # Its orders go out with the next look at the time.
            self._sent_wall_ns = 0
            return Attempted(plan, problem, lost)
        self._queue.popleft()
        self.ended += 1
        if problem:
            self.failures.append(f"{step.name}: {problem}")
            self._failed.add(step.name)
            if not step.is_measured and not self._is_stopping:
                self.end = RunEnd.PREPARATION_FAILED
        if silent:
            # What does not end when it is told to would disturb every step after it.
            self.end = RunEnd.RANK_LOST
        return Attempted(plan, problem, lost)


_ORDER = tuple(StepStage)


def _has_reached(done: StepStage | None, stage: StepStage) -> bool:
    return done is not None and _ORDER.index(done) >= _ORDER.index(stage)
