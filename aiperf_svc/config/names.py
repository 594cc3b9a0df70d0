"""The valid names of a config, and the closest one to an invalid name."""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.name_suggestions import nearest


@cache
def all_keys(root: type[BaseModel] = BenchmarkConfig) -> tuple[str, ...]:
    """Return every key of a config as a dotted path, `load.concurrency`, in the order of the
    models."""
    return tuple(_keys_below(root, ""))


def keys_at(path: Sequence[str], root: type[BaseModel] = BenchmarkConfig) -> tuple[str, ...]:
    """Return the keys of the model at a path; none if there is no model."""
    found = model_at(path, root)
    return tuple(_fields(found)) if found else ()


def model_at(
    path: Sequence[str], root: type[BaseModel] = BenchmarkConfig
) -> type[BaseModel] | None:
    """Return the model at a path; None if there is none."""
    annotation = type_at(path, root)
    return None if _is_collection(annotation) else _model_in(annotation)


def type_at(path: Sequence[str], root: type[BaseModel] = BenchmarkConfig) -> Any:
    """Return the type of the value at a path; None for an unknown path. List indexes and dictionary
    keys are parts of a path too."""
    return _type_at(tuple(path), root)


@lru_cache(maxsize=4096)
def _type_at(path: tuple[str, ...], root: type[BaseModel]) -> Any:
    annotation: Any = root
    for part in path:
        arguments = get_args(annotation)
        if get_origin(annotation) is dict:
            annotation = arguments[1]
        elif get_origin(annotation) in (tuple, list):
            annotation = arguments[0]
        else:
            model = _model_in(annotation)
            fields = _fields(model) if model else {}
            if part not in fields:
                return None
            annotation = fields[part].annotation
    return annotation


def nearest_key(path: Sequence[str], root: type[BaseModel] = BenchmarkConfig) -> str | None:
    """Return the key that an unknown one probably meant: first a sibling, then any key of this name
    elsewhere."""
    *parents, name = path
    sibling = nearest(name, keys_at(parents, root))
    if sibling:
        return ".".join((*parents, sibling))
    same = keys_named(name, root)
    return same[0] if same else None


def keys_named(name: str, root: type[BaseModel] = BenchmarkConfig) -> list[str]:
    """Return every key with this name, those with the fewest parents first."""
    plain = name.replace("-", "_")
    same = (key for key in all_keys(root) if key.rpartition(".")[2] == plain)
    return sorted(same, key=lambda key: key.count("."))


def _keys_below(model: type[BaseModel], prefix: str) -> Iterable[str]:
    for name, field in _fields(model).items():
        yield prefix + name
        below = _model_in(field.annotation)
        if below is not None and not _is_collection(field.annotation):
            yield from _keys_below(below, f"{prefix}{name}.")


@cache
def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in a config file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_collection(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list, dict)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, list, dict):
        for part in get_args(annotation):
            found = _model_in(part)
            if found is not None:
                return found
    return None
