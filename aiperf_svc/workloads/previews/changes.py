"""Differences between two versions of a stack. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from aiperf_svc.domain.json_objects import flat, json_text


class Change(msgspec.Struct, frozen=True):
    """Change of one key."""

    key: str
    """Dotted path."""
    before: Any
    """Previous value; None: the key was missing or had its default."""
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_value_text(self.before)} → {_value_text(self.after)}"


class StackChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a stack with another version of it."""

    base: str
    """Name of the other version: `what is deployed`."""
    is_deployed: bool = False
    """True if a new run replaces one whose results may not be collected yet."""
    changed: tuple[Change, ...] | None = None
    """Changed keys of the benchmark; None: there was nothing to compare, or comparing failed."""
    is_new_run: bool = True
    """True also if only the image, this program's version or the generation differs."""
    not_compared: str = ""
    """Reason why the comparison failed."""


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the keys whose values differ, in the order of `after`, then the removed keys."""
    old, new = flat(before), flat(after)
    keys = [*new, *(key for key in old if key not in new)]
    return tuple(
        Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)
    )


def _value_text(value: Any) -> str:
    return "(default)" if value is None else json_text(value)
