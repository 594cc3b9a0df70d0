"""Builds the search of a config, as a source of trials for the experiment."""

import itertools
import math
from collections.abc import Sequence

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.config.names import type_at
from aiperf_svc.config.search import MAX_POINTS, Span
from aiperf_svc.config.search import Search as SearchConfig
from aiperf_svc.core.experiments.criteria import failed_trial
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.search import Search, SearchedTrial, SearchSpace
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.domain.json_objects import Parameters

_GRID = {1: 7, 2: 3}
"""Grid values of each parameter, by the number of parameters."""

GridPoint = tuple[float, ...]


class MaximumSearch:
    """Searches the load that maximizes a metric, over one or two parameters. Pass the result of
    each trial from `next` to `add`, until `next` is None.

    It tries a coarse grid on a logarithmic scale, then the middles between the best point and its
    neighbours. The results derive the front of throughput against latency from all points.
    """

    def __init__(self, spaces: Sequence[SearchSpace], metric: str) -> None:
        self._spaces = tuple(spaces)
        self._metric = metric
        axes = [_grid(space, _GRID[len(self._spaces)]) for space in self._spaces]
        self._grid = list(itertools.product(*axes))
        self._found: dict[GridPoint, float | None] = {}

    @property
    def best(self) -> Parameters | None:
        """Return the parameters of the best point; None if no point has a value."""
        known = {place: value for place, value in self._found.items() if value is not None}
        return self._parameters(max(known, key=lambda at: known[at])) if known else None

    def next(self) -> Parameters | None:
        """Return the parameters of the next trial; None when the search is over."""
        place = next((each for each in self._grid if each not in self._found), None)
        if place is None and len(self._found) < MAX_POINTS:
            place = self._refined()
        return None if place is None else self._parameters(place)

    def add(self, parameters: Parameters, result: SearchedTrial) -> None:
        """Record the result of a trial from `next`. A trial that does not measure the server,
        because the client was busy or most requests failed, counts as a trial without a
        value."""
        place = tuple(float(parameters[space.parameter]) for space in self._spaces)
        is_unusable = bool(result.problem) or result.verdict.startswith("invalid")
        self._found[place] = None if is_unusable else result.statistics.get(self._metric)

    def _refined(self) -> GridPoint | None:
        best = self.best
        if best is None:
            return None
        place = tuple(float(best[space.parameter]) for space in self._spaces)
        steps: list[tuple[float, GridPoint]] = []
        for axis, space in enumerate(self._spaces):
            values = sorted({each[axis] for each in self._found if _is_beside(each, place, axis)})
            for low, high in itertools.pairwise(values):
                middle = space.between(low, high) if place[axis] in (low, high) else None
                if middle is not None:
                    moved = (*place[:axis], middle, *place[axis + 1 :])
                    steps.append((high / low, moved))
        return max(steps)[1] if steps else None

    def _parameters(self, place: GridPoint) -> Parameters:
        found: Parameters = {}
        for space, value in zip(self._spaces, place, strict=True):
            found |= space.parameters(value, is_longer=False)
        return found


def _grid(space: SearchSpace, count: int) -> list[float]:
    step = math.log(space.high / space.low) / (count - 1)
    values = (space.rounded(space.low * math.exp(step * number)) for number in range(count))
    return sorted(set(values))


def _is_beside(place: GridPoint, other: GridPoint, axis: int) -> bool:
    """Return whether two points differ on one axis only."""
    return place[:axis] == other[:axis] and place[axis + 1 :] == other[axis + 1 :]


LONGER = 3
"""Length of a confirming trial, as a multiple of the others."""
_UNITS = {
    "load.request_rate": "req/s",
    "load.user_centric.rate": "req/s",
    "load.concurrency": "users",
    "load.user_centric.users": "users",
}


Machine = Search | MaximumSearch


class SearchTrials:
    """Yields the trials of a search: a `Strategy` of the experiment's machine."""

    total = 0
    """Unknown."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._begun = 0

    def next(self) -> Trial | None:
        """Return the next trial; None when the search is over."""
        parameters = self.machine.next()
        if parameters is None:
            return None
        self._begun += 1
        return Trial(self._begun, parameters)

    def add(self, trial: Trial, finding: Finding | None) -> None:
        """Record the finding of a trial; None if it failed."""
        searched = finding.searched if finding is not None else None
        self.machine.add(trial.parameters, searched or failed_trial("the trial failed"))


def search_machine(config: BenchmarkConfig) -> Machine:
    """Return the search in a config."""
    assert config.experiment is not None
    search = config.experiment.search
    assert search is not None
    spaces = [_space(search, key, span) for key, span in search.ranges.items()]
    if search.maximize is not None:
        return MaximumSearch(spaces, search.maximize)
    usual, longer = lengths(config.load)
    return Search(msgspec.structs.replace(spaces[0], usual=usual, longer=longer))


def report_of(machine: Machine) -> SearchReport | None:
    """Return the progress of a search for a limit; None for other searches."""
    return machine.report if isinstance(machine, Search) else None


def _space(search: SearchConfig, key: str, span: Span) -> SearchSpace:
    return SearchSpace(
        parameter=key,
        low=float(span.start),
        high=float(span.end),
        is_whole=_is_whole(key),
        precision=search.precision,
        confirm=search.confirm,
        max_longer_trials=search.max_longer_trials,
        unit=_UNITS.get(key, ""),
    )


def lengths(load: Load) -> tuple[Parameters, Parameters]:
    """Return the parameters of a usual trial and of a trial three times as long: by time if the
    load ends by time, else by its number of requests. A trace that is replayed to its end cannot be
    longer."""
    for key, length in (("duration", load.duration), ("min_duration", load.min_duration)):
        if length:
            usual, longer = (f"{length * times / 1e9:g}s" for times in (1, LONGER))
            return {f"load.{key}": usual}, {f"load.{key}": longer}
    if load.requests is None or load.rate_points:
        return {}, {}
    return {"load.requests": load.requests}, {"load.requests": load.requests * LONGER}


def _is_whole(key: str) -> bool:
    """Return whether a key only takes whole numbers."""
    wanted = str(type_at(tuple(key.split(".")), BenchmarkConfig))
    return "int" in wanted and "float" not in wanted
