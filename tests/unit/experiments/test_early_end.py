"""A trial of a search ends early only if the complete trial would have been judged as breaking."""

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from aiperf_svc.adapters.exports import aiperf_exports
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.search import Search
from aiperf_svc.core.experiments.criteria import trial_result
from aiperf_svc.core.experiments.early_end import EarlyEndDetector, max_requests
from aiperf_svc.core.experiments.evidence import is_held
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import EarlyEnd
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.queues import LIMIT_S, SERVICE_S, true_knee, waits
from tests.support.small_configs import small_config

SECONDS = 20
GOOD = {"time_to_first_token": f"{LIMIT_S}s"}
PARTS = 40
"""Times within a trial at which an early end is considered."""
SEEDS = 8
"""Trials at each rate for each of three percentiles. If 12% of all such trials ended early, none of
24 below the knee would with a probability of 5%."""
ALLOWED = {"p50": 0.5, "p90": 0.1, "p99": 0.01}


def searched(**changes: Any) -> Search:
    defaults = {"parameter": "load.request_rate", "from": 1, "to": 999}
    return Search.model_validate(defaults | changes)


def trial(rate: float, stat: str = "p99", **load: Any) -> BenchmarkConfig:
    objective = {"metric": "time_to_first_token", "stat": stat, "max": f"{LIMIT_S}s"}
    load = {"request_rate": rate, "duration": f"{SECONDS}s"} | load
    return small_config(
        endpoint={"streaming": True}, load=load, slo={"objectives": [objective], "goodput": GOOD}
    )


def served(rate: float, seed: int) -> Rows:
    """Return the requests of a trial after a simulated queue, in the order of their ends."""
    rng = np.random.default_rng(seed)
    return rows_of(*waits(rng, rate, int(rate * SECONDS * 1.2 + 100)))


def rows_of(arrivals: NDArray[np.float64], waited: NDArray[np.float64]) -> Rows:
    """Return the requests of a trial in the order of their ends."""
    due = fake_run.START_NS + (arrivals * 1e9).astype(np.int64)
    first = due + (waited * 1e9).astype(np.int64)
    end = first + int(SERVICE_S * 1e9)
    times = {"due": due, "start": due, "sent": due, "ack": first, "first_token": first}
    times |= {"first_output": first, "last_token": end, "end": end}
    rows = fake_run.make_rows(len(due), **{f"{k}_wall_ns": v for k, v in times.items()})
    rows = rows[arrivals < SECONDS]
    return rows[np.argsort(rows["end_wall_ns"])]


def ended_early(
    config: BenchmarkConfig, rows: Rows, search: Search
) -> tuple[EarlyEnd, Rows] | None:
    """Return why a trial ended early, and its results until then."""
    detector = EarlyEndDetector(config, search)
    detector.begin(fake_run.START_NS)
    bounds = np.linspace(0, len(rows), PARTS + 1).astype(int)
    for begin, end in itertools.pairwise(bounds):
        detector.add(rows[begin:end])
        found = detector.early_end()
        if found is not None:
            return found, rows[:end]
    return None


def result_of(config: BenchmarkConfig, rows: Rows, early: EarlyEnd | None, search: Search) -> Any:
    context = msgspec.structs.replace(
        fake_run.context(rows, config=config), early_end=early, is_complete=early is None
    )
    summary = summarise(fake_run.columns_of(rows), None, context)
    content = aiperf_exports.result_of(summary)
    return content, trial_result(content, search)


@pytest.mark.parametrize("stat", ALLOWED)
def test_a_trial_that_ends_early_would_have_broken(stat: str) -> None:
    knee = true_knee(ALLOWED[stat], 200_000)
    early = dict.fromkeys((0.98, 1.02, 1.3), 0)
    for seed in range(SEEDS):
        for above in early:
            config, rows = trial(knee * above, stat), served(knee * above, seed)
            found = ended_early(config, rows, searched())
            if found is None:
                continue
            early[above] += 1
            _, whole = result_of(config, rows, None, searched())
            assert is_held([whole.evidence[0]]) is False
    assert early[1.3] == SEEDS
    assert early[0.98] == 0


