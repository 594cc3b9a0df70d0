"""Searches the load at which a metric is highest, over one or two parameters.

A pure machine as `Search` is. A coarse grid on the logarithm comes first, then the middles between
the best point and its neighbours. The result is not the best point alone: from the points the
results make the front of throughput against latency.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.config.search import MOST_POINTS
from aiperf_svc.core.experiments.search import TrialResult
from aiperf_svc.core.experiments.search_space import SearchSpace

_GRID = {1: 7, 2: 3}
"""Values of each parameter on the grid, by the number of parameters."""

Place = tuple[float, ...]


class MaximumSearch:
    """One search: give each trial that `next` names to `add`, until `next` is None."""

    def __init__(self, spaces: Sequence[SearchSpace], metric: str) -> None:
        self._spaces = tuple(spaces)
        self._metric = metric
        axes = [_grid(space, _GRID[len(self._spaces)]) for space in self._spaces]
        self._grid = list(itertools.product(*axes))
        self._found: dict[Place, float | None] = {}

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Return the parameters of the best point; None while there is none with a value."""
        known = {place: value for place, value in self._found.items() if value is not None}
        return self._parameters(max(known, key=lambda at: known[at])) if known else None

    def next(self) -> dict[str, Any] | None:
        """Return the parameters of the next trial; None when the search is over."""
        place = next((each for each in self._grid if each not in self._found), None)
        if place is None and len(self._found) < MOST_POINTS:
            place = self._refined()
        return None if place is None else self._parameters(place)

    def add(self, parameters: Mapping[str, Any], result: TrialResult) -> None:
        """Take the result of a trial that `next` asked for. One that tells nothing of the server,
        such as that of a busy client, or that is not valid, as the server failed most requests,
        counts as without a value."""
        place = tuple(float(parameters[space.parameter]) for space in self._spaces)
        is_unusable = bool(result.problem) or result.verdict.startswith("invalid")
        self._found[place] = None if is_unusable else result.statistics.get(self._metric)

    def _refined(self) -> Place | None:
        best = self.best
        if best is None:
            return None
        place = tuple(float(best[space.parameter]) for space in self._spaces)
        steps: list[tuple[float, Place]] = []
        for axis, space in enumerate(self._spaces):
            values = sorted({each[axis] for each in self._found if _is_beside(each, place, axis)})
            for low, high in itertools.pairwise(values):
                middle = space.between(low, high) if place[axis] in (low, high) else None
                if middle is not None:
                    moved = (*place[:axis], middle, *place[axis + 1 :])
                    steps.append((high / low, moved))
        return max(steps)[1] if steps else None

    def _parameters(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for space, value in zip(self._spaces, place, strict=True):
            found |= space.parameters(value, is_longer=False)
        return found


def _grid(space: SearchSpace, count: int) -> list[float]:
    step = math.log(space.high / space.low) / (count - 1)
    values = (space.rounded(space.low * math.exp(step * number)) for number in range(count))
    return sorted(set(values))


def _is_beside(place: Place, other: Place, axis: int) -> bool:
    """True if two places differ on one axis only."""
    return place[:axis] == other[:axis] and place[axis + 1 :] == other[axis + 1 :]
