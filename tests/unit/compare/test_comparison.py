"""Results of comparisons of runs with given values."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.core.compare.comparison import KeyDifference, Word
from aiperf_svc.core.compare.estimates import holm
from aiperf_svc.core.compare.measured_run import RowKey, RunValue, flatten
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError, Incomparable
from tests.support.runs_to_compare import LATENCY, P50, P99, compared, measured, only_row, side

FAST, SLOW = [100.0, 101.0, 102.0], [120.0, 121.0, 122.0]


def test_direction_of_a_metric_decides_worse_or_better() -> None:
    speed, size = RowKey("speed"), RowKey("size")
    assert only_row(FAST, SLOW).word is Word.WORSE
    assert only_row(SLOW, FAST).word is Word.BETTER
    assert only_row(FAST, SLOW, speed).word is Word.BETTER
    assert only_row(SLOW, FAST, speed).word is Word.WORSE
    assert only_row(FAST, SLOW, size).word is Word.CHANGED


def test_real_difference_within_the_tolerance_is_not_worse() -> None:
    row = only_row([100.0, 100.1, 100.2], [102.0, 102.1, 102.2])
    assert row.p is not None
    assert row.p < 0.001
    assert row.word is Word.SAME


def test_same_needs_the_whole_interval_within_the_tolerance() -> None:
    assert only_row([100.0, 101.0, 102.0], [100.5, 101.5, 101.0]).word is Word.SAME
    assert only_row([90.0, 101.0, 112.0], [90.5, 101.5, 111.0]).word is Word.UNSURE


def test_large_difference_in_noise_is_not_enough_data() -> None:
    assert only_row([100.0, 150.0, 200.0], [120.0, 170.0, 240.0]).word is Word.UNSURE


def test_identical_values_are_the_same() -> None:
    assert only_row([0.0] * 3, [0.0] * 3).word is Word.SAME
    assert only_row([5.0] * 3, [6.0] * 3).word is Word.WORSE
    row = only_row([0.0] * 3, [1.0, 1.0, 1.0])
    assert (row.word, row.delta) == (Word.WORSE, math.inf)


def test_the_interval_is_welchs() -> None:
    row = only_row([100.0, 101.0, 102.0], [101.0, 102.0, 103.0])
    # Both variances are 1, so there are 4 degrees of freedom. There the distribution has a closed
    # form with 95% within 2.776.
    error = math.sqrt(2 / 3)
    x = 1 / error / math.sqrt(1 + 1 / error**2 / 4)
    assert row.p == pytest.approx(1 - 3 / 4 * x * (1 - x * x / 12))
    assert row.low == pytest.approx((1 - 2.776 * error) / 101, abs=1e-5)
    assert row.high == pytest.approx((1 + 2.776 * error) / 101, abs=1e-5)


def test_fewer_than_three_runs_are_not_judged() -> None:
    for base, new in (([100.0], [200.0]), ([100.0, 100.0], [200.0, 200.0]), (FAST, [200.0] * 2)):
        row = only_row(base, new)
        assert row.word is Word.UNJUDGED
        assert "run-to-run noise unknown" in row.notes[0]


def test_single_runs_show_the_interval_of_their_parts() -> None:
    parts = [(10.0, 11.0, 10.5) * 4, (20.0, 21.0, 20.5) * 4]
    sides = [
        [measured(name, {P50: RunValue(values[0], 5000, values)})]
        for name, values in zip("ab", parts, strict=True)
    ]
    (row,) = compared(*sides).rows
    assert row.delta == 1.0
    assert row.low is not None
    assert 0.8 < row.low < 10 / 10.5


def test_holm_scales_the_smallest_probability_by_rows() -> None:
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_only_gating_rows_have_corrected_p_values() -> None:
    base = [measured(f"a{i}", {P50: RunValue(v), P99: RunValue(v)}) for i, v in enumerate(FAST)]
    new = [measured(f"b{i}", {P50: RunValue(v), P99: RunValue(v)}) for i, v in enumerate(SLOW)]
    found = compared(base, new, wanted=["latency:p50"], with_all=True)
    gating, other = found.rows
    assert (gating.gates, other.gates) == (True, False)
    assert gating.adjusted_p == gating.p
    both = compared(base, new).rows
    assert both[0].p is not None
    assert both[0].adjusted_p == pytest.approx(2 * both[0].p)


def test_only_gating_rows_make_a_comparison_worse() -> None:
    base = [measured(f"a{i}", {P50: RunValue(v), P99: RunValue(1.0)}) for i, v in enumerate(FAST)]
    new = [measured(f"b{i}", {P50: RunValue(v), P99: RunValue(1.0)}) for i, v in enumerate(SLOW)]
    assert compared(base, new).is_worse
    assert not compared(base, new, wanted=["latency:p99"], with_all=True).is_worse


def test_a_percentile_of_few_requests_has_a_footnote() -> None:
    few = [measured(f"a{i}", {P99: RunValue(v, 661)}) for i, v in enumerate(FAST)]
    many = [measured(f"b{i}", {P99: RunValue(v, 662)}) for i, v in enumerate(FAST)]
    assert compared(few, many).notes == (
        "the p99 needs 662 requests in each run; the smallest run has 661",
    )
    assert compared(many, side("c", FAST, P99)).notes == ()


def test_config_differences_list_all_values_by_key() -> None:
    base = side("a", FAST, facts={"load.concurrency": "8", "version": "1"})
    new = side("b", FAST, facts={"load.concurrency": "16", "version": "1"})
    new += side("c", FAST, facts=new[0].facts | {"target.image": "x@sha256:0"})
    found = {each.key: (each.base, each.new) for each in compared(base, new).differences}
    assert found == {
        "load.concurrency": (("8",), ("16",)),
        "target.image": (("none",), ("none", "x@sha256:0")),
    }


def test_difference_behind_a_long_beginning_is_shown() -> None:
    command = f"serve --model {'m' * 80} --max-num-seqs "
    difference = KeyDifference("target.arguments", (f"{command}8",), (f"{command}16",))
    key, base, new = wording.differing(difference)
    assert (key, base[-2:], new[-3:]) == ("target.arguments", " 8", " 16")
    assert base.startswith("[…] ")
    short = wording.differing(KeyDifference("version", ("1",), ("1", "2")))
    assert short == ("version", "1", "1, 2")


def test_nested_config_is_compared_by_dotted_key() -> None:
    content = {"load": {"users": 8, "rate": None}, "names": ["a", "b"]}
    assert flatten(content) == {"load.users": "8", "load.rate": "none", "names": '["a","b"]'}


def test_reasons_of_omitted_runs_are_one_printable_line() -> None:
    bad = measured("bad", {P50: RunValue(9e9)}, verdict=Severity.INVALID, cause="a\x1b[2J\nb")
    found = compared([*side("a", FAST), bad], side("b", FAST))
    (line,) = wording.left_out(found.base)
    assert line == "left out: runs/bad, whose verdict is invalid: a\\x1b[2J b"


def test_invalid_runs_are_left_out_and_named() -> None:
    bad = measured("bad", {P50: RunValue(9e9)}, verdict=Severity.INVALID, cause="client-bound")
    found = compared([*side("a", FAST), bad], side("b", FAST))
    assert [run.folder for run in found.base.left_out] == ["runs/bad"]
    assert found.base.left_out[0].verdict == "invalid: client-bound"
    assert found.rows[0].base.n == 3
    assert found.is_judged
    with pytest.raises(Incomparable, match=r"runs/bad \(invalid: client-bound\)"):
        compared([bad], side("b", FAST))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("new", [FAST, SLOW])
@pytest.mark.parametrize("cause", ["target-failing", "unusable-responses", "load-capped"])
def test_side_without_its_failing_runs_is_unjudged(
    place: int, new: list[float], cause: str
) -> None:
    sides = side("a", FAST), side("b", new)
    sides[place].append(
        measured("bad", {P50: RunValue(9.0)}, verdict=Severity.INVALID, cause=cause)
    )
    found = compared(*sides)
    (row,) = found.rows
    assert (row.word, row.adjusted_p) == (Word.UNJUDGED, None)
    assert row.notes == (
        f"? left out: 1 run ({cause}). Not judged, because the other runs make the target look "
        "too good",
    )
    assert not found.is_judged
    assert not found.is_worse


@pytest.mark.parametrize("place", [0, 1])
def test_side_without_its_failed_trial_is_unjudged(place: int) -> None:
    sides = side("a", FAST), side("b", FAST)
    failed = {"verdict": Severity.INVALID, "cause": "run-failed", "failure": "failed: no server"}
    sides[place].append(measured("bad", {}, **failed))
    found = compared(*sides)
    (row,) = found.rows
    assert (row.word, row.adjusted_p, found.is_judged) == (Word.UNJUDGED, None, False)
    assert row.notes == (
        "? left out: 1 run that failed. Not judged, because the target may be the reason, and the "
        "other runs may make it look too good",
    )


@pytest.mark.parametrize(("cause", "is_judged"), [("rank-lost", False), ("process-lost", True)])
def test_lost_rank_may_be_the_systems_fault(cause: str, is_judged: bool) -> None:
    base, new = side("a", FAST, kind="fio"), side("b", FAST, kind="fio")
    lost = measured("c", {}, kind="fio", verdict=Severity.INVALID, cause=cause)
    assert compared(base, [*new, lost]).is_judged is is_judged


def test_cancelled_trial_is_named_and_not_missed() -> None:
    stopped = measured("c", {}, verdict=Severity.INVALID, failure="cancelled: by the user")
    found = compared([*side("a", FAST), stopped], side("b", FAST))
    assert found.base.left_out[0].verdict == "cancelled: by the user"
    assert found.is_judged


def test_runs_with_failed_steps_leave_a_tool_unjudged() -> None:
    bad = measured(
        "bad", {P50: RunValue(9.0)}, verdict=Severity.INVALID, cause="step-failed", kind="fio"
    )
    found = compared([*side("a", FAST, kind="fio"), bad], side("b", FAST, kind="fio"))
    (row,) = found.rows
    assert (row.word, found.is_judged) == (Word.UNJUDGED, False)
    assert row.notes == (
        "? left out: 1 run (step-failed). Not judged, because the other runs make the system look "
        "too good",
    )


def test_different_kinds_are_refused() -> None:
    with pytest.raises(Incomparable, match="runs of different kinds"):
        compared(side("a", FAST), side("b", FAST, kind="iperf3"))


def test_runs_without_a_common_metric_are_refused() -> None:
    with pytest.raises(Incomparable, match="no metric in common"):
        compared(side("a", FAST), side("b", FAST, RowKey("speed")))


def test_metric_missing_on_one_side_is_not_judged() -> None:
    base = [
        measured(f"a{i}", {P50: RunValue(v), RowKey("speed"): RunValue(v)})
        for i, v in enumerate(FAST)
    ]
    found = compared(base, side("b", FAST))
    assert found.notes == ("only one side has speed",)
    assert not found.is_judged
    assert compared(base, side("b", FAST), wanted=["latency"]).is_judged


def test_statistic_missing_on_one_side_is_not_judged() -> None:
    base = [measured(f"a{i}", {P50: RunValue(v), P99: RunValue(v)}) for i, v in enumerate(FAST)]
    found = compared(base, side("b", FAST), wanted=["latency"])
    assert found.notes == ("only one side has latency:p99",)
    assert not found.is_judged
    assert compared(base, side("b", FAST), wanted=["latency:p50"]).is_judged


def test_metric_missing_in_first_run_is_judged_nowhere() -> None:
    speed = RowKey("speed")
    base, new = (
        [measured(f"{s}{i}", {P50: RunValue(v), speed: RunValue(v)}) for i, v in enumerate(FAST)]
        for s in "ab"
    )
    base[0] = measured("a0", {P50: RunValue(FAST[0])})
    found = compared(base, new)
    assert {row.key: row.word for row in found.rows} == {P50: Word.SAME, speed: Word.UNJUDGED}
    assert not found.is_judged


def test_a_run_on_both_sides_is_refused() -> None:
    with pytest.raises(ConfigError, match="the same run"):
        compared(side("a", FAST), side("a", SLOW))


def test_unknown_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="they have latency"):
        compared(side("a", FAST), side("b", FAST), wanted=["ttft:p99"])


def test_percentiles_move_by_their_share_of_the_base() -> None:
    base = side("a", [1.0], shifts={"latency": {"p10": 10.0, "p90": 20.0}})
    new = side("b", [1.0], shifts={"latency": {"p10": 11.0, "p90": 18.0}})
    (shift,) = compared(base, new).shifts
    assert shift.shifts == pytest.approx({"p10": 0.1, "p90": -0.1})


def test_verdict_that_all_runs_share_is_noted() -> None:
    sides = [side(name, FAST, verdict=Severity.DEGRADED) for name in "ab"]
    assert compared(*sides).notes == ("the verdict of all runs is degraded",)
    assert compared(sides[0], side("c", FAST)).notes == ()


def test_row_missing_in_a_run_is_not_judged() -> None:
    # The run without a value may be the worst: its percentile is among unfinished requests.
    speed = RowKey("speed")
    new = [measured(f"b{i}", {P50: RunValue(v), speed: RunValue(1.0)}) for i, v in enumerate(FAST)]
    new.append(measured("b9", {speed: RunValue(1.0)}))
    found = compared(side("a", FAST), new, wanted=["latency"])
    (row,) = found.rows
    assert (row.word, row.new.n) == (Word.UNJUDGED, 3)
    assert row.notes == (
        "? latency:p50 has no value in 1 run: not judged, and its means exclude them",
    )
    assert not found.is_judged


def test_row_missing_in_first_run_is_unjudged() -> None:
    speed = RowKey("speed")
    both = [
        [
            measured(f"{name}{i}", {speed: RunValue(1.0), P50: RunValue(v)})
            for i, v in enumerate(values)
        ]
        for name, values in (("a", FAST), ("b", SLOW))
    ]
    assert compared(*both).is_worse
    # Its headline contains its own values.
    both[0].insert(0, measured("a9", {speed: RunValue(1.0)}))
    found = compared(*both)
    assert [(str(row.key), row.word) for row in found.rows] == [
        ("speed", Word.SAME),
        ("latency:p50", Word.UNJUDGED),
    ]
    assert not found.is_judged


@pytest.mark.parametrize("other", [{"unit": "s"}, {"better": "higher"}])
def test_same_metric_with_other_definition_is_refused(other: dict[str, Any]) -> None:
    infos = {"latency": replace(LATENCY, **other)}
    with pytest.raises(Incomparable, match=r"latency is not the same metric everywhere: in ms, .*"):
        compared(side("a", FAST), side("b", FAST, metrics=infos))


def test_incomparable_run_warns_on_either_side() -> None:
    text = "not comparable: the server speculates, and the load has forced ends"
    plain = measured("a", {P50: RunValue(1.0)})
    speculating = measured("b", {P50: RunValue(1.0)}, warnings=(text,))
    assert compared([plain], [speculating]).notes[0] == text
    again = replace(speculating, folder="runs/c", run_id="c")
    assert compared([speculating, again], [plain]).notes.count(text) == 1
    other = measured("d", {P50: RunValue(1.0)})
    assert text not in compared([plain], [other]).notes
