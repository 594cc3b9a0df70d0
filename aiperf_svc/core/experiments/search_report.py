"""The result of a search: one sentence, the curve of all points, and where it bends."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Self

import msgspec

from aiperf_svc.core.experiments.search import Ending, Search, SearchPoint


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values with the least weighted squared distance from `values`, by
    pooling neighbours that fall (Ayer and others, Annals of Mathematical Statistics 26, 1955)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, a, m), (second, b, n) = blocks[-2:]
            blocks[-2:] = [((first * a + second * b) / (a + b), a + b, m + n)]
    return [mean for mean, _, count in blocks for _ in range(count)]


def crossing(places: Sequence[float], values: Sequence[float], level: float) -> float | None:
    """Return where a rising curve through these points passes the level, between places on a
    logarithmic scale; None if it does not pass it."""
    for place in range(1, len(places)):
        low, high = values[place - 1], values[place]
        if low <= level < high:
            part = (level - low) / (high - low)
            return math.exp(
                math.log(places[place - 1]) * (1 - part) + math.log(places[place]) * part
            )
    return None


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found, finished or not."""

    parameter: str
    unit: str
    ending: Ending
    holds: float | None
    """Highest value that holds."""
    breaks: float | None
    """Lowest value that does not, or at which the client was the limit."""
    reason: str
    """Why it breaks there, or what ended the range."""
    confirmations: int
    """Longer runs that agree, on the side that has fewer of them."""
    precision: float
    """Greatest width of the bracket that was asked for."""
    is_narrowest: bool
    """True if there is no value to try between `holds` and `breaks`: whole numbers that are
    neighbours, or a bracket as narrow as asked for."""
    knee: float | None
    """Where the isotonic curve of the share beyond the limit passes the allowed share; a value
    within the bracket that helps to plot, not the result."""
    points: tuple[SearchPoint, ...]
    trials: int

    @classmethod
    def of(cls, search: Search) -> Self:
        """Return the report of what a search knows now."""
        points, (lower, upper), space = search.points, search.bracket, search.space
        sides = [s.confirmations for s in (lower, upper) if s is not None and s.holds is not None]
        return cls(
            parameter=space.parameter,
            unit=space.unit,
            ending=search.ending,
            holds=lower.value if lower else None,
            breaks=upper.value if upper else None,
            reason=upper.reason if upper else points[-1].reason if points else "",
            confirmations=min(sides, default=0),
            precision=space.precision,
            is_narrowest=lower is not None
            and upper is not None
            and space.between(lower.value, upper.value) is None,
            knee=_knee(points),
            points=points,
            trials=sum(point.runs for point in points),
        )

    @property
    def width(self) -> float | None:
        """Width of the bracket as a share of its lower end."""
        if self.holds is None or self.breaks is None:
            return None
        return self.breaks / self.holds - 1

    @property
    def result(self) -> str:
        """The result in one sentence."""
        holds, breaks = self._value(self.holds), self._value(self.breaks)
        runs = f"{self.confirmations} confirmation{'' if self.confirmations == 1 else 's'}"
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
                    "the verdict of that trial says what helps"
                )
            case Ending.UNUSABLE:
                known = f"holds {holds}; " if self.holds is not None else ""
                return f"{known}the trial at {breaks} tells nothing of the server: {self.reason}"
            case _:
                return self._undecided()

    def _undecided(self) -> str:
        """Return what is known where there is no bracket."""
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
        """What would make the result more exact; empty if nothing would."""
        width = self.width
        if self.ending is not Ending.BRACKETED or self.is_narrowest or width is None:
            return ""
        return (
            f"the bracket is {width:.1%} wide, asked for {self.precision:.1%}: longer trials "
            "would narrow it"
        )

    def _value(self, value: float | None) -> str:
        unit = "user" if value == 1 and self.unit == "users" else self.unit
        return f"{_short(value)} {unit}".rstrip()


def _knee(points: Iterable[SearchPoint]) -> float | None:
    known = [(point.value, point.share_beyond, point.runs) for point in points]
    curve = [(value, share, runs) for value, share, runs in known if share is not None]
    if not curve:
        return None
    values, shares, runs = zip(*curve, strict=True)
    return crossing(values, rising(shares, runs), 1.0)


def _short(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
