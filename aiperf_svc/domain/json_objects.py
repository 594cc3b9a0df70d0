"""JSON and YAML objects whose keys are defined elsewhere: by an API, a server or a user.

Data that this program both writes and reads has a separate type.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from aiperf_svc.domain.foreign_text import CUT, one_line

Json = dict[str, Any]
"""A JSON object of a foreign format, or a config that has not been validated."""
Parameters = dict[str, Any]
"""Dotted config keys and their values as the user writes them; None means the key's default."""
MAX_VALUE_LENGTH = 40
"""Longest shown value of a parameter, in characters."""


def flat(data: Mapping[str, Any], prefix: str = "") -> Parameters:
    """Map dotted paths to values; a list counts as a value."""
    found: Parameters = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def json_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def whole_text(value: object) -> str:
    """Return a parameter's value as a text; a dash if the trial does not set it."""
    return "–" if value is None else json_text(value)


def value_text(value: object) -> str:
    """Return a parameter's value on one line. Cut a long value in its middle, because values such
    as images and paths differ at their ends."""
    shown, half = one_line(whole_text(value)), MAX_VALUE_LENGTH // 2
    return shown if len(shown) <= MAX_VALUE_LENGTH else f"{shown[:half]}{CUT} {shown[-half:]}"


def parameters_text(parameters: Parameters) -> str:
    """Name a combination: `load.concurrency=4, endpoint.model=a`."""
    named = (f"{one_line(name)}={value_text(value)}" for name, value in parameters.items())
    return ", ".join(named) or "no parameters"


def changes_text(parameters: Parameters) -> str:
    """Name what a trial changes; empty if it changes nothing."""
    return parameters_text(parameters) if parameters else ""
