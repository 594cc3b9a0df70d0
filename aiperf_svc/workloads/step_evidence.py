"""What the checks of a tool judge: the attempts at its steps, with what the couriers saw."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.protocol.messages.steps import CommandEnd, RankWitness
from aiperf_svc.workloads.steps import PlannedStep, Reading


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step, as it is judged."""

    plan: PlannedStep
    problem: str
    was_retried: bool
    reading: Reading
    """Without values if the step only prepares, or its output could not be read."""
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]

    @property
    def has_failed(self) -> bool:
        """True if this was the last attempt at its step, and failed."""
        return bool(self.problem) and not self.was_retried

    @property
    def name(self) -> str:
        """Step and repetition, for a text."""
        if self.plan.repetition > 1:
            return f"{self.plan.step.name} (repetition {self.plan.repetition})"
        return self.plan.step.name

    @property
    def length_ns(self) -> int:
        """From the last rank's start to the end of the last command; 0 where none started."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        ends = [w.ended_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(max(ends) - max(starts), 0) if starts else 0

    @property
    def shortest(self) -> tuple[int, str]:
        """Time of the command that took least, which is at most that of the step, and on which rank
        that was, for a text; empty of the step as a whole."""
        commands = self.plan.step.commands
        times = [
            (end.ended_wall_ns - end.started_wall_ns, f" on rank {commands[end.index].rank}")
            for end in self.ends
            if end.index < len(commands) and not commands[end.index].ends_with_step
        ]
        return min([*times, (self.length_ns, "")])

    @property
    def skew_ns(self) -> int | None:
        """From the first rank's start to the last one's; None with fewer than two."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(starts) - min(starts) if len(starts) > 1 else None


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks judge."""

    config: AnyWorkloadConfig
    attempts: tuple[Attempt, ...]
    planned: int
    """Steps of the run, with all repetitions."""
    is_local: bool
    failure: str
    was_cancelled: bool
    headline: str
    """Tag of the headline metric."""

    @property
    def counted(self) -> list[Attempt]:
        """Return the attempts whose numbers count: of measured steps, and without a problem."""
        return [a for a in self.attempts if a.plan.step.is_measured and not a.problem]

    def headline_of(self, attempt: Attempt) -> str:
        """Return the tag of the metric that an attempt at a measured step must have."""
        return attempt.plan.step.headline or self.headline


def not_retried(e: StepEvidence) -> list[Attempt]:
    """Return the last attempt at each step."""
    return [attempt for attempt in e.attempts if not attempt.was_retried]


def witnessed(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, RankWitness]]:
    """Return each attempt with each rank that reported it."""
    return ((attempt, witness) for attempt in attempts for witness in attempt.witnesses)


def place_of(witness: RankWitness) -> str:
    """Return rank and node, for a text."""
    return f"rank {witness.rank} on {witness.node}" if witness.node else f"rank {witness.rank}"


def worst(reasons: Sequence[Reason]) -> Reason:
    """Return the result of one check on several steps that is worst for the run."""
    order = list(Severity)
    return max(reasons, key=lambda r: (order.index(r.severity), r.measured - r.limit))
