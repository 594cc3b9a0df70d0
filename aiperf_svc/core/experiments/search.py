"""Searches the highest load that holds an objective.

A pure machine: `next()` returns the parameters of the next trial, `add()` receives its result. The
value doubles from the lowest one until a point breaks or the client is the limit. Then the bracket
is bisected on a logarithmic scale, and longer runs confirm both of its sides. A side that they do
not confirm moves, and the search continues. A point that cannot be decided gets longer runs too; if
these do not help, it stays undecided within a bracket that is wider than requested. While nothing
breaks, a point whose values are within their limits gets no longer run, however few its requests
are: the search continues above it. Later the highest undecided point is the first to get one.
"""

import math
from typing import NamedTuple

import msgspec

from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.core.experiments.evidence import Evidence, is_held, share_beyond
from aiperf_svc.core.experiments.search_report import Ending, SearchPoint, SearchReport, knee
from aiperf_svc.domain.json_objects import Parameters

_SPARE_POINTS = 2
"""Values reserved for a bracket that moves because longer runs disagree with it."""


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of the load and the range in which its limit is searched."""

    parameter: str
    """Dotted config key, such as `load.request_rate`."""
    low: float
    high: float
    is_whole: bool
    """True for users, False for a rate."""
    precision: float = 0.05
    """Maximum width of the bracket, as a share of its lower end."""
    confirm: int = 3
    """Longer runs on each side of the bracket."""
    max_longer_trials: int = 18
    """Maximum longer runs of the search. Points that they do not decide stay undecided."""
    longer: Parameters = {}
    """Parameters that make a trial a longer run; empty: additional trials replace longer runs."""
    usual: Parameters = {}
    """Values of these parameters in the other trials: those of the template."""
    unit: str = ""
    """`req/s`, `users`."""

    @property
    def factor(self) -> int:
        """Factor between the first values: 2, or a higher power of 2 if a wide range would leave
        too few values for the bisection."""
        factor = 2
        while self._points_with(factor) > MAX_POINTS - _SPARE_POINTS and factor < 64:
            factor *= 2
        return factor

    def _points_with(self, factor: int) -> int:
        up = math.ceil(math.log(self.high / self.low, factor)) + 1 if self.high > self.low else 1
        halvings = math.log2(math.log(factor) / math.log1p(self.precision))
        return up + max(0, math.ceil(halvings))

    def above(self, value: float) -> float:
        """Return the next value as long as nothing has broken."""
        return min(float(self.high), self.rounded(value * self.factor))

    def between(self, low: float, high: float) -> float | None:
        """Return the middle of two values; None if they are as close as requested."""
        if self.is_whole and high - low <= 1:
            return None
        if high / low <= (1 + self.precision) * (1 + 1e-9):
            return None
        middle = self.rounded(math.sqrt(low * high))
        if self.is_whole:
            middle = min(max(middle, low + 1), high - 1)
        return middle if low < middle < high else None

    def rounded(self, value: float) -> float:
        """Return a rounded value: a whole number, or one with its significant digits."""
        if self.is_whole:
            return float(round(value))
        digits = max(3, 2 - math.floor(math.log10(self.precision)))
        return float(f"{value:.{digits}g}")

    def parameters(self, value: float, *, is_longer: bool) -> Parameters:
        written = int(value) if value.is_integer() else value
        return {self.parameter: written} | (self.longer if is_longer else self.usual)


class SearchedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one trial for a search."""

    evidence: tuple[Evidence, ...]
    """One per objective, in the same order in all trials; empty if the trial is unusable."""
    verdict: str = "valid"
    is_client_bound: bool = False
    problem: str = ""
    """Why the trial is not a measurement of the server; empty if it is one."""
    statistics: dict[str, float] = {}
    """Metrics for the curve, by tag and statistic: `time_to_first_token:p99`."""


class _Step(NamedTuple):
    value: float
    is_longer: bool


