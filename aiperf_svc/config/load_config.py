"""Reads a BenchmarkConfig from a file, from a stack file or from data, and writes it to a file.

All mistakes are reported together, one per line. Every service imports this module, so it depends
only on YAML and the models.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.concurrency_regions import curve_defaults
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.parameters import key_path, key_problems, template_value, with_parameters
from aiperf_svc.config.paths import merged, value_at, with_value
from aiperf_svc.config.problems import Problem, problems_before_models, problems_in
from aiperf_svc.config.several_targets import with_target_keys
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import read_yaml, yaml_text
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.name_suggestions import did_you_mean, nearest

Parsed = TypeVar("Parsed", bound=BaseModel)

STACK_KEY = "aiperf:benchmark"
"""Key of the config in a stack file."""
STACKS = Path("stacks")
"""Folder of the stack files."""
_PACKAGE = Path(__file__).parents[1]
_OWN_STACKS = (_PACKAGE / "_infra" / STACKS, _PACKAGE.parent / STACKS)
"""Folders of the stack files that come with the program, in an installed wheel or a checkout."""
SCENARIO_USERS = {"single-stream": 1, "multi-stream": 8, "offline": 1}
"""Default number of users of a scenario. Offline uses one for each request."""
RATED_SCENARIOS = ("server", "interactive")
"""Scenarios that need a request rate."""
LOAD_KEYS = ("concurrency", "request_rate", "fixed_schedule", "stages", "rate_series")
"""Keys that define the load; one of them is enough."""


def load_config(path: Path) -> BenchmarkConfig:
    """Read the config in a YAML or JSON file, or in a stack file. Raises ConfigError."""
    return parse_config(read_config_data(path), str(path))


def stack_path(name_or_path: str) -> Path:
    """Return the file of a stack: for `bench-smoke`, `stacks/Pulumi.bench-smoke.yaml` or else the
    file of that name that comes with the program. Raises ConfigError if neither exists."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
        return path
    return _find_stack(name_or_path, (STACKS, *_OWN_STACKS))


def own_stack_path(name: str) -> Path:
    """Return the file of a stack that comes with the program. Raises ConfigError."""
    return _find_stack(name, _OWN_STACKS)


def own_base(path: Path) -> Path | None:
    """Return the folder for relative paths in a stack file that comes with the program; None for
    any other file, where they are relative to the working folder."""
    return path.parents[1] if path.parent in _OWN_STACKS else None


def _find_stack(name: str, folders: Sequence[Path]) -> Path:
    file = f"Pulumi.{name}.yaml"
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    if Path(name).exists():
        raise ConfigError(f"{name}: expected a config, a .yaml or .json file, or a stack")
    own, *shipped = (_stacks_in(folder) for folder in folders)
    available = own.union(*shipped)
    hint = did_you_mean(name, available, f"found: {', '.join(sorted(own or available)) or 'none'}")
    raise ConfigError(f"stack {name!r}: no such file: {folders[0] / file}{hint}")


def _stacks_in(folder: Path) -> set[str]:
    files = folder.glob("Pulumi.*.yaml")
    return {file.name.removeprefix("Pulumi.")[: -len(".yaml")] for file in files}


def is_stack_file(path: Path) -> bool:
    """Return whether a file is a stack file rather than a plain config. Raises ConfigError if it
    cannot be read."""
    data = read_yaml(path)
    return isinstance(data, dict) and isinstance(data.get("config"), dict)


def read_config_data(path: Path) -> Json:
    """Read a config without checking its content. Raises ConfigError."""
    data = read_yaml(path)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        settings = data["config"]
        if STACK_KEY not in settings:
            close = nearest(STACK_KEY, map(str, settings))
            hint = f"; rename {close!r} to it" if close else ""
            raise ConfigError(f"{path}: config has no {STACK_KEY}{hint}")
        data = settings[STACK_KEY]
    if not isinstance(data, dict):
        actual = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{path}: expected a benchmark's keys (endpoint, load, …), not {actual}")
    return data


def parse_config(
    data: Json,
    source: str,
    *,
    names: Mapping[str, str] | None = None,
    known: Sequence[Problem] = (),
) -> BenchmarkConfig:
    """Make the config that `data` describes. Raises ConfigError that lists all mistakes.

    `source` names the origin of the data. `names` maps dotted paths to the user's names of these
    keys, such as flags. `known` contains mistakes found earlier, which are listed with the others.
    """
    return parse_as(BenchmarkConfig, data, source, names=names, known=known)


