"""Trials that a session names one by one, each in parts of its own.

The services of one part go through the trials of an experiment by themselves. They cannot where
the next trial needs other services than the last one, or where it depends on what several members
have measured. Then `core/experiments/machine.py` runs here: each trial is a run without an
experiment, in the folder that the services would have given it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
from aiperf_svc.config.experiment import MOST_TRIALS
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.criteria import trial_result
from aiperf_svc.core.experiments.joint_trials import joint_finding, joint_result
from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    Finding,
    PlannedTrials,
    Strategy,
    TrialEnded,
)
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search import Search
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.search_trials import SearchTrials, search_machine
from aiperf_svc.core.experiments.trials import Trial, folder_of, plan_trials
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape
from aiperf_svc.workloads.trials import TrialConfig, trial_config


class DrivenTrials:
    """The driver of one experiment."""

    def __init__(self, config: Config, folders: Mapping[str, Path]) -> None:
        """`folders` are those of the members, by name. Trials that all of them have finished are
        not run again. Raises ConfigError."""
        assert config.experiment is not None
        self._experiment = config.experiment
        self._search: SearchTrials | None = None
        self.machine = ExperimentMachine(
            self._strategy(config, _finished(folders)),
            retries=config.experiment.retries,
            replacements=config.experiment.replacements,
            on_failure=config.experiment.on_failure,
        )
        self.ended: EndExperiment | None = None
        """How the experiment has ended; None while it runs."""

    def _strategy(self, config: Config, finished: Sequence[dict[str, TrialOutcome]]) -> Strategy:
        if self._experiment.search is None:
            numbers = {_trial(by_name).number for by_name in finished}
            trials = plan_trials(self._experiment, config.random_seed)
            return PlannedTrials(trials, finished=numbers)
        assert config.inference is not None
        self._search = SearchTrials(search_machine(config.inference))
        for by_name in finished:
            trial = _trial(by_name)
            if self._search.next() != trial:
                break  # The rest was found in another way.
            found = {name: each.results for name, each in by_name.items()}
            self._search.add(trial, self._finding(found, None))
        return self._search

    @staticmethod
    def shape_of(config: Config, begun: BeginTrial) -> Shape:
        """Return the shape of a trial, whose config is that of a run without an experiment."""
        trial = begun.trial
        own = workload_of(config).with_own_prompts(
            trial_config(config, trial.parameters),
            # The server may still have the prompts of an earlier attempt in a cache.
            trial.number + MOST_TRIALS * (begun.attempt - 1),
        )
        return Shape(trial.parameters, (TrialConfig(trial, own),))

    @staticmethod
    def outcome_of(begun: BeginTrial, outcome: RunOutcome) -> TrialOutcome:
        """Return the outcome of a trial of one member."""
        own = folder_of(begun.trial, begun.attempt) if begun.attempt > 1 else ""
        results = outcome.results if isinstance(outcome.results, RunResult) else None
        return TrialOutcome(begun.trial, outcome.state, outcome.reason, results, own)

    def end(
        self, begun: BeginTrial, ended: Mapping[str, RunOutcome], total: RunResult | None
    ) -> TrialEnded:
        """Return the end of a trial for the driver: what its members have measured together.
        `total` are the results of all members; None if there is one."""
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
        return TrialEnded(begun.serial, state or RunState.DONE, "; ".join(reasons), finding)

    def _finding(
        self, found: Mapping[str, Results | None], total: RunResult | None
    ) -> Finding | None:
        """Return what decides which trial follows; None if a member has no results."""
        known = {name: each for name, each in found.items() if isinstance(each, RunResult)}
        if len(known) < len(found):
            return None
        search = self._experiment.search
        if search is None:
            return joint_finding(list(known.values()))
        own = {n: each for n, each in known.items() if isinstance(each, InferenceResult)}
        results = {name: trial_result(each, search) for name, each in own.items()}
        whole = total if isinstance(total, InferenceResult) else None
        searched = joint_result(results, whole, search.maximize)
        return joint_finding(list(known.values()), searched)

    @property
    def search_report(self) -> SearchReport | None:
        """The progress of a search for a limit; None without one."""
        machine = self._search.machine if self._search is not None else None
        return machine.report if isinstance(machine, Search) else None

    @property
    def is_done(self) -> bool:
        """Whether no trial is left."""
        return self.ended is not None and self.ended.state is RunState.DONE


def _finished(folders: Mapping[str, Path]) -> list[dict[str, TrialOutcome]]:
    """Return the trials that are in all folders and have results, in the order of running."""
    by_member: dict[str, dict[int, TrialOutcome]] = {}
    for name, folder in folders.items():
        entries = read_experiment_file(folder).trials if is_experiment(folder) else ()
        by_member[name] = {
            each.trial.number: each
            for each in read_outcomes(folder, entries)
            if each.state == RunState.DONE and each.results is not None
        }
    numbers = sorted(set[int].intersection(*map(set, by_member.values())))
    return [{name: found[number] for name, found in by_member.items()} for number in numbers]


def _trial(by_name: Mapping[str, TrialOutcome]) -> Trial:
    return next(iter(by_name.values())).trial
