"""Two versions in ABBA and BAAB blocks: a drift of the system does not change the result."""

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.core.compare.comparison import ComparisonRow, Word
from aiperf_svc.core.compare.measured_run import RunValue
from aiperf_svc.core.experiments.trials import Trial, block_of, plan_trials
from aiperf_svc.core.verdict.check_result import Severity
from tests.support.runs_to_compare import P50, P99, compared, measured

PAIRS = 200
MAX_ALARMS = 14
"""7% of the pairs for a test at the 5% level."""
BLOCKS = 12
NOISE = 0.02
"""Variation of a trial's value."""
DRIFT = 0.1
"""Change of the whole system over the experiment."""

Drift = Callable[[float], float]
DRIFTS: dict[str, Drift] = {
    "linear": lambda part: DRIFT * part,
    "sinusoidal": lambda part: DRIFT / 2 * math.sin(2 * math.pi * part),
}


def in_blocks(seed: int, count: int = BLOCKS) -> tuple[Trial, ...]:
    experiment = Experiment.model_validate(
        {"product": {"v": ["a", "b"]}, "blocks": {"over": "v", "count": count}}
    )
    return plan_trials(experiment, seed)


def grouped(seed: int) -> tuple[Trial, ...]:
    """Return the order without blocks: all trials of one version, then all of the other."""
    experiment = Experiment.model_validate(
        {"product": {"v": ["a", "b"]}, "repetitions": 2 * BLOCKS, "order": "grouped"}
    )
    return plan_trials(experiment, seed)


def row_of(
    trials: Sequence[Trial], drift: Drift, seed: int, *, effect: float = 0.0, is_paired: bool
) -> ComparisonRow:
    """Return the row of a metric that drifts over the trials and is larger by `effect` for b."""
    random = Random(seed)
    sides: dict[str, list] = {"a": [], "b": []}  # type: ignore[type-arg]
    for at, trial in enumerate(trials):
        version = trial.parameters["v"]
        value = 100.0 * (1 + drift(at / (len(trials) - 1))) * random.gauss(1, NOISE)
        value *= 1 + effect * (version == "b")
        run = measured(
            f"{version}{at}", {P50: RunValue(value, 10_000)}, block=block_of(trial.repetition)
        )
        sides[version].append(run)
    (row,) = compared(sides["a"], sides["b"], is_paired=is_paired).rows
    return row


def excludes_zero(row: ComparisonRow) -> bool:
    assert row.low is not None
    assert row.high is not None
    return not row.low <= 0 <= row.high


@pytest.mark.parametrize("drift", DRIFTS)
def test_equal_versions_in_blocks_are_rarely_called_different(drift: str) -> None:
    alarms = sum(
        excludes_zero(row_of(in_blocks(seed), DRIFTS[drift], seed, is_paired=True))
        for seed in range(PAIRS)
    )
    assert alarms <= MAX_ALARMS


@pytest.mark.parametrize("drift", DRIFTS)
def test_twelve_blocks_find_a_five_percent_difference(drift: str) -> None:
    rows = [
        row_of(in_blocks(seed), DRIFTS[drift], seed, effect=0.05, is_paired=True)
        for seed in range(PAIRS)
    ]
    assert sum(excludes_zero(row) and row.delta > 0 for row in rows) >= 0.8 * PAIRS


@pytest.mark.parametrize("drift", DRIFTS)
def test_versions_measured_in_sequence_differ_by_the_drift(drift: str) -> None:
    alarms = sum(
        excludes_zero(row_of(grouped(seed), DRIFTS[drift], seed, is_paired=False))
        for seed in range(PAIRS)
    )
    assert alarms >= 0.9 * PAIRS


def test_blocks_are_abba_or_baab_by_the_seed() -> None:
    found = "".join(trial.parameters["v"] for trial in in_blocks(7, count=50))
    blocks = [found[at : at + 4] for at in range(0, len(found), 4)]
    assert set(blocks) == {"abba", "baab"}
    assert 15 <= blocks.count("abba") <= 35
    assert in_blocks(7, count=50) == in_blocks(7, count=50)
    assert [block_of(trial.repetition) for trial in in_blocks(7, count=2)] == [1] * 4 + [2] * 4


def test_visit_has_all_trials_of_its_value() -> None:
    experiment = Experiment.model_validate(
        {
            "product": {"load.concurrency": [1, 2], "v": ["a", "b"]},
            "blocks": {"over": "v", "count": 1},
        }
    )
    found = [
        (t.parameters["v"], t.parameters["load.concurrency"]) for t in plan_trials(experiment, 0)
    ]
    values = [version for version, _ in found][::2]
    assert values in (["a", "b", "b", "a"], ["b", "a", "a", "b"])
    assert [number for _, number in found] == [1, 2] * 4
    assert experiment.size == len(found) == 8