def parse_as(
    model: type[Parsed],
    data: Json,
    source: str,
    *,
    names: Mapping[str, str] | None = None,
    known: Sequence[Problem] = (),
) -> Parsed:
    """Make a config of another model from `data`, as `parse_config` does."""
    data = with_target_keys(data)
    experiment = data.get("experiment")
    if isinstance(experiment, Mapping):
        config, problems = _template_checked(model, data, experiment)
    else:
        config, problems = _checked(model, data)
    if config is not None and not known:
        return config
    reported = tuple(f"{problem.key}." for problem in known if problem.key)
    others = [each for each in problems if not f"{each.key}.".startswith(reported)]
    raise refusal([*known, *others], source, names=names)


def _template_checked(
    model: type[Parsed], data: Json, written: Mapping[str, Any]
) -> tuple[Parsed | None, list[Problem]]:
    """Make the config of an experiment: the config of its first trial, with the experiment."""
    try:
        experiment = Experiment.model_validate(written)
    except ValidationError:
        # While keys of trials are absent, other missing keys cannot be judged.
        _, problems = _checked(model, data)
        return None, [p for p in problems if p.key.partition(".")[0] == "experiment"]
    if found := key_problems(experiment.keys, model):
        return None, [
            Problem(f"experiment.{experiment.list_of(key)}", f"{key}: {text}")
            for key, text in found
        ]
    if experiment.preset is not None:
        for path, value in curve_defaults(data):
            data = with_value(data, path, value)
    template = {
        key: experiment.template.get(key, template_value(data, key_path(key, model), model))
        for key in experiment.keys
    }
    experiment = experiment.model_copy(update={"template": template})
    completed = with_parameters(data, experiment.first(), model)
    completed["experiment"] = {**written, "template": template}
    if experiment.scenario is not None and model is BenchmarkConfig:
        completed["load"] = with_users(completed.get("load"), experiment.scenario)
        if (
            experiment.scenario in RATED_SCENARIOS
            and value_at(completed, ("load", "request_rate")) is None
        ):
            text = f"{experiment.scenario!r} needs {{load.request_rate}}, the rate of queries; "
            text += "{experiment.search} finds the highest"
            return None, [Problem("", f"{{experiment.scenario}}: {text}", names_keys=True)]
    return _checked(model, completed)


def _checked(model: type[Parsed], data: Json) -> tuple[Parsed | None, list[Problem]]:
    problems = problems_before_models(data, model)
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        refused = {p.key for p in problems}
        return None, problems + [p for p in problems_in(error, data, model) if p.key not in refused]
    return (None if problems else config), problems


def refusal(
    problems: list[Problem], source: str, *, names: Mapping[str, str] | None = None
) -> ConfigError:
    """Return the error that lists `problems`."""
    lines = [problem.line(names or {}) for problem in problems]
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}" if source else lines[0])
    title = f"{source}: {len(lines)} problems" if source else f"{len(lines)} problems"
    return ConfigError("\n  ".join([title, *lines]))


def save_config(config: BaseModel, path: Path) -> None:
    """Write a config with all keys and human units, as a file that can be run again."""
    data = config.model_dump(mode="json", by_alias=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(yaml_text(data), encoding="utf-8")
    partial.replace(path)


def with_users(load: Any, scenario: Any) -> Any:
    """Return the load with a scenario's default number of users, unless the load defines one."""
    users = SCENARIO_USERS.get(scenario) if isinstance(scenario, str) else None
    if users is None or not isinstance(load or {}, Mapping):
        return load
    content = dict(load or {})
    return load if any(content.get(key) for key in LOAD_KEYS) else content | {"concurrency": users}


class TargetConfig(NamedTuple):
    """A target and the config of its run."""

    name: str
    config: BenchmarkConfig


def target_configs(config: Config) -> tuple[TargetConfig, ...]:
    """Return the config of each target; none if the config has no `targets`. Raises ConfigError
    naming the target."""
    found = []
    for target in config.targets:
        data = config.model_dump(mode="json", by_alias=True, exclude={"targets"})
        own = {"endpoint": target.endpoint, "deployment": target.deployment}
        for key in config.experiment.keys if config.experiment is not None else ():
            if value_at(own, key_path(key, BenchmarkConfig)) is not None:
                raise ConfigError(f"target {target.name} sets {key}, which the experiment varies")
        data = merged(data, own)
        found.append(TargetConfig(target.name, parse_config(data, f"target {target.name}")))
    return tuple(found)


def chosen_target(config: Config, name: str) -> Config:
    """Return the config of the target that a stack's file selects for `pulumi up`: the first one if
    no name is set, the config itself if it has no `targets`. Raises ConfigError."""
    found = target_configs(config)
    if not found:
        if name:
            raise ConfigError(f"aiperf:target: {name!r}: this stack has no `targets`")
        return config
    chosen = next((each.config for each in found if name in ("", each.name)), None)
    if chosen is None:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"aiperf:target: {name!r}: expected one of {names}")
    return chosen
