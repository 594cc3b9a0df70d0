"""Reads the folders of experiments and groups their trials for a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from aiperf_svc.adapters.exports.experiment_file import NAME, read_experiment_file
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.experiments.combinations import identity
from aiperf_svc.core.experiments.outcomes import DONE
from aiperf_svc.core.experiments.trials import TRIALS, Trial, block_of, folder_of
from aiperf_svc.core.verdict.check_result import RUN_FAILED, Severity
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Parameters, changes_text, whole_text
from aiperf_svc.protocol.run_states import RunState


class TrialFolder(NamedTuple):
    """A finished trial and the folder of its results."""

    parameters: Parameters
    folder: Path
    block: int = 0
    """Its block, if the experiment has blocks."""


class FolderGroup(NamedTuple):
    """The folders with one combination of parameters, on both sides."""

    name: str
    base: list[Path]
    new: list[Path]
    failed: tuple[list[MeasuredRun], list[MeasuredRun]]
    """Trials and attempts of each side that do not count."""
    blocks: Mapping[str, int] = MappingProxyType({})
    """Block of each folder, if the experiment has blocks."""


def read_experiment(folder: Path) -> list[TrialFolder]:
    """Return the trials that finished. Raises ConfigError."""
    file = read_experiment_file(folder)
    done = [each for each in file.trials if each.state == DONE]
    for each in done:
        if not (folder / TRIALS / each.folder).is_dir():
            raise ConfigError(
                f"{folder / NAME}: trial {each.number} has no folder {one_line(each.folder)} in "
                f"{TRIALS}"
            )
    if not done:
        raise ConfigError(f"{folder}: no trial of this experiment has finished")
    has_blocks = bool((file.config.get("experiment") or {}).get("blocks"))
    return [
        TrialFolder(
            each.parameters,
            folder / TRIALS / each.folder,
            block_of(each.repetition) if has_blocks else 0,
        )
        for each in done
    ]


def failed_trials(folder: Path) -> list[tuple[Parameters, MeasuredRun]]:
    """Return the trials that did not finish and the attempts that were replaced, with their
    parameters. Raises ConfigError."""
    found: list[tuple[Parameters, MeasuredRun]] = []
    for each in read_experiment_file(folder).trials:
        trial = Trial(each.number, each.parameters, each.repetition)
        for attempt, reason in enumerate(each.replaced, 1):
            place = folder / TRIALS / folder_of(trial, attempt)
            run = failed_run(place, f"{reason}; run again", cause="")
            found.append((each.parameters, run))
        if each.state != DONE:
            run = failed_run(
                folder / TRIALS / each.folder,
                f"{each.state}: {each.reason}".removesuffix(": "),
                cause=RUN_FAILED if each.state == RunState.FAILED else "",
            )
            found.append((each.parameters, run))
    return found


def failed_run(folder: Path, failure: str, *, cause: str = RUN_FAILED) -> MeasuredRun:
    """Return a run that did not finish. It has no values."""
    return MeasuredRun(
        folder=str(folder),
        run_id=str(folder),
        kind="",
        verdict=Severity.INVALID,
        cause=cause,
        failure=failure,
        facts={},
        metrics={},
        values={},
        headline=(),
    )


def refuse_several_combinations(folder: Path) -> None:
    """Raise ConfigError if the trials of an experiment are not repetitions of one config. They
    cannot form one side of a comparison of runs."""
    count = len({identity(trial.parameters) for trial in read_experiment(folder)})
    if count > 1:
        raise ConfigError(
            f"{folder}: an experiment with {count} combinations of parameters; compare it with "
            f"another experiment, or name the folders of some trials in {folder / TRIALS}"
        )


def groups_of_sides(base: Sequence[Path], new: Sequence[Path]) -> list[FolderGroup]:
    """Return a group for each combination of parameters of the experiments on both sides. Raises
    ConfigError."""
    groups: dict[bytes, FolderGroup] = {}
    for side, folders in enumerate((base, new)):
        for folder in folders:
            for trial in read_experiment(folder):
                group = _group(groups, trial.parameters)
                (group.new if side else group.base).append(trial.folder)
            for parameters, run in failed_trials(folder):
                _group(groups, parameters).failed[side].append(run)
    return list(groups.values())


def _group(
    groups: dict[bytes, FolderGroup],
    parameters: Parameters,
    blocks: Mapping[str, int] = MappingProxyType({}),
) -> FolderGroup:
    """Return the group of these parameters; create it if necessary."""
    name = changes_text(parameters)
    return groups.setdefault(identity(parameters), FolderGroup(name, [], [], ([], []), blocks))


def groups_of_variants(folder: Path, by: str) -> list[FolderGroup]:
    """Return the groups of two variants within one experiment: the values of the parameter `by`,
    given as `KEY` or `KEY=BASE,NEW`. If empty, use the only parameter with two values. Raises
    ConfigError."""
    trials = read_experiment(folder)
    values: dict[str, dict[str, None]] = {}
    for trial in trials:
        for name, value in trial.parameters.items():
            values.setdefault(name, {})[whole_text(value)] = None
    listed = _listed(folder)
    # The trials may be in random order, so use the order of the values in the config.
    ordered = {
        name: sorted(some, key=(listed.get(name, []) + list(some)).index)
        for name, some in values.items()
    }
    key, base, new = _variants(folder, by, ordered)
    blocks = {str(trial.folder): trial.block for trial in trials}
    groups: dict[bytes, FolderGroup] = {}
    for trial in trials:
        value, rest = _split(trial.parameters, key)
        if value in (base, new):
            group = _group(groups, rest, blocks)
            (group.base if value == base else group.new).append(trial.folder)
    for parameters, run in failed_trials(folder):
        value, rest = _split(parameters, key)
        if value in (base, new):
            _group(groups, rest, blocks).failed[value == new].append(run)
    return list(groups.values())


def _split(parameters: Parameters, key: str) -> tuple[str, Parameters]:
    """Return the value of the key as text, and the other parameters."""
    rest = {name: each for name, each in parameters.items() if name != key}
    return whole_text(parameters.get(key)), rest


def _listed(folder: Path) -> dict[str, list[str]]:
    """Return the values of each key in the experiment's product, in order."""
    experiment = read_experiment_file(folder).config.get("experiment") or {}
    axes = experiment.get("product") or ()
    return {key: list(map(whole_text, some)) for axis in axes for key, some in axis.items()}


def _variants(folder: Path, by: str, values: dict[str, list[str]]) -> tuple[str, str, str]:
    key, _, chosen = by.partition("=")
    known = ", ".join(f"{name} ({len(some)} values)" for name, some in values.items()) or "none"
    if not by:
        pairs = [name for name, some in values.items() if len(some) == 2]
        if len(pairs) != 1:
            raise ConfigError(
                f"{folder}: choose two variants with --by KEY or --by KEY=BASE,NEW; "
                f"its parameters: {known}"
            )
        key = pairs[0]
    if key not in values:
        raise ConfigError(f"--by {key}: no parameter of {folder}; they are {known}")
    names = [name.strip() for name in chosen.split(",")] if chosen else values[key]
    listed = one_line(", ".join(values[key]))
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(
            f"--by {by or key}: two values are compared: --by {key}=BASE,NEW; it has {listed}"
        )
    for name in names:
        if name not in values[key]:
            raise ConfigError(f"--by {by}: no trial has {key}={name}; it has {listed}")
    return key, names[0], names[1]
