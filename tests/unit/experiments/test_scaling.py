"""The parallel efficiency of trials that vary the number of processes."""

from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.core.experiments.combinations import Aggregate
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import EFFICIENCY, summarise
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.tool_result import MetricResult, MetricValue
from tests.support import fake_steps

PROCESSES, RANKS, SIZE = "workload.processes", "workload.ranks", "workload.size"
KEYS = (PROCESSES, RANKS)


def outcomes(
    points: list[tuple[dict[str, Any], float]], *, repetition: int = 1, scales_with: Any = KEYS
) -> list[TrialOutcome]:
    """Return trials of a tool on ranks with one metric each."""
    found = []
    for number, (parameters, value) in enumerate(points, 1 + 100 * (repetition - 1)):
        infos = (
            MetricInfo(tag="time", name="time", unit="s", better="lower"),
            MetricInfo(
                tag="rate", name="rate", unit="ops/s", better="higher", scales_with=scales_with
            ),
        )
        values = [MetricValue(step="s", repetition=1, value=value)]
        metrics = tuple(MetricResult.of(info, values) for info in infos)
        result = replace(fake_steps.result(), metrics=metrics)
        found.append(TrialOutcome(Trial(number, parameters, repetition), "done", "", result))
    return found


def efficiencies(found: list[TrialOutcome]) -> list[float | None]:
    return [each.mean(EFFICIENCY) for each in summarise(found).combinations]


def test_efficiency_is_relative_to_the_fewest_processes() -> None:
    found = outcomes([({PROCESSES: 8}, 40.0), ({PROCESSES: 2}, 20.0), ({PROCESSES: 4}, 36.0)])
    assert efficiencies(found) == [1.0, 0.9, 0.5]
    summary = summarise(found)
    assert [key.tag for key in summary.headline] == ["time", "parallel_efficiency", "rate"]
    assert summary.metrics["parallel_efficiency"].unit == "ratio"


def test_only_otherwise_equal_trials_are_compared() -> None:
    found = outcomes(
        [
            ({SIZE: "S", PROCESSES: 1}, 10.0),
            ({SIZE: "S", PROCESSES: 2}, 15.0),
            ({SIZE: "M", PROCESSES: 2}, 8.0),
        ]
    )
    assert efficiencies(found) == [1.0, 0.75, None]


def test_trial_with_default_processes_has_no_efficiency() -> None:
    found = outcomes([({PROCESSES: None}, 20.0), ({PROCESSES: 4}, 40.0), ({PROCESSES: 8}, 60.0)])
    assert efficiencies(found) == [None, 1.0, 60 / (2 * 40)]


def test_process_count_is_the_product_of_its_keys() -> None:
    found = outcomes([({RANKS: 1, PROCESSES: 2}, 10.0), ({RANKS: 2, PROCESSES: 4}, 30.0)])
    assert efficiencies(found) == [1.0, 0.75]


def test_repetitions_of_both_sides_are_in_the_interval() -> None:
    found = [
        *outcomes([({PROCESSES: 1}, 9.0), ({PROCESSES: 2}, 16.0)]),
        *outcomes([({PROCESSES: 1}, 11.0), ({PROCESSES: 2}, 16.0)], repetition=2),
    ]
    base, other = (each.values[EFFICIENCY] for each in summarise(found).combinations)
    assert base == Aggregate(2, 1.0, 1.0, 1.0, None)
    assert (other.n, other.mean) == (2, 0.8)
    # The value does not vary. The value of one process varies by 2 ** 0.5 of 10.
    assert other.sd == pytest.approx(0.8 * 2**0.5 / 10)


@pytest.mark.parametrize(
    ("points", "scales_with"),
    [
        ([({SIZE: "S"}, 1.0), ({SIZE: "M"}, 2.0)], KEYS),
        ([({PROCESSES: 1}, 1.0), ({PROCESSES: 2}, 2.0)], ()),
        ([({PROCESSES: 1}, 0.0), ({PROCESSES: 2}, 2.0)], KEYS),
    ],
    ids=["processes do not vary", "not of this metric", "no value to compare with"],
)
def test_efficiency_needs_trials_to_compare(
    points: list[tuple[dict[str, Any], float]], scales_with: Any
) -> None:
    found = outcomes(points, scales_with=scales_with)
    assert efficiencies(found) == [None, None]
    assert EFFICIENCY not in summarise(found).headline
