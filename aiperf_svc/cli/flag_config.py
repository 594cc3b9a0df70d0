"""Converts parsed flags to the data of a config, on top of a config file if there is one. Flags
with several values become the axes of an experiment."""

import argparse
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from aiperf_svc.cli.flag_values import template, values
from aiperf_svc.cli.flags import FLAGS, Flag
from aiperf_svc.cli.key_docs import takes_several
from aiperf_svc.cli.options import read_api_key
from aiperf_svc.cli.parsers.runs import STACK_FLAGS
from aiperf_svc.config import agentx
from aiperf_svc.config.benchmark import INFERENCE
from aiperf_svc.config.dataset import TRACES, Dataset, DatasetKind
from aiperf_svc.config.load import SCHEDULE_PARTS
from aiperf_svc.config.load_config import read_config_data, stack_path, with_users
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.prompts import SIDE, Passages, Turns
from aiperf_svc.config.secret_names import TARGET_KEY_ENV
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.config.yaml_files import parse_yaml, yaml_problem
from aiperf_svc.domain.endpoint_types import Feature, types_with
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.workloads.registry import kind_of, parse_benchmark

REQUESTS_PER_USER = 10
"""Default number of requests per user in a closed loop."""
REQUESTS_AT_ONCE = 1_000
"""Default number of requests at an infinite rate: as many prompts as in vllm bench."""
OPEN_LOOP_S = 10
"""Default length of an open loop: seconds' worth of requests, or seconds in trials of a load."""
ENDS = ("requests", "duration", "min_duration")
_NO_DEFAULT_END = ("fixed_schedule", "stages", "rate_series", "bursts", "user_centric")
"""Loads that end by themselves, or whose duration the user must set."""
SHAPES = ("concurrency", "request_rate", *_NO_DEFAULT_END)
"""Keys that define when requests are sent."""
NO_LIMIT = ("inf", "infinity")
SWEEPS, SEARCH = "experiment.product", "experiment.search"

LIST_KEYS = {"endpoint.url": "endpoint.urls", "endpoint.model": "endpoint.models"}
"""Names of the key for the first of several values and of the key for the others."""


@dataclass
class Draft:
    """A config before it is checked."""

    data: Json = field(default_factory=dict)
    source: str = ""
    names: dict[str, str] = field(default_factory=dict)
    """Flag of each dotted path, for messages that name a key by its flag."""
    notices: list[str] = field(default_factory=list)
    """Notices for the user about defaults that were chosen."""
    set_by: dict[str, str] = field(default_factory=dict)
    """Flag of each dotted path that a flag sets."""
    problems: list[Problem] = field(default_factory=list)
    """Values that could not be parsed."""

    def parse(self) -> Config:
        """Return the config. Raises ConfigError with all mistakes."""
        return parse_benchmark(self.data, self.source, names=self.names, known=self.problems)


def read_flags(args: argparse.Namespace) -> Draft:
    """Read the flags of `profile`. Raises ConfigError."""
    return read_workload_draft(args) if args.workload else read_draft(args)


def read_draft(
    args: argparse.Namespace, *, flags: Iterable[Flag] = FLAGS, preset: Mapping[str, object] = {}
) -> Draft:
    """Read the values of flags on top of `preset` (dotted keys), on top of the file of `--config`.

    Raises ConfigError if that file cannot be read.
    """
    path: Path | None = args.config
    draft = Draft(data=read_config_data(path) if path else {}, source=str(path) if path else "")
    for key, value in preset.items():
        put(draft.data, key, value)
    for flag in flags:
        argument = getattr(args, flag.destination)
        name = args.typed.get(flag.destination, flag.name)
        if path is None or argument is not None:
            draft.names[flag.key] = name
        if argument is None:
            continue
        try:
            _set(draft.data, flag, argument, draft.set_by, name=name)
        except ValueError as error:
            draft.problems.append(Problem(flag.key, str(error)))
            if flag.key.startswith("load."):
                # The models would also report the key as missing.
                put(draft.data, flag.key, argument)
    if path is None:
        _name_sections(draft)
    if kind_of(draft.data) != INFERENCE:
        return draft
    _complete_endpoint(draft)
    _move_scenario(draft.data)
    _complete_dataset(draft.data, args)
    _complete_rate(draft)
    if path is None:
        _complete_sounds(draft.data)
        # With an empty section, the models report its required keys.
        draft.data.setdefault("endpoint", {})
        varied = varied_keys(draft.data)
        experiment = draft.data.get("experiment") or {}
        if experiment.get("preset"):  # the preset completes the load itself
            draft.data.setdefault("load", {})
            return draft
        if draft.data.get("scenario"):  # the scenario determines the duration
            load = draft.data.setdefault("load", {})
            if "load.concurrency" not in varied:
                load.setdefault("concurrency", 1)
            return draft
        if "load.concurrency" not in varied and "load.request_rate" not in varied:
            scenario = experiment.get("scenario")
            draft.data["load"] = with_users(draft.data.get("load") or {}, scenario)
        load = draft.data.setdefault("load", {})
        draft.notices += _complete_shape(load, varied, draft.data.get("dataset"))
        draft.notices += _complete_end(load, varied)
    return draft


