"""The concurrency regions of MLPerf Endpoints 1.0, and the points of a curve that cover them.

A curve is a series of runs at fixed concurrencies, from `c_min` users (at most 32) to `c_max`. The
range above `c_min` is divided into three regions of equal width in log2 of the distance from
`c_min`; boundaries are rounded half to even (rules, sections 5.4 and 5.5).
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

ULTRA_LOW_END = 32
"""Highest concurrency of the region Ultra Low, and of `c_min`."""
MARGIN = 1.1
"""Points up to this multiple of `c_max` are allowed but cover no region."""


class Region(StrEnum):
    """A region that needs a point."""

    ULTRA_LOW = "Ultra Low"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


class Regions(NamedTuple):
    """The regions of one curve."""

    c_min: int
    c_max: int
    low_end: int
    medium_end: int

    @property
    def margin_end(self) -> int:
        """Maximum concurrency of a point."""
        return math.ceil(MARGIN * self.c_max)

    def span(self, region: Region) -> tuple[int, int]:
        """Return the lowest and the highest concurrency of a region. If both boundaries round to
        the same value, the region is that value."""
        low, high = {
            Region.ULTRA_LOW: (1, ULTRA_LOW_END),
            Region.LOW: (self.c_min + 1, self.low_end),
            Region.MEDIUM: (self.low_end + 1, self.medium_end),
            Region.HIGH: (self.medium_end + 1, self.c_max),
        }[region]
        return min(low, high), high


def regions_of(c_min: int, c_max: int) -> Regions:
    """Return the regions between two concurrencies. Raises ValueError."""
    if not 1 <= c_min <= ULTRA_LOW_END:
        raise ValueError(f"the lowest concurrency is {c_min}; expected 1 to {ULTRA_LOW_END}")
    if c_max <= ULTRA_LOW_END:
        raise ValueError(f"the highest concurrency is {c_max}; expected more than {ULTRA_LOW_END}")
    interval = math.log2(c_max - c_min) / 3
    return Regions(c_min, c_max, round(c_min + 2**interval), round(c_min + 2 ** (2 * interval)))


def curve_points(c_max: int) -> tuple[int, ...]:
    """Return the seven concurrencies of a curve to `c_max`: one user, a point in the middle of Low,
    two in Medium, and three in High, the last of which is `c_max`. Within a region they are spaced
    evenly by their logarithms. Raises ValueError."""
    regions = regions_of(1, c_max)
    points = {1, c_max}
    for region, shares in (
        (Region.LOW, (0.5,)),
        (Region.MEDIUM, (0.5, 1.0)),
        (Region.HIGH, (1 / 3, 2 / 3)),
    ):
        low, high = regions.span(region)
        points |= {round(low * (high / low) ** share) for share in shares}
    return tuple(sorted(points))


CURVE_DEFAULTS: tuple[tuple[Sequence[str], Any], ...] = (
    (("endpoint", "streaming"), True),
    (("dataset", "order"), "random"),
    (("dataset", "cache_bust"), "first_turn_prefix"),
    (("dataset", "cache_bust_per"), "request"),
    (("load", "min_duration"), "25m"),
)
"""Keys of a curve by the rules of MLPerf Endpoints 1.0: draws with replacement, a marker for each
request between the system prompt and the user's text, and whole passes over the dataset in a
time that leaves 20 minutes of steady state."""
_TRACE_SUFFIX = "_trace"
_ENDS = ("requests", "duration", "min_duration")


def curve_defaults(data: Mapping[str, Any]) -> list[tuple[Sequence[str], Any]]:
    """Return the keys that the preset of a curve adds to a config as written: those that the config
    lacks and may have. Rows of traces have an order, and a load needs one end."""
    parts = {name: data.get(name) or {} for name in ("endpoint", "dataset", "load")}
    if not all(isinstance(part, Mapping) for part in parts.values()):
        return []  # The models report the mistake.
    is_in_order = str(parts["dataset"].get("kind", "")).endswith(_TRACE_SUFFIX)
    has_end = any(parts["load"].get(name) for name in _ENDS)
    left_out = (["order"] if is_in_order else []) + (["min_duration"] if has_end else [])
    left_out += ["cache_bust_per"] if parts["dataset"].get("cache_bust") == "none" else []
    return [
        (path, value)
        for path, value in CURVE_DEFAULTS
        if path[1] not in left_out and parts[path[0]].get(path[1]) is None
    ]