class Search:
    """One search: pass the result of each trial from `next` to `add`, until `next` is None."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._runs: dict[float, list[tuple[bool, SearchedTrial]]] = {}

    def next(self) -> Parameters | None:
        """Return the parameters of the next trial; None when the search has ended."""
        step = self._next_step()
        if step is None:
            return None
        return self.space.parameters(step.value, is_longer=step.is_longer)

    def add(self, parameters: Parameters, result: SearchedTrial) -> None:
        """Record the result of a trial that `next` returned."""
        value = float(parameters[self.space.parameter])
        runs, longer = self._runs.setdefault(value, []), self.space.longer
        # If trials cannot be longer, an additional trial replaces a longer one.
        is_longer = bool(longer or runs) and all(parameters.get(k) == v for k, v in longer.items())
        runs.append((is_longer, result))

    @property
    def points(self) -> tuple[SearchPoint, ...]:
        """Return the state of each tried value, lowest first."""
        return tuple(_point(value, self._runs[value]) for value in sorted(self._runs))

    @property
    def bracket(self) -> tuple[SearchPoint | None, SearchPoint | None]:
        """Return the highest point that holds, and the lowest point above which nothing is tried,
        because it breaks or its trials do not measure the server."""
        points = self.points
        upper = next((point for point in points if point.is_upper), None)
        held = [
            point for point in points if point.holds and (not upper or point.value < upper.value)
        ]
        return (held[-1] if held else None), upper

    @property
    def ending(self) -> Ending:
        """Return how the search ends, as far as known."""
        if self._next_step() is not None:
            return Ending.UNFINISHED
        lower, upper = self.bracket
        if upper is None:
            is_at_end = lower is not None and lower.value == self.points[-1].value
            return Ending.NEVER_BREAKS if is_at_end else Ending.UNDECIDED
        if upper.is_client_bound:
            return Ending.CLIENT_BOUND
        if upper.holds is None:
            return Ending.UNUSABLE
        if lower is not None:
            return Ending.BRACKETED
        return Ending.BREAKS_AT_ONCE if upper.value == self.points[0].value else Ending.UNDECIDED

    @property
    def report(self) -> SearchReport:
        """The search so far: its points, bracket and result."""
        points, (lower, upper), space = self.points, self.bracket, self.space
        sides = [s.confirmations for s in (lower, upper) if s is not None and s.holds is not None]
        return SearchReport(
            parameter=space.parameter,
            unit=space.unit,
            ending=self.ending,
            holds=lower.value if lower else None,
            breaks=upper.value if upper else None,
            reason=upper.reason if upper else points[-1].reason if points else "",
            confirmations=min(sides, default=0),
            precision=space.precision,
            is_narrowest=lower is not None
            and upper is not None
            and space.between(lower.value, upper.value) is None,
            knee=knee(points),
            points=points,
            trials=sum(point.runs for point in points),
        )

    def _next_step(self) -> _Step | None:
        points = self.points
        if not points:
            return _Step(self.space.rounded(self.space.low), is_longer=False)
        may_be_longer = sum(map(self._longer_runs, points)) < self.space.max_longer_trials
        lower, upper = self.bracket
        undecided = self._undecided(points, lower, upper)
        if may_be_longer and undecided is not None:
            return _Step(undecided, is_longer=True)
        if len(points) < MAX_POINTS:
            value = self._next_value(points, lower, upper)
            if value is not None:
                return _Step(value, is_longer=False)
        if not may_be_longer:
            return None
        return self._inner_run(lower, upper) or self._confirmation(lower, upper)

    def _undecided(
        self,
        points: tuple[SearchPoint, ...],
        lower: SearchPoint | None,
        upper: SearchPoint | None,
    ) -> float | None:
        """Return the highest undecided value without a longer run that matters: it is above the
        highest holding value and, while the search climbs, its values are not within limits."""
        is_climbing = upper is None and points[-1].value < self.space.high
        found = [
            point.value
            for point in points
            if point.is_open
            and self._longer_runs(point) == 0
            and (lower is None or point.value > lower.value)
            and (upper is None or point.value < upper.value)
            and not (is_climbing and point.is_within)
        ]
        return max(found, default=None)

    def _next_value(
        self,
        points: tuple[SearchPoint, ...],
        lower: SearchPoint | None,
        upper: SearchPoint | None,
    ) -> float | None:
        if upper is None:
            top = points[-1].value
            return self.space.above(top) if top < self.space.high else None
        if lower is None:
            return None
        inside = [p.value for p in points if lower.value < p.value < upper.value]
        gaps = [(lower.value, upper.value)]
        if inside:
            gaps = [(lower.value, inside[0]), (inside[-1], upper.value)]
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
        return self.space.between(low, high)

    def _inner_run(self, lower: SearchPoint | None, upper: SearchPoint | None) -> _Step | None:
        """Return a longer run of an undecided point that keeps the bracket wide."""
        if lower is None or upper is None:
            return None
        if self.space.between(lower.value, upper.value) is None:
            return None
        inner = [
            point
            for point in self.points
            if lower.value < point.value < upper.value
            and self._longer_runs(point) < self.space.confirm
        ]
        if not inner:
            return None
        return _Step(min(inner, key=self._longer_runs).value, is_longer=True)

    def _confirmation(self, lower: SearchPoint | None, upper: SearchPoint | None) -> _Step | None:
        sides = [lower] if lower else []
        if upper is not None and upper.holds is False:
            sides.append(upper)
        open_sides = [side for side in sides if self._longer_runs(side) < self.space.confirm]
        if not open_sides:
            return None
        return _Step(min(open_sides, key=self._longer_runs).value, is_longer=True)

    def _longer_runs(self, point: SearchPoint) -> int:
        return sum(is_longer for is_longer, _ in self._runs[point.value])


def _point(value: float, runs: list[tuple[bool, SearchedTrial]]) -> SearchPoint:
    usable = [(is_longer, result) for is_longer, result in runs if not result.problem]
    longest = max(usable or runs, key=lambda run: run[0])[1]
    if not usable:
        return SearchPoint(
            value=value,
            holds=None,
            share_beyond=None,
            statistics=longest.statistics,
            verdict=longest.verdict if longest.is_client_bound else Ending.UNUSABLE,
            is_client_bound=longest.is_client_bound,
            reason=longest.problem,
            runs=len(runs),
            confirmations=0,
        )
    results = [result for _, result in usable]
    objectives = list(zip(*(result.evidence for result in results), strict=True))
    held = [is_held(list(objective)) for objective in objectives]
    holds = _all_held(held)
    deciding = held.index(False) if False in held else held.index(None) if None in held else 0
    by_length = sorted(usable, key=lambda run: not run[0])
    # The result shown for a decision must be from a run on its side, or it would contradict it.
    on_side = (r for _, r in by_length if r.evidence[deciding].is_within is held[deciding])
    shown = next(on_side, longest)
    for is_longer, result in usable:
        alone = [is_held([one]) for one in result.evidence]
        if is_longer and holds is not None and _all_held(alone) is (not holds):
            # A longer run alone contradicts it.
            deciding, shown = (alone.index(False) if holds else deciding), result
            holds = None
    shares = [
        share / objective[0].allowed
        for objective in objectives
        if (share := share_beyond(list(objective))) is not None and objective[0].allowed
    ]
    return SearchPoint(
        value=value,
        holds=holds,
        is_within=all(each.is_within for result in results for each in result.evidence),
        share_beyond=max(shares, default=None),
        statistics=longest.statistics,
        verdict=longest.verdict,
        is_client_bound=False,
        reason=str(shown.evidence[deciding]),
        runs=len(runs),
        confirmations=sum(is_long and _on_side(result, holds) for is_long, result in usable),
    )


def _on_side(result: SearchedTrial, holds: bool | None) -> bool:
    """Return whether a trial's own values are on this side of their limits."""
    return _all_held([each.is_met for each in result.evidence]) is holds is not None


def _all_held(held: list[bool | None]) -> bool | None:
    if False in held:
        return False
    return None if None in held else True
