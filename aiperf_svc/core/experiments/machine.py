"""Decides which trial of an experiment comes next: receives the end of each trial, returns what to
begin.

A stopped trial ends the experiment. A failed trial is repeated as often as the config allows, and
then the next one comes, or none. A trial whose verdict is invalid because of the client is repeated
too, a limited number of times per experiment. The trials come from a `Strategy`: a list known
from the start, or a search that uses the measurements.
"""

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, Protocol

import msgspec

from aiperf_svc.core.experiments.search import SearchedTrial
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.qualify.measurements import Measurement
from aiperf_svc.core.verdict.check_result import ENDED_EARLY, Severity, is_failure
from aiperf_svc.protocol.run_states import RunState


class Finding(msgspec.Struct, frozen=True):
    """Data about a trial's results that decides which trial comes next."""

    verdict: str
    cause: str = ""
    searched: SearchedTrial | None = None
    """Data for a search; None without a search."""
    measured: tuple[Measurement, ...] = ()
    """Data for a qualification; empty for other kinds."""
    length_s: float = 0.0
    """Seconds from its first step to its last; only for a qualification."""

    @property
    def is_spoiled(self) -> bool:
        """True if the verdict is invalid, possibly because of the client. Failures of a server or
        of a tool's step are measurements and are not repeated."""
        is_measured = is_failure(self.cause) or self.cause == ENDED_EARLY
        return self.verdict == Severity.INVALID and not is_measured


EndedTrial = tuple[Trial, Finding]
"""A trial that ended with results."""


class TrialEnded(NamedTuple):
    """Event: a trial has ended, and all remaining services have finished their work for it."""

    serial: int
    state: RunState
    reason: str
    finding: Finding | None = None
    """None without results."""


class BeginTrial(NamedTuple):
    """Instruction: begin a trial."""

    serial: int
    """Number of trials begun, this one included."""
    trial: Trial
    attempt: int
    """From 1."""


class EndExperiment(NamedTuple):
    """Instruction: no trial follows."""

    state: RunState
    reason: str


Instruction = BeginTrial | EndExperiment


class Strategy(Protocol):
    """Source of trials."""

    @property
    def total(self) -> int:
        """Number of trials; 0 if unknown."""
        ...

    def next(self) -> Trial | None:
        """Return the next trial, or None."""
        ...

    def add(self, trial: Trial, finding: Finding | None) -> None:
        """Record the finding of a finished trial; None if it failed."""
        ...


class PlannedTrials:
    """Trials known from the start."""

    def __init__(
        self, trials: Iterable[Trial], *, finished: Collection[int] = (), total: int = 0
    ) -> None:
        """`finished` are the numbers of trials that need not run again. `total` is the number of
        all trials if other processes run some of them."""
        trials = tuple(trials)
        self.total = total or len(trials)
        self._left = iter([trial for trial in trials if trial.number not in finished])

    def next(self) -> Trial | None:
        """Return the next trial; None after the last one."""
        return next(self._left, None)

    def add(self, trial: Trial, finding: Finding | None) -> None:
        """Do nothing: the plan does not change."""


class ExperimentMachine:
    """Runs the trials of a strategy one by one."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        retries: int = 0,
        replacements: int = 0,
        on_failure: Literal["continue", "stop"],
    ) -> None:
        """`retries` is the number of additional attempts at a failed trial, `replacements` the
        total number of repeated invalid trials."""
        self.strategy = strategy
        self._retries = retries
        self._replacements = replacements
        self._replaced = 0
        """Number of invalid trials that were repeated."""
        self._failures = 0
        """Number of failed attempts at the current trial."""
        self._on_failure = on_failure
        self._current: BeginTrial | None = None
        self._cancelled = ""
        self._serial = 0

    @property
    def total(self) -> int:
        """Number of trials; 0 if unknown."""
        return self.strategy.total

    def begin(self) -> Instruction:
        """Return the first instruction."""
        return self._next()

    def cancel(self, reason: str) -> None:
        """Begin no other trial. The current one is stopped elsewhere."""
        self._cancelled = self._cancelled or reason

    def handle(self, event: TrialEnded) -> Instruction:
        """Handle the end of the latest trial. Raises ValueError for any other trial."""
        current = self._current
        if current is None or event.serial != current.serial:
            raise ValueError(f"trial {event.serial} has ended, expected {current}")
        if event.state is RunState.CANCELLED:
            return EndExperiment(RunState.CANCELLED, event.reason)
        if event.state is RunState.FAILED:
            self._failures += 1
            if self._failures <= self._retries and not self._cancelled:
                return self._begin(current.trial, current.attempt + 1)
            if self._on_failure == "stop":
                reason = f"trial {current.trial.number} failed: {event.reason}"
                return EndExperiment(RunState.FAILED, reason)
        if self._is_replaced(event.finding):
            return self._begin(current.trial, current.attempt + 1)
        self.strategy.add(current.trial, event.finding)
        return self._next()

    def _is_replaced(self, finding: Finding | None) -> bool:
        """Decide whether an invalid trial is repeated, and count it."""
        if self._cancelled or self._replaced >= self._replacements:
            return False
        if finding is None or finding.searched is not None or not finding.is_spoiled:
            return False
        self._replaced += 1
        return True

    def _next(self) -> Instruction:
        if self._cancelled:
            return EndExperiment(RunState.CANCELLED, self._cancelled)
        self._failures = 0
        trial = self.strategy.next()
        if trial is None:
            return EndExperiment(RunState.DONE, "")
        return self._begin(trial, attempt=1)

    def _begin(self, trial: Trial, attempt: int) -> BeginTrial:
        self._serial += 1
        self._current = BeginTrial(self._serial, trial, attempt)
        return self._current
