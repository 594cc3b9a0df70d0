"""The summary of an experiment from the outcomes of its trials."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.report import experiment_texts
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import best_of, front
from aiperf_svc.core.experiments.combinations import Combination
from aiperf_svc.core.experiments.outcomes import TrialOutcome, measured_in
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.summarise import summarise as summarise_run
from aiperf_svc.domain.metric_catalog import CATALOG
from tests.support import fake_run, fake_steps
from tests.support.fake_results import as_json, objective
from tests.support.fake_trials import outcome, results_of, sweep

THROUGHPUT = RowKey("request_throughput", "avg")
TTFT = RowKey("time_to_first_token", "p99")


def concurrencies(found: tuple[Combination, ...]) -> list[Any]:
    return [each.parameters["load.concurrency"] for each in found]


def test_every_number_of_an_inference_run_is_read() -> None:
    rows = fake_run.closed_loop(requests=500)
    summary = summarise_run(fake_run.columns_of(rows), None, fake_run.context(rows))
    results = result_of(summary)
    content, found = as_json(results), measured_in(results)
    stats = {
        (tag, stat): value
        for tag in CATALOG
        for stat, value in content.get(tag, {}).items()
        if isinstance(value, int | float)
    }
    assert {(key.tag, key.stat): value for key, value in found.values.items()} == stats
    assert found.run_id == content["benchmark_id"]
    assert found.headline[0] == THROUGHPUT


def test_every_metric_of_a_tool_is_read() -> None:
    result = fake_steps.result()
    found = measured_in(result)
    assert found.kind == result.workload
    for metric in result.metrics:
        assert found.values[RowKey(metric.info.tag, "avg")] == metric.avg
        assert found.metrics[metric.info.tag] == metric.info


def test_repetitions_have_mean_deviation_and_interval() -> None:
    outcomes = sweep({4: (100.0, 20.0)}, repetitions=3, step=10.0)
    (found,) = summarise(outcomes).combinations
    value = found.values[THROUGHPUT]
    assert (value.n, value.mean, value.low, value.high) == (3, 110.0, 100.0, 120.0)
    assert value.sd == pytest.approx(10.0)
    # t(0.975, 2) = 4.3027
    assert value.half_width == pytest.approx(4.3027 * 10 / math.sqrt(3), rel=1e-4)


def test_a_single_run_has_no_interval() -> None:
    (found,) = summarise([outcome(1, {}, throughput=100.0)]).combinations
    assert found.values[THROUGHPUT].sd is None
    assert found.values[THROUGHPUT].half_width is None


def test_unusable_trials_are_left_out_and_named() -> None:
    good = sweep({4: (100.0, 20.0)}, repetitions=2)
    bad = [
        outcome(
            3, {"load.concurrency": 4}, throughput=1.0, verdict="invalid", cause="client-bound"
        ),
        outcome(4, {"load.concurrency": 4}, state="failed", reason="no response", throughput=1.0),
        outcome(5, {"load.concurrency": 4}),
    ]
    (found,) = summarise([*good, *bad]).combinations
    assert found.values[THROUGHPUT].n == 2
    assert found.values[THROUGHPUT].mean == 100.0
    reasons = {row.number: row.left_out for row in found.left_out}
    assert reasons == {
        3: "invalid: client-bound",
        4: "failed: no response",
        5: "nothing was measured",
    }


def test_value_missing_in_a_repetition_has_no_mean() -> None:
    outcomes = sweep({4: (100.0, 20.0)}, repetitions=2)
    cut = results_of(throughput=100.0, ttft=20.0)
    cut.metrics[TTFT.tag] = replace(cut.metrics[TTFT.tag], p99=None, beyond={"p99": 900.0})
    last = TrialOutcome(Trial(3, {"load.concurrency": 4}, 3), "done", "", cut)
    (found,) = summarise([*outcomes, last]).combinations
    assert found.mean(TTFT) is None
    assert found.mean(THROUGHPUT) == 100.0


def test_combinations_are_ordered_by_value() -> None:
    outcomes = [
        outcome(number, {"load.concurrency": concurrency, "endpoint.model": model}, throughput=1.0)
        for number, (concurrency, model) in enumerate([(16, "b"), (2, "b"), (16, "a"), (2, "a")], 1)
    ]
    summary = summarise(outcomes)
    assert [tuple(each.parameters.values()) for each in summary.combinations] == [
        (2, "b"),
        (2, "a"),
        (16, "b"),
        (16, "a"),
    ]
    assert [each.values for each in summary.parameters] == [(2, 16), ("b", "a")]
    assert [each.is_number for each in summary.parameters] == [True, False]


def test_same_parameters_in_another_order_are_one_combination() -> None:
    outcomes = [
        outcome(1, {"a": 1, "b": [2]}, throughput=1.0),
        outcome(2, {"b": [2], "a": 1}, throughput=3.0),
    ]
    (found,) = summarise(outcomes).combinations
    assert found.mean(THROUGHPUT) == 2.0


def test_front_has_the_pareto_optimal_points() -> None:
    points = {1: (10.0, 5.0), 2: (20.0, 6.0), 4: (19.0, 7.0), 8: (40.0, 30.0), 16: (40.0, 40.0)}
    found = front(summarise(sweep(points)))
    assert found is not None
    assert (found.throughput, found.latency) == (THROUGHPUT, TTFT)
    assert concurrencies(found.optimal) == [1, 2, 8]
    assert concurrencies(found.points) == [1, 2, 4, 8, 16]


def test_equals_are_both_on_the_front() -> None:
    found = front(summarise(sweep({1: (10.0, 5.0), 2: (10.0, 5.0), 4: (10.0, 6.0)})))
    assert found is not None
    assert sorted(concurrencies(found.optimal)) == [1, 2]


def test_front_agrees_with_its_definition_on_random_points() -> None:
    generator = fake_run.np.random.default_rng(1)
    points = {
        at: (float(up), float(down))
        for at, (up, down) in enumerate(generator.integers(1, 12, size=(60, 2)), 1)
    }
    found = front(summarise(sweep(points)))
    assert found is not None
    optimal = {
        at
        for at, (up, down) in points.items()
        if not any(u >= up and d <= down and (u, d) != (up, down) for u, d in points.values())
    }
    assert set(concurrencies(found.optimal)) == optimal


def test_front_needs_a_common_latency() -> None:
    outcomes = [
        outcome(1, {"load.concurrency": 1}, throughput=1.0, ttft=1.0),
        outcome(2, {"load.concurrency": 2}, throughput=2.0),
    ]
    assert front(summarise(outcomes)) is None


def test_best_is_by_the_direction_of_the_metric() -> None:
    summary = summarise(sweep({1: (10.0, 5.0), 2: (20.0, 6.0)}))
    chosen = {
        each.key: each.combination.parameters["load.concurrency"] for each in best_of(summary)
    }
    assert chosen == {THROUGHPUT: 2, TTFT: 1}


def test_single_combination_is_never_the_best() -> None:
    assert best_of(summarise(sweep({1: (10.0, 5.0)}, repetitions=3))) == ()


def test_trial_that_misses_the_slo_is_never_best() -> None:
    outcomes = [
        outcome(
            n,
            {"load.concurrency": n},
            throughput=10.0 * n,
            ttft=5.0 + n,
            slo=(objective(ok=n < 3),),
        )
        for n in (1, 2, 3)
    ]
    (best, _) = best_of(summarise(outcomes))
    assert best.combination.parameters == {"load.concurrency": 2}


@pytest.mark.parametrize(
    "cause", ["target-failing", "unusable-responses", "load-capped", "eu: step-failed"]
)
def test_combination_that_failed_is_never_recommended(cause: str) -> None:
    outcomes = sweep({1: (10.0, 30.0), 2: (20.0, 20.0), 4: (40.0, 10.0)}, repetitions=2)
    outcomes.append(
        outcome(
            7,
            {"load.concurrency": 4},
            repetition=3,
            throughput=50.0,
            ttft=5.0,
            verdict="invalid",
            cause=cause,
        )
    )
    summary = summarise(outcomes)
    found = best_of(summary)
    assert [each.key for each in found] == [THROUGHPUT, TTFT]
    assert {each.combination.parameters["load.concurrency"] for each in found} == {2}
    on_front = front(summary)
    assert on_front is not None
    assert (concurrencies(on_front.optimal), len(on_front.points)) == ([2], 3)
    assert experiment_texts.optimal(summary, "*")[1] == (
        "*: no other combination without a failed target or step is better in both "
        "Request Throughput and Time to First Token p99"
    )


def test_best_with_a_failed_trial_counts_its_trials() -> None:
    outcomes = sweep({1: (10.0, 30.0), 2: (20.0, 20.0)}, repetitions=2)
    outcomes.append(TrialOutcome(Trial(5, {"load.concurrency": 2}, 3), "failed", "no pod", None))
    summary = summarise(outcomes)
    first = next(iter(best_of(summary)))
    _, text = experiment_texts.best_texts(summary, first, is_interval_noted=False)
    assert text.startswith("load.concurrency=2 (2 of 3 trials)")


def test_equal_values_have_no_best() -> None:
    summary = summarise(sweep({1: (10.0, 5.0), 2: (10.0, 6.0)}))
    assert [each.key for each in best_of(summary)] == [TTFT]


def test_summary_without_trials_is_empty() -> None:
    summary = summarise([])
    assert (summary.rows, summary.combinations, summary.parameters) == ((), (), ())
    assert front(summary) is None
