"""Reads JSON that a tool printed. No field has a default: a field that is missing or has another
type raises an UnreadableOutput that names it."""

import json
from collections.abc import Iterator
from typing import Any

from aiperf_svc.workloads.steps import UnreadableOutput

_SHOWN = 200
"""Maximum characters of an output that a message repeats."""


class Fields:
    """A part of a JSON document, and its location."""

    __slots__ = ("_node", "_where")

    def __init__(self, node: Any, where: str) -> None:
        self._node = node
        self._where = where

    def has(self, *path: str) -> bool:
        """Return whether a path of keys has a value."""
        node = self._node
        for key in path:
            if not isinstance(node, dict) or key not in node:
                return False
            node = node[key]
        return True

    def number(self, *path: str) -> float:
        """Return the finite number at a path of keys."""
        value, where = self._at(path)
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise UnreadableOutput(f"{where}: {value!r}; expected a finite number")
        return float(value)

    def text(self, *path: str) -> str:
        """Return the text at a path of keys."""
        value, where = self._at(path)
        if not isinstance(value, str):
            raise UnreadableOutput(f"{where}: {value!r}; expected text")
        return value

    def flag(self, *path: str) -> bool:
        """Return the boolean at a path of keys."""
        value, where = self._at(path)
        if not isinstance(value, bool):
            raise UnreadableOutput(f"{where}: {value!r}; expected true or false")
        return value

    def each(self, *path: str) -> Iterator["Fields"]:
        """Return the elements of the list at a path of keys."""
        value, where = self._at(path)
        if not isinstance(value, list):
            raise UnreadableOutput(f"{where}: {str(value)[:_SHOWN]!r}; expected a list")
        return (Fields(element, f"{where}.{n}") for n, element in enumerate(value))

    def numbers(self, *path: str) -> dict[str, float]:
        """Return the object of numbers at a path of keys."""
        value, where = self._at(path)
        if not isinstance(value, dict):
            raise UnreadableOutput(f"{where}: {str(value)[:_SHOWN]!r}; expected an object")
        fields = Fields(value, where)
        return {key: fields.number(key) for key in value}

    def _at(self, path: tuple[str, ...]) -> tuple[Any, str]:
        node, where = self._node, self._where
        for key in path:
            if not isinstance(node, dict) or key not in node:
                found = ", ".join(node) if isinstance(node, dict) else str(node)
                raise UnreadableOutput(
                    f"{where}: no field {key!r}; it has {found[:_SHOWN] or 'nothing'}"
                )
            node, where = node[key], f"{where}.{key}"
        return node, where


def fields_of(text: str, where: str) -> Fields:
    """Return the fields of the JSON document `text`; `where` names its source."""
    try:
        node = json.loads(text)
    except ValueError as error:
        raise UnreadableOutput(
            f"{where}: expected JSON: {error}; it begins with {text[:_SHOWN]!r}"
        ) from error
    return Fields(node, where)
