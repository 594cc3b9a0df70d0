"""The trials of an experiment before they run, with their order and times. Pure."""

from collections.abc import Sequence
from typing import Any

from aiperf_svc.config.base import MINUTE_NS, SECOND_NS
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.config.units import format_duration
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import describe, value_text
from aiperf_svc.domain.number_text import count
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape, is_fanned_out, is_side_by_side
from aiperf_svc.workloads.stacks import longest_trials
from aiperf_svc.workloads.trials import TrialConfig
from aiperf_svc.workloads.workload import ReplayNs, TrialTimes, no_length

MAX_ROWS = 40
"""Maximum trials in a list for people."""
WIDEST = 40
"""Maximum characters of a parameter's value in a list for people."""


def headline(
    config: Config, members: Sequence[TrialConfig], replay_ns: ReplayNs = no_length
) -> str:
    """Return the number of trials and their duration: `14 trials, about 16m`."""
    experiment = config.experiment
    if experiment is not None and config.search is not None:
        return f"{_search(experiment)}, {_length_text(_times(config, members, replay_ns))}"
    parts = [count(len(members), "trial")]
    if experiment is not None and experiment.repetitions > 1:
        different = len(members) // experiment.repetitions
        parts[0] += f" ({different:,} different, {experiment.repetitions:,} times)"
        parts.append(experiment.order)
    length = _length_text(_times(config, members, replay_ns))
    is_at_once = is_side_by_side(config) or is_fanned_out(config)
    return ", ".join([*parts, f"in total {length}" if is_at_once else length])


def as_lines(
    config: Config, members: Sequence[TrialConfig], replay_ns: ReplayNs = no_length
) -> list[str]:
    """Return the list as terminal lines, one per trial. `replay_ns` returns the length of a trace
    that has been read."""
    lines = [headline(config, members, replay_ns)]
    if config.experiment is None or config.search is not None:
        return lines
    keys = config.experiment.keys
    has_repetitions = config.experiment.repetitions > 1
    rows = [("trial", *keys, *(["repetition"] if has_repetitions else []), "takes")]
    for trial, made in members[:MAX_ROWS]:
        values = (_value(trial.parameters[key]) for key in keys)
        repetition = [str(trial.repetition)] if has_repetitions else []
        takes = _expected_text(workload_of(made).trial_times(made, replay_ns))
        rows.append((str(trial.number), *values, *repetition, takes))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(cells)}".rstrip())
    if len(members) > MAX_ROWS:
        lines.append(f"  … and {len(members) - MAX_ROWS:,} more")
    return lines


def shape_title(shapes: Sequence[Shape], number: int) -> str:
    """Return the number and the trials of a shape: `shape 2 of 3 (workers.max=2): trials 2, 5`."""
    trials = ", ".join(str(trial.number) for trial in shapes[number - 1].trials)
    return f"{shape_name(shapes, number)}: trials {trials}"


def shape_name(shapes: Sequence[Shape], number: int) -> str:
    """Return the number and parameters of a shape: `shape 2 of 3 (workers.max=2)`."""
    parameters = describe(shapes[number - 1].parameters)
    return f"shape {number} of {len(shapes)}" + (f" ({parameters})" if parameters else "")


def as_json(
    config: Config, members: Sequence[TrialConfig], replay_ns: ReplayNs = no_length
) -> dict[str, Any]:
    """Return the list as the content of a JSON object. Times are seconds; null if unknown."""
    times = _times(config, members, replay_ns)
    search = config.experiment.search if config.experiment else None
    return {
        "name": config.name,
        "expected_s": _seconds(times.expected),
        "longest_s": _seconds(times.longest),
        "search": search.model_dump(mode="json") if search else None,
        "trials": [
            {
                "number": trial.number,
                "parameters": trial.parameters,
                "repetition": trial.repetition,
                "folder": trial.folder,
                "expected_s": _seconds(workload_of(made).trial_times(made, replay_ns).expected),
                "longest_s": _seconds(workload_of(made).trial_times(made, replay_ns).longest),
            }
            for trial, made in (() if search else members)
        ],
    }


def _search(experiment: Experiment) -> str:
    search = experiment.search
    assert search is not None
    ranges = ", ".join(f"{k} from {s.start:g} to {s.end:g}" for k, s in search.ranges.items())
    max_trials = MAX_POINTS + search.max_longer_trials
    aim = f"the highest {search.maximize}" if search.maximize else f"what holds ({search.holds})"
    return f"search: {ranges} for {aim}; at most {max_trials} trials"


def _times(config: Config, members: Sequence[TrialConfig], replay_ns: ReplayNs) -> TrialTimes:
    """Return the times of all trials, pauses included. The end of a search is unknown."""
    assert members
    configs = longest_trials(config, [each.config for each in members])
    pauses = (len(configs) - 1) * (config.experiment.cooldown if config.experiment else 0)
    # Repetitions share their configs.
    times = {id(each): workload_of(each).trial_times(each, replay_ns) for each in configs}
    each_time = [times[id(each)] for each in configs]
    expected = [each.expected for each in each_time if each.expected is not None]
    longest = [each.longest for each in each_time if each.longest is not None]
    return TrialTimes(
        sum(expected) + pauses if len(expected) == len(configs) and config.search is None else None,
        sum(longest) + pauses if len(longest) == len(configs) else None,
    )


def _length_text(times: TrialTimes) -> str:
    if times.longest is None:
        return (
            "for an unknown time"
            if times.expected is None
            else f"about {human_time(times.expected)}"
        )
    longest = f"at most {human_time(times.longest)}"
    if times.expected is None or times.expected == times.longest:
        return longest
    return f"about {human_time(times.expected)}, {longest}"


def _expected_text(times: TrialTimes) -> str:
    if times.expected is not None:
        return human_time(times.expected)
    return "unknown" if times.longest is None else f"at most {human_time(times.longest)}"


def human_time(time_ns: int) -> str:
    """Return a time as hours, minutes and seconds: `1h56m40s`."""
    if time_ns < MINUTE_NS:
        return format_duration(time_ns)
    minutes, rest_ns = divmod(round(time_ns / SECOND_NS) * SECOND_NS, MINUTE_NS)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest_ns // SECOND_NS, "s")]
    return "".join(f"{value}{unit}" for value, unit in parts if value)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / SECOND_NS


def _value(value: Any) -> str:
    text = "–" if value is None else value_text(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
