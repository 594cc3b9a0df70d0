"""The trials of an experiment, in the order in which they run."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.config.experiment import VISITS, Blocks, Experiment
from aiperf_svc.domain.json_objects import Parameters

TRIALS = "trials"
"""Folder with the trials' folders, in the experiment's folder."""
SHAPES = "shapes"
"""Folder with the logs of each shape, in the experiment's folder."""
MAX_FOLDER_LENGTH = 120
"""Maximum length of a trial's folder name, in characters, all of which take one byte."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


class Trial(msgspec.Struct, frozen=True):
    number: int
    """From 1, in the order of running."""
    parameters: Parameters
    repetition: int = 1
    """From 1."""

    @property
    def folder(self) -> str:
        """Name of the trial's folder: `003-load.concurrency=4,dataset.input_tokens.mean=128-r2`."""
        head, tail = f"{self.number:03}", f"-r{self.repetition}"
        named = describe(self.parameters)
        middle = f"-{_UNSAFE.sub('_', named)}" if named else ""
        if len(head + middle + tail) > MAX_FOLDER_LENGTH:
            digest = hashlib.sha256(named.encode()).hexdigest()[:8]
            room = MAX_FOLDER_LENGTH - len(head) - len(tail) - len(digest) - 1
            middle = f"{middle[:room]}-{digest}"
        return head + middle + tail


def folder_of(trial: Trial, attempt: int) -> str:
    """Return the folder name of an attempt, which counts from 1."""
    return trial.folder if attempt == 1 else f"{trial.folder}-attempt{attempt}"


def describe(parameters: Mapping[str, Any]) -> str:
    """Return parameters on one line: `load.concurrency=4,dataset.input_tokens.mean=128`."""
    return ",".join(f"{k}={value_text(v)}" for k, v in parameters.items() if v is not None)


def plan_trials(experiment: Experiment, seed: int) -> tuple[Trial, ...]:
    """Plan the trials of an experiment or of its part; none for a search, which chooses them while
    it runs.

    `seed` determines the order of shuffled trials.
    """
    permutations = experiment.permutations()
    repetitions = range(1, experiment.repetitions + 1)
    if experiment.blocks is not None:
        order = _in_blocks(permutations, experiment.blocks, seed)
    elif experiment.order == "grouped":
        order = [(row, number) for row in permutations for number in repetitions]
    else:
        order = [(row, number) for number in repetitions for row in permutations]
        if experiment.order == "shuffled":
            random.Random(seed).shuffle(order)
    numbers = range(1, len(order) + 1) if experiment.part is None else experiment.part.trials
    return tuple(Trial(number, *order[number - 1]) for number in numbers)


def _in_blocks(
    permutations: Sequence[Parameters], blocks: Blocks, seed: int
) -> list[tuple[Parameters, int]]:
    """Return the trials with their repetition, in the order of running.

    A block visits the two values as ABBA or BAAB, which cancels a linear drift within it. The
    choice is random, so that a drift with the period of a block favours neither. A visit runs all
    trials of its value.
    """
    values = list(dict.fromkeys(value_text(each[blocks.over]) for each in permutations))
    by_value = {
        value: [each for each in permutations if value_text(each[blocks.over]) == value]
        for value in values
    }
    draw = random.Random(seed)
    found = []
    visits = dict.fromkeys(values, 0)
    for _ in range(blocks.count):
        one, other = values if draw.random() < 0.5 else values[::-1]
        for value in (one, other, other, one):
            visits[value] += 1
            found += [(each, visits[value]) for each in by_value[value]]
    return found


def block_of(repetition: int) -> int:
    """Return the block of a trial by its repetition, from 1."""
    return (repetition + VISITS - 1) // VISITS


def value_text(value: Any) -> str:
    """Return a parameter's value on one line, as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "+".join(f"{key}={value_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "+".join(map(value_text, value))
    return str(value)
