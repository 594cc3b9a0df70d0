"""Reads and sets values of a config as written, before validation by a model.

It imports no models, so models can use it.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def value_at(data: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of a config as written; None if it is not set."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list | tuple) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def with_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Return `data` with a new value at a path, copying only the objects on the path. None removes
    the key, which restores its default."""
    if not path:
        return value
    name, *below = path
    if isinstance(data, list | tuple) and name.isdecimal() and int(name) < len(data):
        copied = list(data)
        copied[int(name)] = with_value(copied[int(name)], below, value)
        return copied
    if data is not None and not isinstance(data, Mapping):
        # The models report the mistake.
        return data
    changed = dict(data or {})
    if value is None and (not below or changed.get(name) is None):
        changed.pop(name, None)
    else:
        changed[name] = with_value(changed.get(name), below, value)
    return changed


def merged(data: Any, changes: Mapping[str, Any]) -> Any:
    """Return a config as written, with the keys of `changes`. Maps are merged key by key; any other
    value is replaced."""
    if not isinstance(data, Mapping):
        return dict(changes)
    found = dict(data)
    for key, value in changes.items():
        found[key] = merged(found.get(key), value) if isinstance(value, Mapping) else value
    return found
