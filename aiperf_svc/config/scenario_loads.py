"""What the scenarios say of a load by themselves, so that a config need not."""

from collections.abc import Mapping
from typing import Any

USERS = {"single-stream": 1, "multi-stream": 8, "offline": 1}
"""Users of the scenarios that need no number of them; offline has one for each request."""
RATED = ("server", "interactive")
"""Scenarios that need a rate."""
LOADS = ("concurrency", "request_rate", "fixed_schedule", "stages", "rate_series")
"""Keys of which each says what load there is."""


def with_users(load: Any, scenario: Any) -> Any:
    """Return a load as it is written, with as many users as a scenario has, unless it says another
    load itself."""
    users = USERS.get(scenario) if isinstance(scenario, str) else None
    if users is None or not isinstance(load or {}, Mapping):
        return load
    given = dict(load or {})
    return load if any(given.get(key) for key in LOADS) else given | {"concurrency": users}