def pair(block: int, a: float, b: float) -> dict[str, list]:  # type: ignore[type-arg]
    values = {"a": a, "b": b}
    return {
        side: [
            measured(f"{side}{block}-{n}", {P50: RunValue(value, 10_000)}, block=block)
            for n in (1, 2)
        ]
        for side, value in values.items()
    }


def test_paired_row_is_of_ratios_within_blocks() -> None:
    blocks = [pair(n, 100.0 * n, 110.0 * n) for n in (1, 2, 3)]
    base, new = ([run for each in blocks for run in each[side]] for side in "ab")
    (row,) = compared(base, new, is_paired=True).rows
    assert row.delta == pytest.approx(0.1)
    assert (row.low, row.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert (row.base.n, row.word) == (3, Word.WORSE)


def test_block_without_all_trials_is_left_out() -> None:
    blocks = [pair(n, 100.0, 110.0 + n) for n in (1, 2, 3, 4)]
    base, new = ([run for each in blocks for run in each[side]] for side in "ab")
    (row,) = compared(base, new[:-1], is_paired=True).rows
    assert row.base.n == 3
    assert row.notes == ("blocks left out because trials of a side are missing: 1",)


def test_failed_visit_costs_its_block_only() -> None:
    blocks = [pair(n, 100.0, 110.0 + n) for n in (1, 2, 3, 4)]
    base, new = ([run for each in blocks for run in each[side]] for side in "ab")
    failed = measured("b4-2", {}, verdict=Severity.INVALID, cause="run-failed", failure="failed")
    (row,) = compared(base, [*new[:-1], failed], is_paired=True).rows
    assert (row.base.n, row.word) == (3, Word.WORSE)
    assert row.notes == ("blocks left out because trials of a side are missing: 1",)


def test_unknown_value_of_a_trial_prevents_the_judgement() -> None:
    blocks = [pair(n, 100.0, 100.0 + n) for n in (1, 2, 3, 4)]
    base, new = ([run for each in blocks for run in each[side]] for side in "ab")
    (row,) = compared(base, [*new[:-1], measured("b4-2", {}, block=4)], is_paired=True).rows
    assert (row.base.n, row.word) == (3, Word.UNJUDGED)
    assert row.notes[1:] == (
        "? latency:p50 has no value in 1 run: not judged, and its means exclude them",
    )


def test_blocks_of_single_visits_show_no_numbers() -> None:
    # One trial of each side does not cancel a drift.
    base, new = (
        [measured(f"{side}{n}", {P50: RunValue(value)}, block=n) for n in (1, 2, 3)]
        for side, value in (("a", 100.0), ("b", 110.0))
    )
    (row,) = compared(base, new, is_paired=True).rows
    assert row.word is Word.UNJUDGED
    assert wording.cells(row) == ("–", "–", "–", "", "(n=0+0)", "?")
    assert row.notes == (
        "blocks left out because trials of a side are missing: 3",
        "? fewer than 3 complete blocks: noise between blocks unknown",
    )


def test_paired_percentile_of_few_requests_has_a_footnote() -> None:
    base, new = (
        [
            measured(f"{side}{n}", {P99: RunValue(100.0 + n, 50)}, block=(n + 1) // 2)
            for n in range(1, 7)
        ]
        for side in "ab"
    )
    (row,) = compared(base, new, is_paired=True).rows
    assert row.notes == ("the p99 needs 662 requests in each run; the smallest run has 50",)


def test_single_block_shows_its_difference() -> None:
    sides = pair(1, 100.0, 110.0)
    (row,) = compared(sides["a"], sides["b"], is_paired=True).rows
    assert row.word is Word.UNJUDGED
    assert wording.cells(row)[:4] == ("100", "110", "+10.0%", "")


def test_two_blocks_are_not_judged() -> None:
    blocks = [pair(n, 100.0, 200.0 + n) for n in (1, 2)]
    base, new = ([run for each in blocks for run in each[side]] for side in "ab")
    (row,) = compared(base, new, is_paired=True).rows
    assert row.word is Word.UNJUDGED


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"product": {"v": ["a", "b", "c"]}}, "v needs two values"),
        ({"product": {"w": ["a", "b"]}}, "v needs two values"),
        ({"product": {"v": ["a", "b"]}, "repetitions": 2}, "leave out {repetitions}"),
        ({"product": {"v": ["a", "b"]}, "parallel": 2}, "leave out {parallel}"),
    ],
)
def test_blocks_need_two_values_and_decide_the_order(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Experiment.model_validate({"blocks": {"over": "v"}, **keys})
