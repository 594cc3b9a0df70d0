"""A simulated cluster for qualification: noise, drift, one slow node, and one slow path."""

from collections.abc import Mapping, Sequence
from random import Random

from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.qualify_trials import QualifyTrials, planned_parameters
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.qualify.judgement import Judgement
from aiperf_svc.core.qualify.measurements import (
    REPEAT,
    ROUND,
    STAGE,
    SUSPECTS,
    WITHOUT,
    Limit,
    Measurement,
    Rules,
    StagePlan,
)
from aiperf_svc.core.qualify.result import Better, CheckInfo, NodesOf, Qualification
from aiperf_svc.workloads.pairs import circle_rounds

USUAL = 1000.0


def check(stage: NodesOf, better: Better = "higher") -> CheckInfo:
    """Return the check of a stage. The stage is named after the nodes that it measures."""
    return CheckInfo(
        check=f"{stage}_speed", stage=stage, nodes=stage, name="Speed", unit="x/s", better=better
    )


class FakeNodes:
    """Simulates a cluster. A factor is the share of the usual value that a node or path reaches."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        noise: float = 0.0,
        drift: float = 0.0,
        nodes: Mapping[str, float] | None = None,
        paths: Mapping[tuple[str, str], float] | None = None,
        broken: Sequence[str] = (),
        better: Better = "higher",
        is_slow_only_in_rounds: bool = False,
    ) -> None:
        """Create a cluster. `drift` is the change from the first trial to the last. Steps on
        `broken` nodes fail. With `is_slow_only_in_rounds`, a suspect that is measured alone reaches
        the usual value."""
        self.names = [f"n{number}" for number in range(count)]
        self._random, self._noise, self._drift = Random(seed), noise, drift
        self._nodes, self._paths, self._broken = dict(nodes or {}), dict(paths or {}), set(broken)
        self._better, self._is_slow_only_in_rounds = better, is_slow_only_in_rounds

    def rules(
        self,
        stages: Sequence[NodesOf] = ("alone", "pairs", "all"),
        *,
        limits: Sequence[Limit] = (),
        baseline: dict[str, dict[str, float]] | None = None,
    ) -> Rules:
        """Return rules with one check for each stage."""
        rounds = len(circle_rounds(len(self.names)))
        infos = tuple(check(stage, self._better) for stage in stages)
        return Rules(
            stages=tuple(
                StagePlan(
                    name=info.stage,
                    nodes=info.nodes,
                    workload="fake",
                    rounds=rounds if info.nodes == "pairs" else 1,
                )
                for info in infos
            ),
            checks=infos,
            limits=tuple(limits),
            baseline=baseline or {},
        )

    def qualify(
        self, rules: Rules, *, time_limit_s: float | None = None
    ) -> tuple[Qualification, list[Trial]]:
        """Run all trials. Return the result and the trials that were run."""
        planned = [
            Trial(number, parameters)
            for number, parameters in enumerate(planned_parameters(rules.stages), start=1)
        ]
        strategy = QualifyTrials(planned, rules, time_limit_s=time_limit_s)
        found: list[Measurement] = []
        run: list[Trial] = []
        while (trial := strategy.next()) is not None:
            measured = self.measure(trial, progress=trial.number / len(planned))
            strategy.add(trial, Finding("valid", measured=measured, length_s=10.0))
            found += measured
            run.append(trial)
        return Judgement(rules, found).qualification(self.names), run

    def measure(self, trial: Trial, *, progress: float = 0.0) -> tuple[Measurement, ...]:
        """Return the measurements of a trial."""
        stage, round_ = trial.parameters[STAGE], trial.parameters[ROUND]
        without = set(trial.parameters.get(WITHOUT, ()))
        left = [name for name in self.names if name not in without]
        is_repeat = round_ == SUSPECTS
        units: list[tuple[str, ...]] = []
        if is_repeat and stage == "alone":
            units = [tuple(nodes) for nodes in trial.parameters[REPEAT]]
        elif is_repeat:
            for one, two, three in trial.parameters[REPEAT]:
                pairs = ((one, two), (one, three), (two, three))
                units += [unit for a, b in pairs for unit in ((a, b), (b, a))]
        elif stage == "alone":
            units = [(name,) for name in left]
        elif stage == "pairs":
            for one, other in circle_rounds(len(self.names))[round_ - 1]:
                pair = (self.names[one], self.names[other])
                units += [pair, pair[::-1]] if not without & set(pair) else []
        else:
            units = [()]
        factor = 1 - self._drift * progress
        return tuple(
            self._one(stage, unit, factor, is_repeat, 0 if is_repeat else round_ or 0)
            for unit in units
        )

    def _one(
        self, stage: str, nodes: tuple[str, ...], factor: float, is_repeat: bool, round_: int
    ) -> Measurement:
        slow = {} if is_repeat and self._is_slow_only_in_rounds else self._nodes
        own = factor * min((slow.get(name, 1.0) for name in nodes), default=1.0)
        own *= self._paths.get(nodes, 1.0) if len(nodes) == 2 else 1.0
        value = USUAL * own * self._random.gauss(1, self._noise)
        if self._better == "lower":
            value = USUAL * USUAL / value
        is_broken = bool(self._broken & set(nodes))
        return Measurement(
            stage=stage,
            nodes=nodes,
            values={} if is_broken else {f"{stage}_speed": value},
            problem="exit code 1" if is_broken else "",
            round=round_,
            is_repeat=is_repeat,
        )
