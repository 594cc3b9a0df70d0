"""The order of a run's steps: events in, instructions out, no I/O and no clock.

Each attempt at a step goes through three stages on all its ranks. A stage begins when all ranks
have finished the previous one:

    prepare ─ all servers listen → run ─ all commands have ended → finish ─ all output is sent

Steps of one group use different ranks and run at the same time: all prepare, their commands start
at one due time, and each step ends on its own. The next step follows when all have ended.

A problem reported by a rank, a stage that takes too long, or a stop request ends the attempt: its
ranks are ordered to finish immediately. A failed step is repeated as often as the spec allows. If a
step that only prepares fails, the run ends; in a group, only the steps on its ranks are skipped. If
a measured step fails, it is not repeated and the others continue, since none depends on
another.

Orders are resent until the status of the ranks shows that they are carried out, so a lost message
only delays the step.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.protocol.messages.steps import RankStatus, StepStage
from aiperf_svc.workloads.steps import PlannedStep, Step

START_AHEAD_NS = 250_000_000
"""Time from the order to run until the due time, long enough to reach all ranks."""
PREPARE_NS = 60 * SECOND_NS
"""Maximum time for files and servers of one step."""
FINISH_NS = 120 * SECOND_NS
"""Maximum time for ending the commands and fetching their output."""
REPEAT_NS = SECOND_NS
"""Time after which an order that has not been carried out is resent."""


class StatusReceived(msgspec.Struct, frozen=True):
    """Event: a rank has reported its status."""

    rank: int
    status: RankStatus


class TimePassed(msgspec.Struct, frozen=True):
    """Event: the current time. The first one starts the first step."""

    now_wall_ns: int


class RankLost(msgspec.Struct, frozen=True):
    """Event: a rank has ended and sends nothing more."""

    rank: int


class StopRequested(msgspec.Struct, frozen=True):
    """Event: the run is cancelled or has failed."""


class OrderRank(msgspec.Struct, frozen=True):
    """Instruction: send this order to a rank."""

    rank: int
    plan: PlannedStep
    stage: StepStage
    abort_reason: str = ""
    """Why the rank must end all commands; empty: they have ended or may continue."""
    due_wall_ns: int = 0


class Attempted(msgspec.Struct, frozen=True):
    """Instruction: record the end of an attempt for the accounts and the display."""

    plan: PlannedStep
    problem: str
    """Why it failed; empty if it did not."""
    lost_ranks: tuple[int, ...]
    """Ranks whose output will not arrive."""


Event = StatusReceived | TimePassed | RankLost | StopRequested
Instruction = OrderRank | Attempted


class StepsEnd(StrEnum):
    """Reason why no more steps follow."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    PREPARATION_FAILED = "preparation-failed"
    RANK_LOST = "rank-lost"


class _Attempt:
    """An attempt at a step that has begun and not ended."""

    def __init__(self, plan: PlannedStep, now: int) -> None:
        self.plan = plan
        self.stage = StepStage.PREPARE
        self.problem = ""
        self.due_wall_ns = 0
        """Due time of its commands, once it is known."""
        self.since_wall_ns = now
        self.sent_wall_ns = now
        self.done: dict[int, StepStage] = {}

    def note(self, problem: str) -> None:
        """Record a problem. Only the first one counts; it causes the others."""
        self.problem = self.problem or problem


