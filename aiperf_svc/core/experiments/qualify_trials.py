"""The trials of a qualification: its stages, the rounds of pairs, and the repeats of suspects.

All trials are known from the start, so an interrupted qualification continues after the last round.
The nodes of a trial also depend on earlier trials: nodes that failed a stage are excluded. A trial
that repeats suspects is skipped if there are none, and so is a trial of a stage with too few
remaining good nodes.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import msgspec

from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.qualify.judgement import Judgement
from aiperf_svc.core.qualify.measurements import (
    REPEAT,
    ROUND,
    STAGE,
    SUSPECTS,
    WITHOUT,
    Measurement,
    Rules,
    StagePlan,
)
from aiperf_svc.core.qualify.result import NodesOf
from aiperf_svc.domain.json_objects import Parameters

MIN_GOOD: dict[NodesOf, int] = {"alone": 1, "pairs": 2, "all": 1}
"""Minimum number of nodes of a stage, by its kind of nodes."""


def planned_parameters(stages: Sequence[StagePlan]) -> tuple[Parameters, ...]:
    """Return the parameters that distinguish trials: the stage, and the round or suspects."""
    found: list[Parameters] = []
    for stage in stages:
        rounds: list[int | str | None] = [None]
        if stage.nodes == "pairs":
            rounds = list(range(1, stage.rounds + 1))
        if stage.nodes != "all":
            rounds.append(SUSPECTS)
        found += [{STAGE: stage.name, ROUND: number} for number in rounds]
    return tuple(found)


def lacks_nodes(stage: StagePlan, judgement: Judgement) -> bool:
    """Return whether too few nodes for a stage have passed the previous stages."""
    failed = judgement.failed_nodes(before=stage.name)
    return bool(failed) and len(judgement.nodes) - len(failed) < MIN_GOOD[stage.nodes]


class QualifyTrials:
    """Yields the trials of a qualification: a `Strategy` of the experiment's machine."""

    def __init__(
        self,
        trials: Iterable[Trial],
        rules: Rules,
        *,
        finished: Collection[int] = (),
        time_limit_s: float | None = None,
    ) -> None:
        """`trials` have `planned_parameters`. Trials with `finished` numbers need not run again:
        pass their findings to `add`. No trial begins after `time_limit_s` of trials."""
        trials = tuple(trials)
        self.total = len(trials)
        self._left = deque(trial for trial in trials if trial.number not in finished)
        self._rules, self._time_limit_s = rules, time_limit_s
        self._measured: list[Measurement] = []
        self._spent_s = 0.0

    def next(self) -> Trial | None:
        """Return the next trial; None after the last one or after the time limit."""
        while self._left and not self._is_late:
            trial = self._left.popleft()
            changed = self._changed(trial.parameters)
            if changed is not None:
                return msgspec.structs.replace(trial, parameters=trial.parameters | changed)
        return None

    def add(self, trial: Trial, finding: Finding | None) -> None:
        """Record the measurements of a trial; None if it failed."""
        if finding is not None:
            self._measured += finding.measured
            self._spent_s += finding.length_s

    @property
    def _is_late(self) -> bool:
        return self._time_limit_s is not None and self._spent_s >= self._time_limit_s

    def _changed(self, parameters: Parameters) -> Parameters | None:
        """Return a trial's parameters with those that depend on earlier trials; None to skip it."""
        stage = next(each for each in self._rules.stages if each.name == parameters[STAGE])
        judgement = Judgement(self._rules, self._measured)
        if parameters[ROUND] == SUSPECTS:
            repeated = [list(each.nodes) for each in judgement.suspects(stage)]
            return {REPEAT: repeated} if repeated else None
        if lacks_nodes(stage, judgement):
            return None
        failed = judgement.failed_nodes(before=stage.name)
        return {WITHOUT: list(failed)} if failed else {}
