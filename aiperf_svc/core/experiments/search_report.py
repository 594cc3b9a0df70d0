"""The result of a search: one sentence, the curve of all points, and where it bends."""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import takewhile

import msgspec

from aiperf_svc.domain.number_text import count


class SearchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All trials at one value."""

    value: float
    holds: bool | None
    """None: undecided, or unusable."""
    is_within: bool = False
    """Whether the values of all usable trials are within their limits, certainly or not."""
    share_beyond: float | None
    """Share of requests beyond a limit, as a multiple of the allowed share: the maximum over all
    limits; None: no limit is on a percentile."""
    statistics: dict[str, float]
    """Statistics of the longest trial."""
    verdict: str
    is_client_bound: bool
    reason: str
    """The first objective that breaks, else the first undecided one, else the first one, with value
    and limit in a run that shows it. For unusable trials, the reason."""
    runs: int
    confirmations: int
    """Longer runs whose own values agree with `holds`."""

    @property
    def is_upper(self) -> bool:
        """True if nothing is tried above it: it breaks, or its trials do not measure the
        server."""
        return self.holds is False or self.is_client_bound or self.verdict == Ending.UNUSABLE

    @property
    def is_open(self) -> bool:
        """True if its trials measure the server but give no clear result."""
        return self.holds is None and not self.is_upper

    @property
    def text(self) -> str:
        """The reason, marked as such for an undecided point, where no value decides."""
        return f"undecided: {self.reason}" if self.is_open else self.reason


class Ending(StrEnum):
    """How a search ends."""

    BRACKETED = "bracketed"
    """The limit of the server lies between `holds` and `breaks`."""
    NEVER_BREAKS = "never-breaks"
    """The highest value holds."""
    BREAKS_AT_ONCE = "breaks-at-once"
    """The lowest value breaks."""
    CLIENT_BOUND = "client-bound"
    """The client reached its own limit first, so the server's limit above `holds` is unknown."""
    UNUSABLE = "unusable"
    """A trial without a usable result ended the range there."""
    UNDECIDED = "undecided"
    """No point holds, and none certainly breaks."""
    UNFINISHED = "unfinished"
    """More trials follow, or the search was stopped before them."""


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values with the least weighted squared distance from `values`, by
    pooling adjacent violators (Ayer and others, Annals of Mathematical Statistics 26, 1955)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, a, m), (second, b, n) = blocks[-2:]
            blocks[-2:] = [((first * a + second * b) / (a + b), a + b, m + n)]
    return [mean for mean, _, times in blocks for _ in range(times)]


def crossing(places: Sequence[float], values: Sequence[float], level: float) -> float | None:
    """Return where a rising curve through these points crosses the level, between places on a
    logarithmic scale; None if it does not cross it."""
    for place in range(1, len(places)):
        low, high = values[place - 1], values[place]
        if low <= level < high:
            part = (level - low) / (high - low)
            return math.exp(
                math.log(places[place - 1]) * (1 - part) + math.log(places[place]) * part
            )
    return None


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a search, finished or not."""

    parameter: str
    unit: str
    ending: Ending
    holds: float | None
    """Highest value that holds."""
    breaks: float | None
    """Lowest value that does not hold, or at which the client was the limit."""
    reason: str
    """Why it breaks there, or why the range ends."""
    confirmations: int
    """Number of agreeing longer runs on the side that has fewer of them."""
    precision: float
    """Requested maximum width of the bracket."""
    is_narrowest: bool
    """True if no value between `holds` and `breaks` remains to be tried: adjacent whole numbers, or
    a bracket as narrow as requested."""
    knee: float | None
    """Where the isotonic curve of the share beyond the limit crosses the allowed share. This value
    within the bracket is for plots; it is not the result."""
    points: tuple[SearchPoint, ...]
    trials: int

    @property
    def width(self) -> float | None:
        """Width of the bracket as a share of its lower end."""
        if self.holds is None or self.breaks is None:
            return None
        return self.breaks / self.holds - 1

    @property
    def result(self) -> str:
        holds, breaks = self._value(self.holds), self._value(self.breaks)
        runs = count(self.confirmations, "confirmation")
        match self.ending:
            case Ending.UNFINISHED:
                found = [f"holds {holds}"] if self.holds is not None else []
                if self.breaks is not None:
                    found.append(f"does not hold {breaks} ({self.reason})")
                return f"not finished; {' and '.join(found) or 'nothing is decided'} so far"
            case Ending.BRACKETED:
                return f"holds {holds}, breaks at {_short(self.breaks)} ({self.reason}), {runs}"
            case Ending.NEVER_BREAKS:
                return (
                    f"holds {holds}, the end of the range ({self.reason}), {runs}: the limit is "
                    "higher; raise `to`"
                )
            case Ending.BREAKS_AT_ONCE:
                return (
                    f"breaks at {breaks}, the start of the range ({self.reason}), {runs}: the limit"
                    " is lower; lower `from`"
                )
            case Ending.CLIENT_BOUND:
                known = f"holds {holds}; " if self.holds is not None else ""
                return (
                    f"{known}at {breaks} the client is the limit, not the server ({self.reason}): "
                    "the verdict of that trial names the remedies"
                )
            case Ending.UNUSABLE:
                known = f"holds {holds}; " if self.holds is not None else ""
                return f"{known}the trial at {breaks} is unusable: {self.reason}"
            case _:
                return self._undecided()

    def _undecided(self) -> str:
        """Describe the state without a bracket."""
        if self.holds is not None:
            first = next(point for point in self.points if point.value > self.holds)
            found = f"holds {self._value(self.holds)}, undecided above ({first.reason})"
        else:
            found = f"undecided ({self.reason})"
            below = list(takewhile(lambda point: point.is_within, self.points))
            if below:
                found = (
                    f"undecided: no load holds for certain, and all values up to "
                    f"{self._value(below[-1].value)} are within the limit"
                )
            if self.breaks is not None:
                found += f", breaks at {_short(self.breaks)} ({self.reason})"
        return f"{found}: the trials are too short to tell"

    @property
    def advice(self) -> str:
        """How to make the result more exact; empty if it cannot be."""
        width = self.width
        if self.ending is not Ending.BRACKETED or self.is_narrowest or width is None:
            return ""
        return (
            f"the bracket is {width:.1%} wide, not {self.precision:.1%} as requested: longer "
            "trials would narrow it"
        )

    def _value(self, value: float | None) -> str:
        unit = "user" if value == 1 and self.unit == "users" else self.unit
        return f"{_short(value)} {unit}".rstrip()


def knee(points: Iterable[SearchPoint]) -> float | None:
    """Return where the isotonic curve of the points crosses the allowed share; None if it does
    not."""
    known = [(point.value, point.share_beyond, point.runs) for point in points]
    curve = [(value, share, runs) for value, share, runs in known if share is not None]
    if not curve:
        return None
    values, shares, runs = zip(*curve, strict=True)
    return crossing(values, rising(shares, runs), 1.0)


def _short(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