class StepMachine:
    """Decides what each rank does, and when."""

    def __init__(self, steps: Sequence[Step], *, repetitions: int, retries: int) -> None:
        """Raises ValueError if steps of one group share a rank."""
        _check_groups(steps)
        self._queue: deque[tuple[int, Step]] = deque(
            [(0, step) for step in steps if not step.is_measured]
            + [(n + 1, s) for n in range(repetitions) for s in steps if s.is_measured]
        )
        self._retries = retries
        self.total = len(self._queue)
        """Steps of the run, repetitions included."""
        self.ended = 0
        """Steps that need no further attempt."""
        self.end: StepsEnd | None = None
        """None while there are steps to run."""
        self.failures: list[str] = []
        """Problems: one text for each last attempt that failed."""
        self.attempt_count = 0
        self._current: list[_Attempt] = []
        """The current attempts: one, or those of a group."""
        self._again: list[PlannedStep] = []
        """Failed attempts to repeat when all of their group have ended."""
        self._ending: StepsEnd | None = None
        """Why nothing follows the current attempts."""
        self._lost: set[int] = set()
        self._unprepared: set[int] = set()
        """Ranks of a group whose preparing step failed."""
        self._is_stopping = False
        self._failed: set[str] = set()

    @property
    def plans(self) -> tuple[PlannedStep, ...]:
        """The current attempts."""
        return tuple(attempt.plan for attempt in self._current)

    @property
    def plan(self) -> PlannedStep | None:
        """The first of the current attempts."""
        return self._current[0].plan if self._current else None

    @property
    def stage(self) -> StepStage:
        """The stage of the first current attempt."""
        return self._current[0].stage if self._current else StepStage.PREPARE

    @property
    def due_wall_ns(self) -> int:
        """Due time of the current attempts; 0 while it is unknown."""
        return max((attempt.due_wall_ns for attempt in self._current), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The remaining ranks of the current attempts."""
        return tuple(rank for attempt in self._current for rank in self._ranks_of(attempt))

    def _ranks_of(self, attempt: _Attempt) -> tuple[int, ...]:
        return tuple(rank for rank in attempt.plan.step.ranks if rank not in self._lost)

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions to carry out."""
        match event:
            case StatusReceived(rank=rank, status=status):
                self._handle_status(rank, status)
            case RankLost(rank=rank):
                if rank not in self._lost:
                    for attempt in self._current:
                        if rank in attempt.plan.step.ranks:
                            attempt.note(f"rank {rank} was lost")
                    self._lost.add(rank)
            case StopRequested():
                self._is_stopping = True
                for attempt in self._current:
                    attempt.note("stopped")
            case TimePassed(now_wall_ns=now):
                return self._handle_time(now)
        return []

    def _handle_status(self, rank: int, status: RankStatus) -> None:
        for attempt in self._current:
            if status.step == attempt.plan.number and status.stage is not None:
                attempt.done[rank] = status.stage
                if status.problem:
                    attempt.note(status.problem)

    def _handle_time(self, now: int) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self.end is None:
            if not self._current:
                if not self._begin(now):
                    break
                instructions += [o for each in self._current for o in self._orders(each, now)]
                continue
            over = {id(each) for each in self._current if self._is_stage_over(each, now)}
            # The commands of a group share one due time.
            can_run = all(
                each.stage is not StepStage.PREPARE or id(each) in over for each in self._current
            )
            has_moved = False
            for each in list(self._current):
                waits = each.stage is StepStage.PREPARE and not each.problem and not can_run
                if id(each) not in over or waits:
                    if now - each.sent_wall_ns >= REPEAT_NS:
                        instructions += self._orders(each, now)
                    continue
                has_moved = True
                if each.stage is StepStage.FINISH:
                    instructions.append(self._conclude(each))
                else:
                    self._advance(each, now)
                    instructions += self._orders(each, now)
            if not has_moved:
                break
        return instructions

    def _begin(self, now: int) -> bool:
        """Begin the next step or group. Return whether there is one."""
        if self._is_stopping:
            self.end = StepsEnd.STOPPED
        elif self._ending is not None:
            self.end = self._ending
        if self.end is not None:
            return False
        plans, self._again = self._again, []
        plans = plans or self._next_plans()
        if not plans:
            self.end = StepsEnd.COMPLETE
        elif any(self._lost & set(plan.step.ranks) for plan in plans):
            self.end = StepsEnd.RANK_LOST
        else:
            for plan in plans:
                self.attempt_count += 1
                numbered = msgspec.structs.replace(plan, number=self.attempt_count)
                self._current.append(_Attempt(numbered, now))
        return self.end is None

    def _next_plans(self) -> list[PlannedStep]:
        """Take the next step from the queue, and the rest of its group."""
        plans: list[PlannedStep] = []
        while self._queue:
            repetition, step = self._queue[0]
            if plans and (plans[0].repetition, plans[0].step.group) != (repetition, step.group):
                break
            if plans and not step.group:
                break
            self._queue.popleft()
            if step.name in self._failed:
                self.ended += 1
            elif self._unprepared & set(step.ranks):
                self.ended += 1
                self._failed.add(step.name)
                self.failures.append(f"{step.name}: the step that prepares its ranks failed")
            else:
                plans.append(PlannedStep(number=0, attempt=1, repetition=repetition, step=step))
        return plans

    def _is_stage_over(self, attempt: _Attempt, now: int) -> bool:
        ranks = self._ranks_of(attempt)
        if all(_has_reached(attempt.done.get(rank), attempt.stage) for rank in ranks):
            return True
        if attempt.stage is StepStage.FINISH:
            limit_ns, problem = FINISH_NS, "its output did not come"
        elif attempt.problem:
            return True
        elif attempt.stage is StepStage.PREPARE:
            limit_ns, problem = PREPARE_NS, "not ready"
        else:
            limit_ns, problem = attempt.plan.step.timeout_ns, "still running"
        is_running = attempt.stage is StepStage.RUN
        since = attempt.due_wall_ns if is_running else attempt.since_wall_ns
        if now - since < limit_ns:
            return False
        late = [r for r in ranks if not _has_reached(attempt.done.get(r), attempt.stage)]
        names = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
        attempt.note(f"{names}: {problem} after {limit_ns / 1e9:g} s")
        return True

    def _advance(self, attempt: _Attempt, now: int) -> None:
        attempt.since_wall_ns = now
        if attempt.stage is StepStage.PREPARE and not attempt.problem:
            attempt.stage, attempt.due_wall_ns = StepStage.RUN, now + START_AHEAD_NS
        else:
            attempt.stage = StepStage.FINISH

    def _orders(self, attempt: _Attempt, now: int) -> list[Instruction]:
        attempt.sent_wall_ns = now
        return [
            OrderRank(
                rank,
                attempt.plan,
                attempt.stage,
                attempt.problem if attempt.stage is StepStage.FINISH else "",
                attempt.due_wall_ns,
            )
            for rank in self._ranks_of(attempt)
            if not _has_reached(attempt.done.get(rank), attempt.stage)
        ]

    def _conclude(self, attempt: _Attempt) -> Attempted:
        plan, problem, step = attempt.plan, attempt.problem, attempt.plan.step
        ranks = self._ranks_of(attempt)
        silent = {rank for rank in ranks if attempt.done.get(rank) is not StepStage.FINISH}
        lost = tuple(sorted((set(step.ranks) & self._lost) | silent))
        self._current.remove(attempt)
        can_retry = problem and not self._is_stopping and not lost
        if can_retry and plan.attempt <= self._retries:
            self._again.append(msgspec.structs.replace(plan, attempt=plan.attempt + 1))
            return Attempted(plan, problem, lost)
        self.ended += 1
        if problem:
            self.failures.append(f"{step.name}: {problem}")
            self._failed.add(step.name)
            if not step.is_measured and step.group:
                self._unprepared |= set(step.ranks)
            elif not step.is_measured and not self._is_stopping:
                self._ending = StepsEnd.PREPARATION_FAILED
        if silent:
            # A command that ignores the request to end would disturb every later step.
            self._ending = StepsEnd.RANK_LOST
        return Attempted(plan, problem, lost)


def _check_groups(steps: Sequence[Step]) -> None:
    ranks: dict[int, set[int]] = {}
    for step in steps:
        used = ranks.setdefault(step.group, set())
        if step.group and used & set(step.ranks):
            raise ValueError(f"step {step.name!r}: another one of its group has the same rank")
        used.update(step.ranks)


_STAGE_ORDER = tuple(StepStage)


def _has_reached(done: StepStage | None, stage: StepStage) -> bool:
    return done is not None and _STAGE_ORDER.index(done) >= _STAGE_ORDER.index(stage)
