"""Parses durations and delay distributions in the user's notation: `20ms`, `0`, `normal:20ms,2ms`.

A delay is parsed once, when the config is checked, and turned into a sampler (integer nanoseconds)
in each serving process. A fixed delay has no sampler, so the hot path adds a constant.
"""

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h)")


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as `250ms`, `1.5s` or `0`. Raises ValueError with
    the expected format.
    """
    text = text.strip()
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration; expected a number with a unit (ns, us, ms, s, m, h), "
            "such as 20ms, or 0"
        )
    return round(float(match[1]) * _UNIT_NS[match[2]])


@dataclass(frozen=True, slots=True)
class Delay:
    """A fixed delay or a distribution of delays.

    `kind` and its parameters: `fixed` (ns, unused), `normal` (mean ns, standard deviation ns; draws
    below 0 become 0), `uniform` (low ns, high ns), `exp` (mean ns, unused), `lognormal` (median ns,
    sigma of the logarithm).
    """

    kind: str
    first_ns: int
    second: float = 0.0

    @property
    def fixed_ns(self) -> int | None:
        """The delay if it is constant, else None."""
        return self.first_ns if self.kind == "fixed" else None

    @property
    def mean_ns(self) -> float:
        """Expected delay, before draws below zero are clipped."""
        if self.kind == "uniform":
            return (self.first_ns + self.second) / 2
        if self.kind == "lognormal":
            return self.first_ns * math.exp(self.second**2 / 2)
        return float(self.first_ns)

    def sampler(self, rng: random.Random) -> Callable[[], int]:
        """Return a function that draws one delay in nanoseconds, never negative."""
        first, second = self.first_ns, self.second
        if self.kind == "normal":
            gauss = rng.gauss
            return lambda: max(0, int(gauss(first, second)))
        if self.kind == "uniform":
            draw, width = rng.random, second - first
            return lambda: int(first + draw() * width)
        if self.kind == "exp":
            if first == 0:
                return lambda: 0
            exponential, rate = rng.expovariate, 1 / first
            return lambda: int(exponential(rate))
        if self.kind == "lognormal":
            if first == 0:
                return lambda: 0
            lognormal, mu = rng.lognormvariate, math.log(first)
            return lambda: int(lognormal(mu, second))
        return lambda: first


_PARAMETERS = {
    "normal": "normal:MEAN,STDDEV",
    "uniform": "uniform:LOW,HIGH",
    "exp": "exp:MEAN",
    "lognormal": "lognormal:MEDIAN,SIGMA",
}


def parse_delay(text: str) -> Delay:
    """Parse a delay. Raises ValueError with the text and the supported formats."""
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        return Delay("fixed", duration_ns(text))
    if kind not in _PARAMETERS:
        known = ", ".join(_PARAMETERS.values())
        raise ValueError(f"{text!r} names no known distribution; expected a duration or {known}")
    parts = rest.split(",")
    if len(parts) != (1 if kind == "exp" else 2):
        raise ValueError(f"{text!r} has {len(parts)} parameters; expected {_PARAMETERS[kind]}")
    first = duration_ns(parts[0])
    if kind == "exp":
        return Delay(kind, first)
    if kind == "lognormal":
        return Delay(kind, first, _sigma(parts[1], text))
    second = duration_ns(parts[1])
    if kind == "uniform" and second < first:
        raise ValueError(
            f"{text!r} ends before it begins; expected uniform:LOW,HIGH with LOW <= HIGH"
        )
    return Delay(kind, first, float(second))


def _sigma(part: str, text: str) -> float:
    try:
        sigma = float(part)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma < 10:
        raise ValueError(
            f"{text!r} has sigma {part!r}; expected a number from 0 to 10 without a unit"
        )
    return sigma
