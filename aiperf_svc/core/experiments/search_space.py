"""What a search looks for and where: one parameter, from a low value to a high one."""

import math

import msgspec

from aiperf_svc.config.search import MOST_POINTS
from aiperf_svc.domain.json_objects import Parameters

_SPARE_POINTS = 2
"""Values kept back for a bracket that moves when longer runs disagree with it."""


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of the load and the range in which its limit is looked for."""

    parameter: str
    """Dotted config key, such as `load.request_rate`."""
    low: float
    high: float
    is_whole: bool
    """True for users, False for a rate."""
    precision: float = 0.05
    """Greatest width of the bracket, as a share of its lower end."""
    confirm: int = 3
    """Longer runs on each side of the bracket."""
    most_longer: int = 18
    """Most longer runs of the search. What these do not decide stays undecided."""
    longer: Parameters = {}
    """Parameters that make a trial a longer run."""
    usual: Parameters = {}
    """What these parameters are in the other trials: the template's values."""
    unit: str = ""
    """`req/s`, `users`."""

    @property
    def factor(self) -> int:
        """Factor between the first values: 2, or a higher power of 2 where a wide range would leave
        too few values for the bisection."""
        factor = 2
        while self._points_with(factor) > MOST_POINTS - _SPARE_POINTS and factor < 64:
            factor *= 2
        return factor

    def _points_with(self, factor: int) -> int:
        up = math.ceil(math.log(self.high / self.low, factor)) + 1 if self.high > self.low else 1
        halvings = math.log2(math.log(factor) / math.log1p(self.precision))
        return up + max(0, math.ceil(halvings))

    def above(self, value: float) -> float:
        """Return the next value while nothing has broken."""
        return min(float(self.high), self.rounded(value * self.factor))

    def between(self, low: float, high: float) -> float | None:
        """Return the value in the middle of two; None if they are as close as asked for."""
        if self.is_whole and high - low <= 1:
            return None
        if high / low <= (1 + self.precision) * (1 + 1e-9):
            return None
        middle = self.rounded(math.sqrt(low * high))
        if self.is_whole:
            middle = min(max(middle, low + 1), high - 1)
        return middle if low < middle < high else None

    def rounded(self, value: float) -> float:
        """Return a value as people write it: a whole number, or with as many digits as matter."""
        if self.is_whole:
            return float(round(value))
        digits = max(3, 2 - math.floor(math.log10(self.precision)))
        return float(f"{value:.{digits}g}")

    def parameters(self, value: float, *, is_longer: bool) -> Parameters:
        """Return the parameters of a trial at this value."""
        written = int(value) if value.is_integer() else value
        return {self.parameter: written} | (self.longer if is_longer else self.usual)
