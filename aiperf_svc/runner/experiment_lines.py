"""Where an experiment is, in words."""

from collections.abc import Iterable, Mapping
from typing import Any

from aiperf_svc.adapters.results_api.status import ExperimentStatus, TrialRow


def position(experiment: ExperimentStatus) -> str:
    """Return which trial is on: `trial 3 of 12`; where several are, how many have ended."""
    if not experiment.number and experiment.total:
        return f"{experiment.ended:,} of {experiment.total:,} trials"
    of = f" of {experiment.total:,}" if experiment.total else ""
    again = f", attempt {experiment.attempt}" if experiment.attempt > 1 else ""
    return f"trial {experiment.number:,}{of}{again}"


def trial_line(row: TrialRow) -> str:
    """Return a trial that has ended, in one line."""
    named = parameters_text(row.parameters)
    number = f"trial {row.number:,}" + (f", attempt {row.attempt}" if row.attempt > 1 else "")
    parts = [number + (f" ({named})" if named else ""), row.state]
    parts += [row.text] if row.text else []
    parts += [f"verdict {row.verdict}"] if row.verdict else []
    parts += [row.reason] if row.reason else []
    return " · ".join(parts)


VAGUE = ("mean", "stddev", "min", "max", "value")
"""Last parts of keys that say nothing without the part before them."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest end of each dotted key that tells it from all others."""
    keys = list(dict.fromkeys(keys))
    return {key: _short_name(key, [each for each in keys if each != key]) for key in keys}


def _short_name(key: str, others: list[str]) -> str:
    parts = key.split(".")
    for begin in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[begin:])
        is_clear = not parts[begin].isdigit() and parts[begin] not in VAGUE
        if is_clear and not any(f".{each}".endswith(f".{name}") for each in others):
            return name
    return key


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return what a trial changes: `load.concurrency 4, dataset.input_tokens.mean 128`."""
    return ", ".join(f"{key} {value}" for key, value in parameters.items())
