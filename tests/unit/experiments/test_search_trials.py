"""The config of a search becomes a machine, and its trials become those of an experiment."""

import math
from typing import Any

import pytest

from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.search import Search, SearchedTrial
from aiperf_svc.core.experiments.search_report import Ending
from aiperf_svc.core.experiments.search_trials import MaximumSearch, SearchTrials, search_machine
from tests.support.small_configs import small_config


def machine(search: dict[str, Any], **load: Any) -> Search | MaximumSearch:
    return search_machine(
        small_config(
            load={"concurrency": 1, "duration": "60s"} | load,
            slo={"objectives": [{"metric": "request_latency", "max": 1}]},
            experiment={"search": search},
        )
    )


def test_user_search_uses_integers_and_long_confirmations() -> None:
    found = machine({"parameter": "load.concurrency", "from": 1, "to": 64})
    assert isinstance(found, Search)
    assert (found.space.is_whole, found.space.unit) == (True, "users")
    assert found.space.longer == {"load.duration": "180s"}
    assert found.space.usual == {"load.duration": "60s"}
    rate = machine({"parameter": "load.request_rate", "from": 1, "to": 64}, requests=500)
    assert isinstance(rate, Search)
    assert not rate.space.is_whole
    counted = machine(
        {"parameter": "load.concurrency", "from": 1, "to": 9}, requests=500, duration=None
    )
    assert isinstance(counted, Search)
    assert counted.space.longer == {"load.requests": 1500}
    assert counted.space.usual == {"load.requests": 500}


def test_numbered_trials_end_where_the_client_limits() -> None:
    found = machine({"parameter": "load.concurrency", "from": 1, "to": 64})
    assert isinstance(found, Search)
    trials = SearchTrials(found)
    first = trials.next()
    assert first is not None
    assert (first.number, first.parameters) == (1, {"load.concurrency": 1, "load.duration": "60s"})
    trials.add(
        first, Finding("valid", "", SearchedTrial(evidence=(), is_client_bound=True, problem="x"))
    )
    assert found.ending is Ending.CLIENT_BOUND
    assert trials.next() is None


@pytest.mark.parametrize("peak", [3.0, 40.0, 64.0])
def test_the_maximum_over_one_parameter(peak: float) -> None:
    found = machine(
        {"parameter": "load.concurrency", "from": 1, "to": 64, "maximize": "request_throughput"}
    )
    assert isinstance(found, MaximumSearch)
    requested = []
    while (parameters := found.next()) is not None:
        requested.append(parameters["load.concurrency"])
        value = -abs(math.log(parameters["load.concurrency"] / peak))
        statistics = {"request_throughput": value}
        found.add(parameters, SearchedTrial(evidence=(), statistics=statistics))
    assert sorted(requested)[:: len(requested) - 1] == [1, 64]
    assert len(requested) == len(set(requested)) <= MAX_POINTS
    assert found.best is not None
    assert abs(math.log(found.best["load.concurrency"] / peak)) < 0.06


def test_maximum_is_never_where_the_client_limits() -> None:
    spans = {
        "load.concurrency": {"from": 1, "to": 64},
        "dataset.input_tokens.mean": {"from": 100, "to": 1000},
    }
    found = machine({"parameters": spans, "maximize": "request_throughput"})
    assert isinstance(found, MaximumSearch)
    requested = []
    while (parameters := found.next()) is not None:
        requested.append(tuple(parameters.values()))
        users, tokens = requested[-1]
        statistics = {"request_throughput": users / tokens}
        problem = "late" if users > 32 else ""
        found.add(parameters, SearchedTrial(evidence=(), statistics=statistics, problem=problem))
    assert len(requested) == len(set(requested)) == MAX_POINTS
    assert found.best is not None
    assert 8 <= found.best["load.concurrency"] <= 32
    assert found.best["dataset.input_tokens.mean"] == 100


def test_maximum_is_never_where_most_requests_fail() -> None:
    found = machine(
        {"parameter": "load.concurrency", "from": 1, "to": 64, "maximize": "request_throughput"}
    )
    assert isinstance(found, MaximumSearch)
    while (parameters := found.next()) is not None:
        users = parameters["load.concurrency"]
        verdict = "invalid: target-failing" if users > 20 else "valid"
        statistics = {"request_throughput": float(users)}
        found.add(parameters, SearchedTrial(evidence=(), statistics=statistics, verdict=verdict))
    assert found.best is not None
    assert 16 <= found.best["load.concurrency"] <= 20
