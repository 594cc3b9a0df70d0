"""The driver of an experiment's trials. It runs in the system controller, or in a session that
starts the trials one by one (docs/decisions/0053-one-session-for-every-run.md)."""

from collections.abc import Sequence

from aiperf_svc.config.experiment import MAX_TRIALS
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.machine import (
    EndedTrial,
    ExperimentMachine,
    PlannedTrials,
    Strategy,
)
from aiperf_svc.core.experiments.search_trials import SearchTrials, search_machine
from aiperf_svc.core.experiments.trials import Trial, plan_trials
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.trials import trial_config


def experiment_machine(
    config: Config, ended: Sequence[EndedTrial], *, has_replacements: bool = True
) -> ExperimentMachine:
    """Return the machine that chooses the next trial of an experiment. Trials that have `ended` in
    a resumed folder, in the order of running, do not run again."""
    experiment = config.experiment
    assert experiment is not None
    strategy: Strategy | None
    if experiment.search is not None:
        assert config.inference is not None
        strategy = SearchTrials(search_machine(config.inference))
        for trial, finding in ended:
            if strategy.next() != trial:
                break  # The search chooses other trials from here.
            strategy.add(trial, finding)
    else:
        trials = plan_trials(experiment, config.random_seed)
        strategy = workload_of(config).strategy(config, trials, ended)
        finished = {trial.number for trial, _ in ended}
        strategy = strategy or PlannedTrials(trials, finished=finished, total=experiment.size)
    return ExperimentMachine(
        strategy,
        retries=experiment.retries,
        replacements=experiment.replacements if has_replacements else 0,
        on_failure=experiment.on_failure,
    )


def attempt_config(config: Config, trial: Trial, attempt: int) -> Config:
    """Return the config of an attempt of a trial, which is a run without an experiment."""
    own = trial_config(config, trial.parameters)
    # The server may have cached the prompts of an earlier attempt.
    found: Config = workload_of(config).with_own_prompts(
        own, trial.number + MAX_TRIALS * (attempt - 1)
    )
    return found
