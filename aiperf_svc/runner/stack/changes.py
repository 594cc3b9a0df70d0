"""What a stack is different from, and in what. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Change(msgspec.Struct, frozen=True):
    """One key."""

    key: str
    """Dotted path."""
    before: Any
    """None: it was not there, or had its default."""
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_said(self.before)} → {_said(self.after)}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A stack beside another version of itself."""

    base: str
    """In words: `what is deployed`."""
    is_deployed: bool = False
    """Whether a new run replaces one whose results may not be collected yet."""
    changed: tuple[Change, ...] | None = None
    """Keys of the benchmark; None: there is nothing to compare with, or it could not be done."""
    is_new_run: bool = True
    """Also when only the image, this program's version or the generation is another."""
    not_compared: str = ""
    """Why it could not be done."""


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Keys with another value, in the order of `after`, then those that are no more."""
    old, new = flat(before), flat(after)
    keys = [*new, *(key for key in old if key not in new)]
    return tuple(
        Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)
    )


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted paths to values; lists are values."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _said(value: Any) -> str:
    if value is None:
        return "(default)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
