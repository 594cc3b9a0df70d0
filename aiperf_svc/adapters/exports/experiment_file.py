"""Reads experiment.json: the trials of an experiment, finished or not, and its config."""

from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.adapters.exports.versioned_json import read_versioned
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

NAME = "experiment.json"
SCHEMA = "experiment/1"
"""Its `schema_version`. The number is raised when a key changes its meaning."""


class TrialEntry(msgspec.Struct, frozen=True):
    """A trial that has ended."""

    number: int
    repetition: int
    parameters: dict[str, Any]
    state: str
    reason: str
    folder: str
    """Name of its folder, below `trials`."""
    replaced: tuple[str, ...] = ()
    """Why earlier attempts do not count."""


class ExperimentFile(msgspec.Struct, frozen=True):
    """What readers of experiment.json need of it."""

    schema_version: str
    version: str = "unknown"
    trials: tuple[TrialEntry, ...] = ()
    config: dict[str, Any] = {}


def is_experiment(folder: Path) -> bool:
    """True if this is the folder of an experiment."""
    return (folder / NAME).is_file()


def read_experiment_file(folder: Path) -> ExperimentFile:
    """Read the experiment.json of a folder. Raises ConfigError."""
    path = folder / NAME
    found = read_versioned(
        path,
        ExperimentFile,
        schema=SCHEMA,
        remedy="use",
        absent="; expected the folder of an experiment of which a trial has ended",
    )
    for each in found.trials:
        # The name is joined to the folder's, and must not lead out of it.
        if each.folder != Path(each.folder).name:
            raise ConfigError(
                f"{path}: trial {each.number}: {one_line(each.folder)!r} is no name of a folder in "
                f"{TRIALS}"
            )
    return found
