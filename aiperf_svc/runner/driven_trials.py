"""Trials that a session chooses one by one, each in parts of its own.

The services of a part usually run all trials of an experiment. They cannot if the next trial needs
other services than the last one, or if it depends on the results of several members. Then
`core/experiments/machine.py` runs in this process, and each trial is a run without an experiment,
in the folder that the services would have used.
"""

from collections.abc import Mapping
from pathlib import Path

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.storage.experiment_artifacts import read_finished
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.criteria import trial_result
from aiperf_svc.core.experiments.joint_trials import joint_finding, joint_result
from aiperf_svc.core.experiments.machine import BeginTrial, EndExperiment, Finding, TrialEnded
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.search_trials import SearchTrials, report_of
from aiperf_svc.core.experiments.trials import folder_of
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.workloads.driver import attempt_config, experiment_machine
from aiperf_svc.workloads.shapes import Shape
from aiperf_svc.workloads.trials import TrialConfig


class DrivenTrials:
    """The driver of one experiment."""

    def __init__(self, config: Config, folders: Mapping[str, Path]) -> None:
        """`folders` has the folder of each member by name. Trials that all members have finished
        are not run again. Raises ConfigError."""
        assert config.experiment is not None
        self._search = config.experiment.search
        finished = {
            name: {each.trial.number: each for each in read_finished(folder)}
            for name, folder in folders.items()
        }
        ended = []
        for number, first in sorted(next(iter(finished.values())).items()):
            if all(number in by_number for by_number in finished.values()):
                found = {name: by_number[number].results for name, by_number in finished.items()}
                if (finding := self._finding(found, None)) is not None:
                    ended.append((first.trial, finding))
        self.machine = experiment_machine(config, ended)
        self.ended: EndExperiment | None = None
        """How the experiment ended; None while it runs."""

    @staticmethod
    def shape_of(config: Config, started: BeginTrial) -> Shape:
        """Return the shape of a trial. Its config has no experiment."""
        trial = started.trial
        own = attempt_config(config, trial, started.attempt)
        return Shape(trial.parameters, (TrialConfig(trial, own),))

    @staticmethod
    def outcome_of(started: BeginTrial, outcome: RunOutcome) -> TrialOutcome:
        """Return the outcome of a trial of one member."""
        own = folder_of(started.trial, started.attempt) if started.attempt > 1 else ""
        results = outcome.results if isinstance(outcome.results, RunResult) else None
        return TrialOutcome(started.trial, outcome.state, outcome.reason, results, own)

    def end(
        self, started: BeginTrial, ended: Mapping[str, RunOutcome], total: RunResult | None
    ) -> TrialEnded:
        """Return the end of a trial for the driver, with the finding of its members. `total` is
        their total result; None with one member."""
        states = [RunState(each.state) for each in ended.values()]
        reasons = [
            ": ".join(filter(None, (name, each.reason))) for name, each in ended.items()
            if each.state != RunState.DONE
        ]  # fmt: skip
        state = next((s for s in (RunState.CANCELLED, RunState.FAILED) if s in states), None)
        if any(each.was_interrupted for each in ended.values()):
            state = RunState.CANCELLED
        found = {name: each.results for name, each in ended.items()}
        finding = self._finding(found, total)
        return TrialEnded(started.serial, state or RunState.DONE, "; ".join(reasons), finding)

    def _finding(
        self, found: Mapping[str, Results | None], total: RunResult | None
    ) -> Finding | None:
        """Return the values that decide the next trial; None if a member has no results."""
        known = {name: each for name, each in found.items() if isinstance(each, RunResult)}
        if len(known) < len(found):
            return None
        search = self._search
        if search is None:
            return joint_finding(list(known.values()))
        own = {n: each for n, each in known.items() if isinstance(each, InferenceResult)}
        results = {name: trial_result(each, search) for name, each in own.items()}
        whole = total if isinstance(total, InferenceResult) else None
        searched = joint_result(results, whole, search.maximize)
        return joint_finding(list(known.values()), searched)

    @property
    def search_report(self) -> SearchReport | None:
        """The progress of a search for a limit; None if there is no such search."""
        strategy = self.machine.strategy
        return report_of(strategy.machine) if isinstance(strategy, SearchTrials) else None

    @property
    def is_done(self) -> bool:
        """Whether no trial is left."""
        return self.ended is not None and self.ended.state is RunState.DONE