@pytest.mark.parametrize("stat", ALLOWED)
def test_trial_with_possibly_few_long_waits_continues(stat: str) -> None:
    arrivals = np.arange(300 * SECONDS) / 300
    for share, ends in ((0.9, False), (2.0, True)):
        # Spread over all batches, but first within each batch.
        is_long = np.arange(len(arrivals)) % 600 < 600 * share * ALLOWED[stat]
        rows = rows_of(arrivals, np.where(is_long, 2 * LIMIT_S, 0.0))
        config = trial(300.0, stat, arrival={"pattern": "constant"})
        assert (ended_early(config, rows, searched()) is not None) is ends


@pytest.mark.parametrize("holds", ["slo", "goodput >= 99%"])
def test_early_ended_trial_breaks_without_a_value(holds: str) -> None:
    search = searched(holds=holds)
    config, rows = trial(300.0), served(300.0, 1)
    if holds != "slo":
        config = config.model_copy(update={"slo": config.slo.model_copy(update={"objectives": ()})})
    found = ended_early(config, rows, search)
    assert found is not None
    early, some = found
    assert len(some) < len(rows) / 2
    content, result = result_of(config, some, early, search)
    assert (content.verdict, content.cause, content.early_end) == (
        "invalid", "ended-early", early.text,
    )  # fmt: skip
    assert content.is_complete is False
    (evidence,) = result.evidence
    assert is_held([evidence]) is False
    assert str(evidence) == f"ended early: {early.text}"
    assert (result.problem, result.statistics) == ("", {})


def test_an_objective_that_may_hold_is_not_judged() -> None:
    config, rows = trial(300.0), served(300.0, 1)
    other = {"metric": "request_latency", "stat": "p99", "max": "1h"}
    slo = config.slo.model_dump(exclude_none=True)
    slo["objectives"] = [*slo["objectives"], other]
    config = BenchmarkConfig.model_validate(config.model_dump(mode="json") | {"slo": slo})
    found = ended_early(config, rows, searched())
    assert found is not None
    _, result = result_of(config, found[1], found[0], searched())
    assert [is_held([each]) for each in result.evidence] == [False, None]


@pytest.mark.parametrize(
    "load",
    [
        {"request_rate": None, "concurrency": 8},
        {"requests": 6_000},
        {"requests": 6_000, "duration": None},
    ],
)
def test_load_of_unknown_length_runs_to_its_end(load: dict[str, Any]) -> None:
    config = trial(300.0, **load)
    assert max_requests(config) is None
    assert ended_early(config, served(300.0, 1), searched()) is None


@pytest.mark.parametrize(
    "dataset",
    [
        {"turns": {"number": {"mean": 3}}},
        {"kind": "multi_turn", "file": "f"},
        {"kind": "mooncake_trace", "file": "f"},
        {"kind": "weka_trace", "file": "f"},
        {"kind": "dag_jsonl", "file": "f"},
        {"kind": "otel_trace", "file": "f"},
    ],
)
def test_conversation_rate_bounds_no_request_count(dataset: dict[str, Any]) -> None:
    config = trial(300.0)
    assert max_requests(config) is not None
    talking = config.model_copy(update={"dataset": Dataset.model_validate(dataset)})
    assert max_requests(talking) is None


def test_a_search_for_a_maximum_ends_no_trial() -> None:
    search = searched(maximize="request_throughput")
    assert ended_early(trial(300.0), served(300.0, 1), search) is None


def test_limiting_client_causes_the_early_end() -> None:
    config, rows = trial(300.0), served(300.0, 1)
    found = ended_early(config, rows, searched())
    assert found is not None
    late = found[1].copy()
    late["start_wall_ns"] += 300_000_000  # sent this long after they were due
    for name in ("sent", "ack", "first_token", "first_output", "last_token", "end"):
        late[f"{name}_wall_ns"] += 300_000_000
    content, result = result_of(config, late, found[0], searched())
    assert content.cause == "client-bound"
    assert result.is_client_bound
    assert result.problem
