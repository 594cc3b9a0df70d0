"""Goes on with an experiment that was ended before its last trial."""

from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.config.parameters import is_below
from aiperf_svc.config.workload import Config
from aiperf_svc.core.compare.measured_run import flatten
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.protocol.messages import RunState

SHOWN = 5
"""Most keys that a message names."""
_ELSEWHERE = ("artifacts.dir", "endpoint.url")
"""Keys that may differ: the folder may have been moved, and a mock server has another port each
time."""


def prepare(folder: Path, config: Config) -> None:
    """Make the folder of an experiment ready for the trials that have not ended: folders of others
    get another name. Raises ConfigError if it is not an experiment with this config, and
    EnvironmentProblem."""
    if config.experiment is None:
        raise ConfigError("--resume: this config has no experiment; a single run starts anew")
    try:
        found = read_experiment_file(folder)
    except ConfigError as error:
        raise ConfigError(f"--resume: {error}") from error
    old, new = flatten(found.config), flatten(config.model_dump(mode="json"))
    differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    # What varies is in the experiment; beside it are the values of the shape that was on.
    own = (*_ELSEWHERE, "experiment.part", *config.experiment.keys)
    differing = [key for key in differing if not any(is_below(key, each) for each in own)]
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise ConfigError(
            f"--resume: {folder} is of another config: {', '.join(differing[:SHOWN])}{more} "
            "differ; give the config that it was started with"
        )
    done = {each.folder for each in found.trials if each.state == RunState.DONE}
    try:
        for each in sorted((folder / TRIALS).glob("*")):
            if each.name not in done and "-unfinished" not in each.name:
                each.rename(_free(each))
    except OSError as error:
        raise EnvironmentProblem(f"{folder / TRIALS}: {error.strerror or error}") from error


def _free(path: Path) -> Path:
    """A name for the folder of an unfinished trial that nothing has."""
    number = 1
    while (other := path.with_name(f"{path.name}-unfinished{number}")).exists():
        number += 1
    return other