def _name_sections(draft: Draft) -> None:
    """Name each section of keys, such as `dataset.images`, by the first flag that sets a part of
    it, or could set one."""
    by_flags = {key: name for key, name in draft.names.items() if key in draft.set_by}
    for key, name in (*by_flags.items(), *draft.names.copy().items()):
        section = key.rpartition(".")[0]
        while "." in section:
            draft.names.setdefault(section, name)
            section = section.rpartition(".")[0]


def _move_scenario(data: Json) -> None:
    """Apply a scenario that replaces the benchmark, with the dataset that it needs."""
    experiment = data.get("experiment")
    if isinstance(experiment, dict) and experiment.get("scenario") in agentx.NAMES:
        data["scenario"] = experiment.pop("scenario")
        if not experiment:
            del data["experiment"]
    if data.get("scenario") in agentx.NAMES:
        data.update(agentx.with_agentx(data))


def read_workload_draft(args: argparse.Namespace) -> Draft:
    """Read `--workload KIND KEY=VALUE...` and the flags that every kind of benchmark has.

    Raises ConfigError if a flag is about an inference server.
    """
    kind, *settings = args.workload
    common = [flag for flag in FLAGS if flag.key.partition(".")[0] in WorkloadConfig.model_fields]
    refused = [
        args.typed.get(flag.destination, flag.name)
        for flag in FLAGS
        if flag not in common and getattr(args, flag.destination) is not None
    ]
    if refused:
        raise ConfigError(
            f"{', '.join(refused)}: for inference servers only; leave out either this or --workload"
        )
    preset: dict[str, object] = {"workload.kind": kind}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise ConfigError(f"--workload: {setting!r}: expected KEY=VALUE")
        try:
            preset[f"workload.{key}"] = parse_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--workload {setting}: {yaml_problem(error)}") from error
    return read_draft(args, flags=common, preset=preset)


def read_stack_draft(args: argparse.Namespace) -> Draft:
    """Read the stack file of `run` and `qualify`, with the values of flags. Raises ConfigError."""
    args.config = stack_path(args.stack)
    draft = read_draft(args, flags=STACK_FLAGS)
    if args.is_qualification:
        # Imported here because other runs need none of its models.
        from aiperf_svc.cli.commands.qualification import complete

        complete(draft, args)
    return draft


def read_draft_of_run(
    args: argparse.Namespace, folder: Path, *, flags: Iterable[Flag] = FLAGS
) -> Draft:
    """Read the config of a finished run or experiment from its folder, with the values of flags on
    top. Raises ConfigError if it cannot be read."""
    from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file

    if is_experiment(folder):
        args.config = None
        return read_draft(args, flags=flags, preset=read_experiment_file(folder).config)
    args.config = folder / "config.yaml"
    return read_draft(args, flags=flags)


def read_api_key_flag(draft: Draft, text: str | None) -> str | None:
    """Return the key of `--api-key`, and set its variable in the config; None without the flag.
    Raises ConfigError."""
    if text is None:
        return None
    if "workload" in draft.data:
        raise ConfigError("--api-key is for an inference server; this workload has none")
    put(draft.data, "endpoint.api_key_env", TARGET_KEY_ENV)
    return read_api_key(text)


def _set(data: Json, flag: Flag, argument: Any, earlier: dict[str, str], *, name: str) -> None:
    """Set the key of a flag, or create trials if the flag has a list. `earlier` maps keys that
    flags have set to these flags, and `name` is this flag as it was typed. Raises ValueError."""
    is_list = isinstance(argument, str) and "," in argument and takes_several(flag)
    value: Any = argument
    if is_list:
        value = [flag.read(each) for each in argument.split(",")] if flag.read else values(argument)
    elif flag.read:
        value = flag.read(argument)
    varied = value if flag.key == SWEEPS else ()
    for key in (value["parameter"],) if flag.key == SEARCH else varied:
        if key in earlier:
            raise ValueError(f"{key} is also given by {earlier[key]}; leave out one of them")
    earlier[flag.key] = name
    if is_list:
        add_axes(data, {flag.key: value})
    elif flag.key == SWEEPS:
        add_axes(data, value)
    elif flag.key in LIST_KEYS:
        remove_axis(data, flag.key)
        put(data, flag.key, value[0])
        put(data, LIST_KEYS[flag.key], value[1:])
    else:
        remove_axis(data, flag.key)
        put(data, flag.key, value)


