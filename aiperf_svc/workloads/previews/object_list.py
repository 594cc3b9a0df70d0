"""Lists the objects of a stack for a review. Common parts are listed once; each difference is
listed with the names of the objects that have it. Pure.

    # Deployment (3): controller, worker, deadline
    spec:
      replicas: 1  # all but worker
      replicas: 200  # worker

A value is on one line if it fits. For objects of one kind, values are merged or listed separately,
whichever is shorter. NAME replaces an object's own name without the stack's.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiperf_svc.config.yaml_files import yaml_line
from aiperf_svc.domain.json_objects import Json

WIDTH = 100
MAX_LENGTH = 200
"""Maximum characters of a text that is listed whole. Commands and arguments always are."""
SHOWN = 12
"""Maximum names in a list, and maximum different values of one field, if parts may be omitted."""
NAME, HIDDEN = "NAME", "KGhpZGRlbik="
"""HIDDEN is `(hidden)` in base64, since values of a Secret are base64."""
INTRODUCTION = (
    "# What several objects have in common is listed once. After # are the objects that have a",
    f"# value, if not all do. {NAME}: the object's own name without the stack's. -00000000: a",
    "# random suffix. …: left out; `aiperf-svc preview --manifests` prints every object whole.",
)


def without_secrets(objects: Iterable[Json]) -> list[Json]:
    """Return the objects sorted by kind and name, with the values of Secrets replaced."""
    found = []
    for each in objects:
        values = {
            field: dict.fromkeys(sorted(each[field]), HIDDEN if field == "data" else "(hidden)")
            for field in ("data", "stringData")
            if each["kind"] == "Secret" and each.get(field)
        }
        # The program's monitor does not keep the order of keys.
        found.append(json.loads(json.dumps({**each, **values}, sort_keys=True)))
    return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))


def lines(objects: Sequence[Json], *, stack: str, is_whole: bool = False) -> list[str]:
    """List objects without secrets; with `is_whole`, nothing is omitted."""
    listing = _Listing(most=len(objects) if is_whole else SHOWN)
    found = list(objects) if is_whole else [_shortened(each) for each in objects]
    shared = _shared(found)
    made = [f"# every object ({len(found)})", *listing.field("metadata:", {"": shared}, [""], 0)]
    kinds: dict[str, dict[str, Json]] = {}
    for each in found:
        metadata = dict(each["metadata"])
        for part, values in shared.items():
            metadata[part] = {k: v for k, v in metadata[part].items() if k not in values}
            if not metadata[part]:
                del metadata[part]
        name, kind = metadata["name"].removesuffix(f"-{stack}"), kinds.setdefault(each["kind"], {})
        if name in kind:
            # Objects of a release may be in other namespaces.
            name = f"{metadata.get('namespace')}/{name} ({each.get('apiVersion')})"
        kind[name] = {k: v for k, v in {**each, "metadata": metadata}.items() if k != "kind"}
    for title, of_kind in kinds.items():
        names = list(of_kind)
        if len(names) > 1:
            of_kind = {name: _renamed(each, name, stack) for name, each in of_kind.items()}
        number = f" ({len(names)})" if len(names) > 1 else ""
        made += ["", f"# {title}{number}: {listing.names(names)}"]
        made += listing.fields(of_kind, names, 0)
    return made


def _shortened(value: Any, *, is_command: bool = False) -> Any:
    if isinstance(value, dict):
        return {k: _shortened(v, is_command=k in ("command", "args")) for k, v in value.items()}
    if isinstance(value, list):
        return [_shortened(each, is_command=is_command) for each in value]
    if value == HIDDEN:
        return "(hidden)"
    if is_command or not isinstance(value, str) or len(value) <= MAX_LENGTH:
        return value
    number = len(value.splitlines())
    size = f"{number} lines" if number > 1 else f"{len(value):,} characters"
    return f"{value[:40].splitlines()[0]} … ({size})"


def _shared(objects: Sequence[Json]) -> Json:
    """Return the labels and annotations common to all objects."""
    first, *others = [each["metadata"] for each in objects]
    found = {
        part: {
            key: value
            for key, value in (first.get(part) or {}).items()
            if all((each.get(part) or {}).get(key) == value for each in others)
        }
        for part in ("annotations", "labels")
    }
    return {part: values for part, values in found.items() if values}


def _renamed(value: Any, name: str, stack: str) -> Any:
    """Return a value with the object's own name replaced, except inside other names."""
    own = re.compile(rf"(?<![\w-]){re.escape(name)}(?=-{re.escape(stack)}(?![\w-])|[^\w-]|$)")

    def renamed(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: renamed(each) for key, each in part.items()}
        if isinstance(part, list):
            return [renamed(each) for each in part]
        return own.sub(NAME, part) if isinstance(part, str) else part

    return renamed(value)


