"""Resumes an experiment that ended before its last trial.

The finished trials are in its folder. On a cluster, trials continue without a runner: if the stack
is still up, its run is followed to the end and collected, as the killed runner would have done.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
from aiperf_svc.config.parameters import is_below
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.core.compare.measured_run import flatten
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

SHOWN = 5
"""Maximum number of keys in a message."""
_MAY_MOVE = ("artifacts.dir", "endpoint.url")
"""Keys that may differ: the folder may have been moved, and a mock server's port changes."""
_POD_KEYS = (
    "deployment.image.name",  # AIPERF_IMAGE; `image_notes` reports a change
    "deployment.registration_timeout",
    "deployment.namespace.mode",
    "endpoint.api_key_env",
    "telemetry.key_env",
)
"""Keys that have other values in pods than in the user's config."""
_CLUSTER_KEYS = ("deployment.target.pods", "deployment.api_server_cidrs", "telemetry.exporters")
"""Keys that the runner sets from the state of the cluster."""


def check(members: Mapping[Path, Config]) -> None:
    """Raise ConfigError if one of these folders is not that of an experiment with its config."""
    # The folder of one target must not be mistaken for that of another.
    may_move = _MAY_MOVE if len(members) == 1 else ("artifacts.dir",)
    for folder, config in members.items():
        _read(folder, config, (*may_move, *_POD_KEYS, *_CLUSTER_KEYS))


def keep_finished(
    opened: Sequence[ShapeTrials],
    config: Config,
    *,
    may_split_shapes: bool = True,
    in_one_stack: bool = False,
) -> frozenset[int]:
    """Prepare the folders of an experiment for the trials that have not ended in all of them, and
    return the numbers of those that have: a trial that only some members have has no total. First,
    move the trials that a killed runner had collected to the others.

    Without `may_split_shapes`, a shape is run again as a whole if one of its trials is. With
    `in_one_stack`, nothing is changed if no trial has ended: the stack may be up and run them.
    Raises ConfigError, EnvironmentProblem.
    """
    if any(folders.is_collecting(each.folder) for each in opened):
        # The list of the trials may have arrived before their files.
        return frozenset()
    for each in opened:
        each.add_finished()
        each.move_collected()
    finished = frozenset.intersection(*(each.finished for each in opened))
    if in_one_stack and not finished:
        return finished
    if in_one_stack and config.search is not None:
        raise ConfigError(
            f"--resume: the results of this search are in {opened[0].folder}, and the pods that "
            "held its progress are gone; start a new search, and remove what may be left of its "
            "stack with `aiperf-svc gc`"
        )
    if not may_split_shapes:
        finished = opened[0].of_whole_shapes(finished)
    for each in opened:
        each.keep_only(finished)
        each.write_progress()
        set_aside(each.folder, finished)
    return finished


def image_notes(folder: Path, finished: Collection[int], image: str | None) -> list[str]:
    """Return a note for each image of the services, other than `image`, with which finished trials
    were measured. `finished` contains their numbers. Raises ConfigError."""
    measured: dict[str, list[int]] = {}
    for each in read_experiment_file(folder).trials if image and finished else ():
        path = folder / TRIALS / each.folder / "config.yaml"
        if each.number in finished and path.is_file():
            config = read_yaml(path)
            name = config.get("deployment", {}).get("image", {}).get("name")
            measured.setdefault(name or "", []).append(each.number)
    return [
        f"note: trials {', '.join(map(str, numbers[:SHOWN]))}{' …' * (len(numbers) > SHOWN)} in "
        f"{folder} were measured with the services' image {name}, and the others run with "
        f"{image}: the config.yaml of each trial names its own"
        for name, numbers in measured.items()
        if name and name != image
    ]


def namespace_mode(folder: Path) -> str:
    """Return whether the namespace of an experiment's stack was created for it, as in
    `deployment.namespace.mode`. Raises ConfigError."""
    if not is_experiment(folder):
        return "create"
    found = read_experiment_file(folder).config
    return str(found.get("deployment", {}).get("namespace", {}).get("mode", "create"))


def begin(folder: Path, config: Config) -> None:
    """Mark a folder as that of an experiment without a finished trial. Existing trial folders in it
    are renamed. Raises EnvironmentProblem."""
    _set_aside(folder, set())
    ShapeTrials(config, (), folder).write_progress()
    folders.end_collecting(folder)


def set_aside(folder: Path, finished: frozenset[int]) -> None:
    """Rename the folders of all other trials, which can then be run again. Raises ConfigError,
    EnvironmentProblem."""
    trials = read_experiment_file(folder).trials
    _set_aside(folder, {each.folder for each in trials if each.number in finished})


def _read(folder: Path, config: Config, may_differ: tuple[str, ...]) -> ExperimentResult:
    if config.experiment is None:
        raise ConfigError("--resume: this config has no experiment, so there is nothing to resume")
    try:
        found = read_experiment_file(folder)
    except ConfigError as error:
        raise ConfigError(f"--resume: {error}") from error
    old, new = flatten(found.config), flatten(config.model_dump(mode="json"))
    # A key that is unknown to an earlier version has its default in the old file.
    chosen = flatten(config.model_dump(mode="json", exclude_defaults=True))
    differing = sorted(
        key
        for key in {*old, *new}
        if old.get(key) != new.get(key) and (key in old or key in chosen)
    )
    # The experiment contains what varies; the config beside it has the values of the last shape.
    own = (*may_differ, "experiment.part", *config.experiment.keys)
    differing = [key for key in differing if not any(is_below(key, each) for each in own)]
    if differing:
        named = ", ".join(differing[:SHOWN])
        if len(differing) > SHOWN:
            named += f" and {len(differing) - SHOWN} more"
        raise ConfigError(
            f"--resume: {folder} is of another config: {named} "
            f"{'differs' if len(differing) == 1 else 'differ'}; give the config that it was "
            "started with"
        )
    return found


def _set_aside(folder: Path, done: set[str]) -> None:
    try:
        for each in sorted((folder / TRIALS).glob("*")):
            if each.name not in done and "-unfinished" not in each.name:
                each.rename(_free(each))
    except OSError as error:
        raise EnvironmentProblem(f"{folder / TRIALS}: {error.strerror or error}") from error


def _free(path: Path) -> Path:
    """Return an unused name for the folder of an unfinished trial."""
    number = 1
    while (other := path.with_name(f"{path.name}-unfinished{number}")).exists():
        number += 1
    return other
