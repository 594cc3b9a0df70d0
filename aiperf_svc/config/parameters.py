"""Keys of a config as parameters of a trial: finds, reads and sets them."""

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from pydantic import BaseModel

from aiperf_svc.config.names import model_at, nearest_key, type_at
from aiperf_svc.config.paths import value_at, with_value

COMMON = (
    "experiment",
    "name",
    "artifacts.dir",
    "artifacts.s3",
    "artifacts.webhook",
    "deployment.namespace",
    "deployment.results",
    "deployment.ttl",
)
"""Keys of the experiment as a whole, which no trial may set."""


def is_below(key: str, other: str) -> bool:
    """Return whether a dotted key equals another one or is a part of it."""
    return f"{key}.".startswith(f"{other}.")


def key_path(key: str, root: type[BaseModel]) -> tuple[str, ...]:
    """Return the path of a dotted key in a config of the model `root`. A name in a map may contain
    dots, as node labels do."""
    parts = tuple(key.split("."))
    for number in range(1, len(parts)):
        is_map = get_origin(type_at(parts[:number], root)) is dict
        if is_map and model_at((*parts[:number], parts[number]), root) is None:
            return (*parts[:number], ".".join(parts[number:]))
    return parts


def key_problems(keys: Sequence[str], root: type[BaseModel]) -> list[tuple[str, str]]:
    """Return the keys that cannot be parameters, each with the reason."""
    found = []
    for key in keys:
        path = key_path(key, root)
        whole = next((each for each in COMMON if is_below(each, key)), None)
        inside = next((other for other in keys if other != key and is_below(key, other)), None)
        if any(is_below(key, each) for each in COMMON):
            found.append((key, "belongs to all trials; no trial can set it"))
        elif whole:
            found.append((key, f"sets {whole} too, which belongs to all trials; vary other keys"))
        elif type_at(path, root) is None:
            found.append((key, f"no key of the config{_nearest(path, root)}"))
        elif inside:
            found.append((key, f"is part of {inside}; vary one of them"))
    return found


def template_value(data: Any, path: Sequence[str], root: type[BaseModel]) -> Any:
    """Return the value at a path, as written, for trials that do not set it; None if there is none.
    A required key, such as the mean of `dataset.input_tokens`, uses the default of the object that
    contains it, unless the config sets another key of that object."""
    written = value_at(data, path)
    parent = model_at(path[:-1], root)
    field = parent.model_fields.get(path[-1]) if parent is not None else None
    if written is not None or field is None or not field.is_required():
        return written
    for number in range(1, len(path)):
        holder = model_at(path[: number - 1], root)
        outer = holder.model_fields.get(path[number - 1]) if holder is not None else None
        if outer is not None and value_at(data, path[:number]) is None:
            default = outer.get_default(call_default_factory=True)
            content = default.model_dump(mode="json") if isinstance(default, BaseModel) else None
            return value_at(content, path[number:])
    return None


def with_parameters(
    data: Mapping[str, Any], parameters: Mapping[str, Any], root: type[BaseModel]
) -> dict[str, Any]:
    """Return the config as written, with the parameters of a trial."""
    changed: Any = data
    for key, value in parameters.items():
        changed = with_value(changed, key_path(key, root), value)
    return dict(changed)


def _nearest(path: Sequence[str], root: type[BaseModel]) -> str:
    for number in range(1, len(path) + 1):
        if type_at(path[:number], root) is None:
            close = nearest_key(path[:number], root)
            whole = ".".join((close, *path[number:])) if close else ""
            return f"; did you mean {whole}?" if whole else ""
    return ""
