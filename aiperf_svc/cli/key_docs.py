"""Descriptions of a config's keys, read from its models: text, choices and default.

The text is the docstring below a field. The help of flags, `docs/flags.md` and `aiperf-svc
workloads` print it, so each key has one description. This module imports the models, so it is
loaded only for printing.
"""

import ast
import inspect
import re
from argparse import ArgumentParser
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, PlainSerializer
from pydantic.fields import FieldInfo

from aiperf_svc.cli.flags import FLAGS, Flag
from aiperf_svc.config.names import model_at
from aiperf_svc.config.units import format_duration, format_share, format_unbounded_duration

_NAMES = {flag.key: flag.name for flag in FLAGS if flag.kind != "off"}
_NAMES |= {key.removesuffix(".mean"): name for key, name in _NAMES.items() if ".mean" in key}
_NAMES["endpoint.api_key_env"] = "--api-key"
"""Flag of each key; the flag of a length is that of its mean."""
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}
_METAVARS = {
    format_duration: "TIME",
    format_unbounded_duration: "TIME",
    format_share: "SHARE",
    int: "N",
    float: "N",
}
"""Placeholders for values by type or by the parsing function in `config.units`."""


REQUIRED = "required"


class KeyDoc(NamedTuple):
    """Description of one key."""

    text: str
    """Docstring of the field; may be empty."""
    choices: tuple[str, ...]
    """Words that the key accepts; empty if it accepts other values."""
    default: str
    """Default as written in a file; empty for null and empty lists, or `REQUIRED`."""


def describe_fields(model: type[BaseModel]) -> dict[str, KeyDoc]:
    """Return the description of each field of a model."""
    texts = _docstrings(model)
    return {
        name: KeyDoc(texts.get(name, ""), _choices(field.annotation), _default(model, name, field))
        for name, field in model.model_fields.items()
    }


def flag_text(flag: Flag) -> str:
    """Return the description of a flag in sentences."""
    if flag.text:
        return flag.text
    text, choices, default = _key_doc(flag.key)
    sentences = [_with_flags(text, flag.key), flag.note]
    if not all(choice in text for choice in choices):
        sentences.append(f"Choices: {', '.join(choices)}.")
    if default not in ("", "false", REQUIRED) and "Default" not in text + flag.note:
        sentences.append(f"Default: {default.strip('[]')}.")
    return " ".join(filter(None, sentences))


def metavar(flag: Flag) -> str:
    """Return the placeholder for the value of a flag."""
    if flag.metavar:
        return flag.metavar
    return _scalar(flag.key) or flag.key.rpartition(".")[2].upper()


def takes_several(flag: Flag) -> bool:
    """Return whether comma-separated values create a trial each, as for numbers and times."""
    is_of_the_run = flag.key.startswith(("experiment.", "slo."))
    return flag.kind == "value" and not is_of_the_run and bool(_scalar(flag.key))


def complete_help(parser: ArgumentParser) -> None:
    """Add the descriptions of the keys to the help of a command."""
    for action in parser._actions:
        flag = _BY_NAME.get(action.option_strings[0]) if action.option_strings else None
        if flag is not None and action.help == flag.key:
            action.help = flag_text(flag).replace("%", "%%")
            if action.metavar is not None:
                action.metavar = metavar(flag)


def _key_doc(key: str) -> KeyDoc:
    """Describe a key; the mean of a length gets the description of the length."""
    owner, _, name = key.rpartition(".")
    model = model_at(owner.split(".") if owner else [])
    assert model is not None, key
    found = describe_fields(model)[name]
    if name == "stddev":
        return KeyDoc(f"Standard deviation of `{owner}`.", (), found.default)
    if name != "mean":
        return found
    above, _, part = owner.rpartition(".")
    parent = model_at(above.split("."))
    assert parent is not None, key
    default = parent.model_fields[part].get_default()
    mean = f"{default.mean:g}" if default is not None else ""
    return KeyDoc(_docstrings(parent)[part], (), mean)


def _with_flags(text: str, key: str) -> str:
    """Replace the keys in a text's backquotes with flags."""
    owner = key.rpartition(".")[0]

    def named(match: re.Match[str]) -> str:
        return _NAMES.get(f"{owner}.{match[1]}") or _NAMES.get(match[1]) or match[0]

    return re.sub(r"`([a-z_.]+)`", named, text)


def _scalar(key: str) -> str:
    """Return the placeholder of a key with a single number, time or share; else empty."""
    owner, _, name = key.rpartition(".")
    model = model_at(owner.split(".") if owner else [])
    assert model is not None, key
    field = model.model_fields[name]
    found = list(_types(field.annotation))
    found += [each.func for each in field.metadata if isinstance(each, PlainSerializer)]
    return next((_METAVARS[each] for each in reversed(found) if each in _METAVARS), "")


def _types(annotation: Any) -> list[Any]:
    """Return the plain types of an annotation, then their serializers; empty for collections."""
    if get_origin(annotation) in (tuple, list, dict):
        return []
    arguments = get_args(annotation)
    found = [each for part in arguments for each in _types(part)]
    found += [each.func for each in arguments if isinstance(each, PlainSerializer)]
    return found or [annotation]


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the words of a literal or enum, including one inside an optional or a tuple."""
    if get_origin(annotation) is Literal:
        words = tuple(str(word) for word in get_args(annotation))
        return words if len(words) > 1 else ()
    if hasattr(annotation, "__members__"):
        return tuple(str(each.value) for each in annotation.__members__.values())
    for part in get_args(annotation):
        if found := _choices(part):
            return found
    return ()


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Return a default as written in a file; empty if there is none or it is empty."""
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    written = (
        model.model_construct(**{name: value}).model_dump(mode="json", include={name}).get(name)
    )
    if written is None or written in ({}, []):
        return ""
    if isinstance(written, list):
        return f"[{', '.join(map(str, written))}]"
    if isinstance(written, float):
        return f"{written:g}"
    return str(written).lower() if isinstance(written, bool) else str(written)


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field, from the model and its base classes."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            found |= _module_docstrings(inspect.getsourcefile(each) or "").get(each.__name__, {})
    return found


@cache
def _module_docstrings(path: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each class in a module."""
    tree = ast.parse(Path(path).read_bytes())
    return {
        each.name: {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in zip(each.body, each.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
        for each in tree.body
        if isinstance(each, ast.ClassDef)
    }
