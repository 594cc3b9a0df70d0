"""Scenarios load the server like MLPerf, are judged by its gates, and are never submissions."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.config.load import Load
from aiperf_svc.core.experiments.scenario_files import (
    endpoints_config,
    result_summary,
    summary_text,
)
from aiperf_svc.core.experiments.scenario_result import Samples, Series, samples_of, scenario_result
from aiperf_svc.core.experiments.scenarios import Scenario, known_model, scenario_load
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.messages.reports import ClockEstimate
from tests.support import fake_run
from tests.support.small_configs import small_config

MS, S = 10**6, 10**9
MODEL = "meta-llama/Llama-2-70b-chat-hf"


def samples(count: int, *, slow: int = 0, failed: int = 0, seconds: float = 700.0) -> Samples:
    """Return requests with a TTFT of 1 s and a TPOT of 50 ms. Slow ones have a TTFT of 2 s."""
    ttft = np.full(count, 1.0 * S)
    ttft[:slow] = 2.0 * S
    latency, tokens = ttft + 9 * 50 * MS, np.full(count, 10.0)
    for values, bad in ((ttft, np.inf), (latency, np.inf), (tokens, np.nan)):
        values[count - failed :] = bad
    last = int(seconds * S)
    none = np.zeros(count)
    return Samples(latency, ttft, tokens, none, failed, 0, last, last + 2 * S, latency)


def gates(scenario: Scenario, found: Samples, model: str = MODEL) -> dict[str, bool]:
    return {gate.name: gate.is_met for gate in scenario_result(scenario, found, model).gates}


def test_a_server_run_within_its_limits() -> None:
    result = scenario_result(Scenario.SERVER, samples(10_000, slow=76), MODEL)
    assert result.is_valid
    assert result.tpot.percentile(99.0) == pytest.approx(50 * MS)
    assert result.value == pytest.approx(10 * 10_000 / 702)
    assert result.ttft.estimate(99.0) == S


def test_hidden_tokens_are_generated_and_not_streamed() -> None:
    found = samples(10_000)
    reasoned = found._replace(tokens=found.tokens + 990, hidden=np.full(10_000, 990.0))
    result = scenario_result(Scenario.SERVER, reasoned, MODEL)
    assert result.tpot.percentile(99.0) == pytest.approx(50 * MS)
    assert result.value == pytest.approx(1_000 * 10_000 / 702)


def test_query_latency_is_its_slowest_samples() -> None:
    rng = np.random.default_rng(1)
    start = fake_run.START_NS + np.repeat(np.arange(700) * S, 8)
    took = rng.integers(10 * MS, 90 * MS, 5_600)
    rows = fake_run.make_rows(
        5_600,
        due_wall_ns=start,
        start_wall_ns=start,
        first_token_wall_ns=start + MS,
        last_token_wall_ns=start + took,
        end_wall_ns=start + took,
        output_tokens=10,
    )
    rows["outcome"][3] = Outcome.ERRORED
    shuffled = fake_run.columns_of(rng.permutation(rows))
    found = samples_of(shuffled, Scenario.MULTI_STREAM, clocks=ClockMap())
    result = scenario_result(Scenario.MULTI_STREAM, found, MODEL)
    slowest = np.sort(took.reshape(700, 8).max(axis=1)[1:])
    assert result.latency.ordered[:-1].tolist() == slowest.tolist()
    assert np.isinf(result.latency.ordered[-1])  # a sample of the first query failed
    assert (result.completed, result.failed) == (5_599, 1)
    assert result.value is None  # with so few queries, the slowest is the estimate
    rows["outcome"][3] = Outcome.COMPLETED
    whole = samples_of(fake_run.columns_of(rows), Scenario.MULTI_STREAM, clocks=ClockMap())
    value = scenario_result(Scenario.MULTI_STREAM, whole, MODEL).value
    assert value == took.reshape(700, 8).max()
    assert {gate.name: gate.is_met for gate in result.gates} == {"duration": True, "queries": True}
    few = scenario_result(
        Scenario.MULTI_STREAM, found._replace(queries_ns=found.queries_ns[:661]), MODEL
    )
    assert [gate.text for gate in few.gates if not gate.is_met] == ["661 queries, at least 662"]


def test_value_at_the_limit_is_not_below_it() -> None:
    assert gates(Scenario.SERVER, samples(10_000, slow=77))["p99 TTFT"] is False
    assert gates(Scenario.INTERACTIVE, samples(10_000))["p99 TPOT"] is False


def test_a_failed_request_is_beyond_every_limit() -> None:
    found = gates(Scenario.SERVER, samples(10_000, failed=77))
    assert found == {"duration": True, "p99 TTFT": False, "p99 TPOT": False}
    assert scenario_result(Scenario.SERVER, samples(700, failed=2), MODEL).ttft.estimate(99) is None


def test_request_without_a_record_is_beyond_every_limit() -> None:
    due = fake_run.START_NS + np.arange(10_000) * 70 * MS
    rows = fake_run.make_rows(
        10_000,
        due_wall_ns=due,
        start_wall_ns=due,
        first_token_wall_ns=due + S,
        last_token_wall_ns=due + S + 450 * MS,
        end_wall_ns=due + S + 450 * MS,
        output_tokens=10,
    )
    columns = fake_run.columns_of(rows)
    enough, found = (
        samples_of(columns, Scenario.SERVER, clocks=ClockMap(), without_row=missing)
        for missing in (76, 90)
    )
    assert gates(Scenario.SERVER, enough)["p99 TTFT"]
    assert gates(Scenario.SERVER, found) == {"duration": True, "p99 TTFT": False, "p99 TPOT": False}
    result = scenario_result(Scenario.SERVER, found, MODEL)
    assert (result.completed, result.failed) == (10_000, 90)


def test_query_with_a_missing_sample_is_incomplete() -> None:
    start = np.full(16, fake_run.START_NS)
    rows = fake_run.make_rows(
        16, due_wall_ns=start, start_wall_ns=start, end_wall_ns=start + S, output_tokens=1
    )
    columns = fake_run.columns_of(rows[:-1])
    found = samples_of(columns, Scenario.MULTI_STREAM, clocks=ClockMap(), without_row=1)
    assert found.queries_ns.tolist() == [S, np.inf]


def test_duration_compares_workers_on_one_clock() -> None:
    # Two workers load for 100 s. The clock of the second one is 10 s ahead.
    due = fake_run.START_NS + np.arange(100) * S
    rows = fake_run.make_rows(
        100, due_wall_ns=due, start_wall_ns=due, end_wall_ns=due + S, output_tokens=10
    )
    rows["worker"] = np.arange(100) % 2
    for name in ("due_wall_ns", "start_wall_ns", "end_wall_ns"):
        rows[name][1::2] += 10 * S
    clocks = ClockMap([(1, [ClockEstimate(offset_ns=-10 * S, uncertainty_ns=0)])])
    found = samples_of(fake_run.columns_of(rows), Scenario.SERVER, clocks=clocks)
    assert found.last_due_ns - found.began_ns == 99 * S
    result = scenario_result(Scenario.SERVER, found, MODEL)
    assert result.duration_ns == 100 * S
    assert result.value == 10.0
    assert result.latency.ordered.tolist() == [S] * 100


@pytest.mark.parametrize(
    ("scenario", "found", "unmet"),
    [
        (Scenario.SINGLE_STREAM, samples(64), set()),
        (Scenario.SINGLE_STREAM, samples(63), {"queries"}),
        (Scenario.SINGLE_STREAM, samples(64, seconds=60), {"duration"}),
        (Scenario.SERVER, samples(10_000, seconds=599), {"duration"}),
        (Scenario.OFFLINE, samples(24_576), set()),
        (Scenario.OFFLINE, samples(24_575), {"queries"}),
    ],
)
def test_run_must_meet_duration_and_query_gates(
    scenario: Scenario, found: Samples, unmet: set[str]
) -> None:
    assert {name for name, is_met in gates(scenario, found).items() if not is_met} == unmet


def test_a_model_without_limits_is_never_valid() -> None:
    assert gates(Scenario.SERVER, samples(10_000), "gpt-2")["limits"] is False
    assert gates(Scenario.INTERACTIVE, samples(10_000), "mixtral-8x7b")["limits"] is False


def test_a_percentile_is_the_value_at_its_rank() -> None:
    series = Series.of(np.array([4.0, 1.0, np.nan, 3.0, 2.0]))
    assert [series.percentile(p) for p in (0, 50, 75, 99.9)] == [1, 3, 4, 4]
    assert Series.of(np.array([])).percentile(50) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (MODEL, "llama2-70b"),
        ("meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-oss-20b", None),
    ],
)
def test_models_by_their_usual_names(name: str, known: str | None) -> None:
    assert known_model(name) == known


def load(**parts: Any) -> Load:
    return Load.model_validate(parts)


def test_loads_of_the_scenarios() -> None:
    rate = load(request_rate=5, duration="600s")
    assert scenario_load(Scenario.SERVER, rate) == rate
    one = load(concurrency=1, duration="600s")
    assert scenario_load(Scenario.SINGLE_STREAM, one) == one
    everything = scenario_load(Scenario.OFFLINE, load(concurrency=1, requests=30_000))
    assert everything.concurrency == 30_000


@pytest.mark.parametrize(
    ("scenario", "parts", "named"),
    [
        (Scenario.MULTI_STREAM, {"concurrency": 4, "duration": "9s"}, "set load.concurrency 8"),
        (Scenario.MULTI_STREAM, {"concurrency": 8, "requests": 20}, "a multiple of it"),
        (Scenario.SERVER, {"concurrency": 8, "duration": "9s"}, "needs load.request_rate"),
        (Scenario.SERVER, {"request_rate": 8, "concurrency": 9, "duration": "9s"}, "leave it out"),
        (
            Scenario.INTERACTIVE,
            {"request_rate": 8, "arrival": {"pattern": "constant"}, "duration": "9s"},
            "'constant'",
        ),
        (Scenario.SINGLE_STREAM, {"concurrency": 8, "duration": "9s"}, "load.concurrency 1"),
        (Scenario.OFFLINE, {"concurrency": 8, "duration": "9s"}, "needs load.requests"),
        (Scenario.OFFLINE, {"request_rate": 8, "requests": 9}, "leave out load.request_rate"),
    ],
)
def test_unsupported_loads_are_refused(
    scenario: Scenario, parts: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_load(scenario, load(**parts))
    assert named in str(caught.value)


def test_mlperf_files_have_result_and_settings() -> None:
    load = {"request_rate": 14.5, "duration": "700s"}
    config = small_config(endpoint={"model": MODEL, "streaming": True}, load=load, random_seed=7)
    result = scenario_result(Scenario.SERVER, samples(10_000, slow=3, failed=2), MODEL)
    text = summary_text(result, name="bench")
    assert "MLPerf-style result, not an MLPerf submission" in text
    assert "Scenario                                         : Server" in text
    assert "Result is                                        : VALID" in text
    assert "p99 TTFT: yes: early-stopping estimate 1000 ms, to be below 2000 ms" in text
    found = result_summary(result, started_ns=5, version="0.1", is_complete=True)
    counts = [found[f"n_samples_{name}"] for name in ("issued", "completed", "failed")]
    assert counts == [10_000, 9_998, 2]
    assert found["ttft"]["early_stopping_percentiles"] == {
        "50.0": S, "90.0": S, "95.0": S, "99.0": S, "99.9": None
    }  # fmt: skip
    assert isinstance(found["ttft"]["total"], int)
    assert isinstance(found["output_sequence_lengths"]["max"], int)
    assert found["output_sequence_lengths"]["std_dev"] == 0
    assert found["ttft"]["std_dev"] == pytest.approx(np.std([2.0 * S] * 3 + [S] * 9_995, ddof=1))
    assert found["tpot"]["max"] == pytest.approx(50 * MS)
    assert found["output_sequence_lengths"]["avg"] == 10
    assert endpoints_config(config, result)["settings"] == {
        "load_pattern": {"type": "poisson", "target_qps": 14.5},
        "runtime": {
            "min_duration_ms": 600_000,
            "max_duration_ms": 700_000,
            "n_samples_to_issue": None,
            "scheduler_random_seed": 7,
            "dataloader_random_seed": 7,
        },
    }