def put(data: Json, key: str, value: Any) -> None:
    """Set a key by its path; dictionaries are merged. If another value is on the path, it stays,
    and the models refuse it."""
    *parents, last = key.split(".")
    for name in parents:
        below = data.get(name)
        if below is None:
            below = data[name] = {}
        elif not isinstance(below, dict):
            return
        data = below
    old = data.get(last)
    data[last] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value


def _complete_endpoint(draft: Draft) -> None:
    """Move the template and the response field out of `--extra-inputs`, as in AIPerf."""
    endpoint = draft.data.get("endpoint")
    if not isinstance(endpoint, dict) or endpoint.get("type") not in types_with(Feature.CUSTOM):
        return
    extra = endpoint.get("extra_inputs")
    if not isinstance(extra, dict):
        return
    for name, key in (("payload_template", "template"), ("response_field", "response_field")):
        if name not in extra:
            continue
        text = str(extra.pop(name))
        try:
            endpoint[key] = template(text) if key == "template" else text
        except ValueError as error:
            draft.problems.append(Problem(f"endpoint.{key}", str(error)))


def _complete_dataset(data: Json, args: argparse.Namespace) -> None:
    """Set the dataset's keys that other flags imply: the kind of a file, and the default mean of a
    length with only a standard deviation."""
    dataset = data.get("dataset")
    if not isinstance(dataset, dict):
        return
    if dataset.get("kind") in (None, DatasetKind.SYNTHETIC.value):
        if getattr(args, "input_file", None):
            dataset["kind"] = DatasetKind.SINGLE_TURN.value
        elif getattr(args, "public_dataset", None):
            dataset["kind"] = DatasetKind.SHAREGPT.value
    for part, key, default in (
        (dataset, "input_tokens", Dataset().input_tokens),
        (dataset.get("passages"), "number", Passages().number),
        (dataset.get("passages"), "tokens", Passages().tokens),
        (dataset.get("turns"), "number", Turns().number),
        (dataset.get("images"), "width", SIDE),
        (dataset.get("images"), "height", SIDE),
    ):
        lengths = part.get(key) if isinstance(part, dict) else None
        if isinstance(lengths, dict) and lengths.keys() == {"stddev"}:
            lengths["mean"] = default.mean


def _complete_sounds(data: Json) -> None:
    """Set one audio input per request if the endpoint transcribes audio."""
    endpoint, dataset = data.get("endpoint"), data.setdefault("dataset", {})
    if not isinstance(endpoint, dict) or not isinstance(dataset, dict):
        return
    is_synthetic = dataset.get("kind") in (None, DatasetKind.SYNTHETIC.value)
    if is_synthetic and endpoint.get("type") in types_with(Feature.SOUND_ALONE):
        sounds = dataset.setdefault("sounds", {})
        if isinstance(sounds, dict):
            sounds.setdefault("number", 1)


def _complete_rate(draft: Draft) -> None:
    """Replace the infinite rate of a flag by the equivalent closed loop: with as many users as the
    concurrency limit, or with one user per request, so all requests are sent at once. The models
    refuse an infinite rate in a file."""
    load = draft.data.get("load")
    if "load.request_rate" not in draft.set_by or not isinstance(load, dict):
        return
    if str(load.get("request_rate")).lower() not in NO_LIMIT:
        return
    del load["request_rate"]
    if load.get("concurrency") is None and "load.concurrency" not in varied_keys(draft.data):
        dataset = draft.data.get("dataset")
        entries = dataset.get("entries") if isinstance(dataset, dict) else None
        count = load.get("requests") or entries
        if count is None:
            count = REQUESTS_AT_ONCE
            if load.get("duration") is not None:
                text = "{load.request_rate}: inf sends all requests at once; set their number with "
                text += "{load.requests}, or a limit with {load.concurrency}"
                draft.problems.append(Problem("", text, names_keys=True))
        load |= {"concurrency": count, "requests": count}
        draft.notices.append(f"--request-rate inf: all {count} requests at once")
    else:
        draft.notices.append(
            "--request-rate inf: as with --concurrency alone, each user sends its next request "
            "when its last response has ended"
        )


