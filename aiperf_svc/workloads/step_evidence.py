"""Input of a tool's checks: the attempts at its steps, with the couriers' measurements."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.protocol.messages.steps import CommandEnd, RankWitness
from aiperf_svc.workloads.steps import PlannedStep, Reading


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step, for the checks."""

    plan: PlannedStep
    problem: str
    was_retried: bool
    reading: Reading
    """Has no values if the step only prepares, or if its output could not be read."""
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]

    @property
    def has_failed(self) -> bool:
        """True if this was the last attempt at its step and it failed."""
        return bool(self.problem) and not self.was_retried

    @property
    def name(self) -> str:
        """Step and repetition as text."""
        if self.plan.repetition > 1:
            return f"{self.plan.step.name} (repetition {self.plan.repetition})"
        return self.plan.step.name

    @property
    def length_ns(self) -> int:
        """Time from the last rank's start to the end of the last command; 0 if none started."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        ends = [w.ended_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(max(ends) - max(starts), 0) if starts else 0

    @property
    def shortest(self) -> tuple[int, str]:
        """Return the time of the shortest command, at most that of the step, and its rank as text.
        The text is empty if the time is that of the step."""
        commands = self.plan.step.commands
        times = [
            (end.ended_wall_ns - end.started_wall_ns, f" on rank {commands[end.index].rank}")
            for end in self.ends
            if end.index < len(commands) and not commands[end.index].ends_with_step
        ]
        return min([*times, (self.length_ns, "")])

    @property
    def skew_ns(self) -> int | None:
        """Time from the first rank's start to the last one's; None with fewer than two."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(starts) - min(starts) if len(starts) > 1 else None


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the checks."""

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
        """Return the attempts whose numbers count: those at measured steps without a problem."""
        return [a for a in self.attempts if a.plan.step.is_measured and not a.problem]

    def headline_of(self, attempt: Attempt) -> str:
        """Return the tag of the metric that is required for an attempt at a measured step."""
        return attempt.plan.step.headline or self.headline


def not_retried(e: StepEvidence) -> list[Attempt]:
    """Return the last attempt at each step."""
    return [attempt for attempt in e.attempts if not attempt.was_retried]


def witnessed(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, RankWitness]]:
    """Return each attempt with each rank that reported it."""
    return ((attempt, witness) for attempt in attempts for witness in attempt.witnesses)


def place_of(witness: RankWitness) -> str:
    """Return rank and node as text."""
    return f"rank {witness.rank} on {witness.node}" if witness.node else f"rank {witness.rank}"


def worst(reasons: Sequence[Reason]) -> Reason:
    """Return the worst of one check's results on several steps."""
    order = list(Severity)
    return max(reasons, key=lambda r: (order.index(r.severity), r.measured - r.limit))
