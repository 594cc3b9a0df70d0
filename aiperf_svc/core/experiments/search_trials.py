"""The trials of a search: what its config means, as a source of trials for the experiment."""

from typing import Any, Protocol

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.config.names import type_at
from aiperf_svc.config.search import Search as SearchConfig
from aiperf_svc.config.search import Span
from aiperf_svc.core.experiments.criteria import failed_trial
from aiperf_svc.core.experiments.maximum import MaximumSearch
from aiperf_svc.core.experiments.search import Search, TrialResult
from aiperf_svc.core.experiments.search_space import SearchSpace
from aiperf_svc.core.experiments.trials import Trial

LONGER = 3
"""How many times as long as the others a trial is that confirms."""
_UNITS = {
    "load.request_rate": "req/s",
    "load.user_centric.rate": "req/s",
    "load.concurrency": "users",
    "load.user_centric.users": "users",
}


class Machine(Protocol):
    """A search of either kind."""

    def next(self) -> dict[str, Any] | None:
        """Return the parameters of the next trial; None when the search is over."""
        ...

    def add(self, parameters: dict[str, Any], result: TrialResult) -> None:
        """Take the result of a trial."""
        ...


class SearchTrials:
    """Gives the trials of a search one by one: a `Strategy` of the experiment's machine."""

    total = 0
    """Nobody knows how many there will be."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._begun = 0

    def next(self) -> Trial | None:
        """Return the next trial, None when the search is over."""
        parameters = self.machine.next()
        if parameters is None:
            return None
        self._begun += 1
        return Trial(self._begun, parameters)

    def add(self, trial: Trial, finding: dict[str, Any] | None) -> None:
        """Take what a trial found: a `TrialResult` as plain objects; None when it failed."""
        result = failed_trial("the trial failed")
        if finding is not None:
            result = msgspec.convert(finding, TrialResult)
        self.machine.add(trial.parameters, result)


def search_machine(config: BenchmarkConfig) -> Search | MaximumSearch:
    """Return the search that a config asks for."""
    assert config.experiment is not None
    search = config.experiment.search
    assert search is not None
    spaces = [_space(search, key, span) for key, span in search.ranges.items()]
    if search.maximize is not None:
        return MaximumSearch(spaces, search.maximize)
    usual, longer = lengths(config.load)
    return Search(msgspec.structs.replace(spaces[0], usual=usual, longer=longer))


def _space(search: SearchConfig, key: str, span: Span) -> SearchSpace:
    return SearchSpace(
        parameter=key,
        low=float(span.start),
        high=float(span.end),
        is_whole=_is_whole(key),
        precision=search.precision,
        confirm=search.confirm,
        most_longer=search.most_longer,
        unit=_UNITS.get(key, ""),
    )


def lengths(load: Load) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a usual trial and of one that is three times as long: by time if the
    load ends by time, else by its number of requests. A trace that is replayed to its end cannot be
    longer."""
    if load.duration:
        usual, longer = (f"{load.duration * times / 1e9:g}s" for times in (1, LONGER))
        return {"load.duration": usual}, {"load.duration": longer}
    if load.requests is None or load.rate_points:
        return {}, {}
    return {"load.requests": load.requests}, {"load.requests": load.requests * LONGER}


def _is_whole(key: str) -> bool:
    """True if a key takes whole numbers only."""
    wanted = str(type_at(tuple(key.split(".")), BenchmarkConfig))
    return "int" in wanted and "float" not in wanted