def _items(value: Any) -> Mapping[str, Any] | None:
    """Return content that can be merged: a mapping, or a list of different mappings, by name if all
    have one; else None."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return None
    named = {str(each.get("name")): each for each in value if each.get("name")}
    found = named if len(named) == len(value) else {yaml_line(each): each for each in value}
    return found if len(found) == len(value) else None


def _is_printable(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """Lines of fields of several objects. In each method `among` are the names of the objects that
    could have a value, and `indent` is a number of columns."""

    most: int
    """Maximum names in a list, and maximum different values of one field."""

    def fields(self, objects: Mapping[str, Json], among: Sequence[str], indent: int) -> list[str]:
        """List all fields of mappings, which are keyed by the names of their objects."""
        made = []
        for key in dict.fromkeys(key for each in objects.values() for key in each):
            values = {name: each[key] for name, each in objects.items() if key in each}
            made += self.field(f"{yaml_line(key)}:", values, among, indent)
        return made

    def field(
        self, key: str, values: Mapping[str, Any], among: Sequence[str], indent: int
    ) -> list[str]:
        """List one field, or with the key `-` one list item, of the objects that have it."""
        groups: dict[str, list[str]] = {}
        for name, value in values.items():
            groups.setdefault(yaml_line(value), []).append(name)
        apart = []
        for text, names in list(groups.items())[: self.most]:
            apart += self._value(key, values[names[0]], text, self._whose(names, among), indent)
        if len(groups) > self.most:
            more = len(groups) - self.most
            apart.append(f"{' ' * indent}{key} …  # {more} more values")
        parts = {name: _items(value) for name, value in values.items()}
        if len(groups) == 1 or any(part is None for part in parts.values()):
            return apart
        merged = [f"{' ' * indent}{key}{self._whose(list(values), among)}"]
        if isinstance(next(iter(values.values())), dict):
            merged += self.fields(values, list(values), indent + 2)
        else:
            for item in dict.fromkeys(item for part in parts.values() for item in part or {}):
                having = {name: part[item] for name, part in parts.items() if part and item in part}
                merged += self.field("-", having, list(values), indent + 2)
        return merged if len(groups) > self.most else min(merged, apart, key=len)

    def names(self, names: Sequence[str]) -> str:
        """Return a list of names."""
        more = len(names) - self.most
        return ", ".join(names[: self.most]) + (f" and {more} more" if more > 0 else "")

    def _value(self, key: str, value: Any, text: str, note: str, indent: int) -> list[str]:
        """List one value, whose one-line form is `text`."""
        start = f"{' ' * indent}{key}"
        if len(start) + 1 + len(text) <= WIDTH:
            return [f"{start} {text}{note}"]
        if isinstance(value, dict):
            below = self.fields({"": value}, [""], indent + 2)
        elif isinstance(value, list):
            below = [line for v in value for line in self.field("-", {"": v}, [""], indent + 2)]
        elif isinstance(value, str) and "\n" in value and _is_printable(value):
            return [f"{start} |{note}", *textwrap.indent(value, " " * (indent + 2)).splitlines()]
        else:
            return [f"{start} {text}{note}"]
        if key == "-" and not note:
            return [f"{start} {below[0].lstrip()}", *below[1:]]
        return [f"{start}{note}", *below]

    def _whose(self, names: Sequence[str], among: Sequence[str]) -> str:
        """Return the comment with the objects that have a value; empty if all do."""
        if len(names) == len(among):
            return ""
        others = [name for name in among if name not in names]
        found = min((self.names(names), f"all but {self.names(others)}"), key=len)
        return f"  # {found}"