def _complete_shape(load: Json, varied: Collection[str], dataset: Any) -> list[str]:
    """Set the default load if there is none, and return its notice. A trace is sent at its own
    times, other prompts by one user."""
    neither = "neither --concurrency nor --request-rate"
    is_trace = isinstance(dataset, dict) and dataset.get("kind") in TRACES
    is_cap_alone = not any(load.get(name) for name in SHAPES if name != "concurrency")
    if is_trace and is_cap_alone and any(load.get(name) is not None for name in SCHEDULE_PARTS):
        load.setdefault("fixed_schedule", True)
    if any(load.get(name) or f"load.{name}" in varied for name in SHAPES):
        return []
    if is_trace and load.get("fixed_schedule") is None:
        load["fixed_schedule"] = True
        return [f"{neither}: the trace's own times (--fixed-schedule)"]
    load["concurrency"] = 1
    return [f"{neither}: one user (--concurrency 1)"]


def _complete_end(load: Json, varied: Collection[str]) -> list[str]:
    """Set the default end if the load has none, and return its notice. Trials set `varied`."""
    if any(load.get(name) is not None or f"load.{name}" in varied for name in ENDS):
        return []
    if any(load.get(name) for name in _NO_DEFAULT_END):
        return []
    if "load.concurrency" in varied or "load.request_rate" in varied:
        load["duration"] = f"{OPEN_LOOP_S}s"
        return [f"neither --request-count nor --benchmark-duration: {OPEN_LOOP_S} s for each trial"]
    try:
        if load.get("request_rate") is not None:
            rate = float(load["request_rate"])
            load["requests"] = max(1, math.ceil(rate * OPEN_LOOP_S))
            why = f"{OPEN_LOOP_S} s at {rate:g} requests/s"
        else:
            users = int(load.get("concurrency") or 0)
            load["requests"] = max(1, users * REQUESTS_PER_USER)
            each = "one user" if users == 1 else f"each of {users:,} users"
            why = f"{REQUESTS_PER_USER} for {each}"
    except (ValueError, OverflowError):
        # Not a number: the models report it.
        return []
    return [
        f"neither --request-count nor --benchmark-duration: {load['requests']:,} requests ({why})"
    ]


def add_axes(data: Json, axes: Mapping[str, list[Any]]) -> None:
    """Create a trial for each combination of values, in addition to the axes of the file."""
    experiment = data.get("experiment")
    if experiment is None:
        experiment = data["experiment"] = {}
    if isinstance(experiment, dict):
        others = set(axes) - set(_product(experiment))
        for key in others & varied_keys(data):
            remove_axis(data, key)
        experiment["product"] = {**_product(experiment), **axes}


def remove_axis(data: Json, key: str) -> None:
    """Remove the axis of a key that a flag sets. Raises ValueError if the file sets the key
    together with others."""
    experiment = data.get("experiment")
    if not isinstance(experiment, dict):
        return
    product = _product(experiment)
    if key in product:
        del product[key]
        experiment["product"] = product
        if isinstance(experiment.get("template"), dict):
            experiment["template"].pop(key, None)
        if not varied_keys(data) and experiment.get("repetitions", 1) == 1:
            del data["experiment"]
    elif key in varied_keys(data):
        raise ValueError("the experiment of the file sets it for each trial; change it there")


def varied_keys(data: Mapping[str, Any]) -> set[str]:
    """Return the keys that trials set. Invalid parts are ignored."""
    experiment = data.get("experiment")
    if not isinstance(experiment, Mapping):
        return set()
    rows = experiment.get("explicit")
    found = {key for row in _maps(rows) for key in row}
    found |= {key for axes in _maps(experiment.get("zip")) for key in axes}
    search = experiment.get("search")
    if isinstance(search, Mapping):
        found |= {str(search.get("parameter"))}
        found |= {key for axes in _maps(search.get("parameters")) for key in axes}
    return found | set(_product(experiment))


def _product(experiment: Mapping[str, Any]) -> Json:
    """Return the axes of a product: a map, or in a saved config a list of maps."""
    return {
        key: listed for axes in _maps(experiment.get("product")) for key, listed in axes.items()
    }


def _maps(written: Any) -> list[Mapping[str, Any]]:
    listed = written if isinstance(written, list) else [written]
    return [each for each in listed if isinstance(each, Mapping)]
