"""Changes of a metric over many runs are found if and only if they exist."""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.comparison.history_views import (
    left_out,
    render_csv,
    render_page,
    text_plot,
)
from aiperf_svc.adapters.exports.inference_file import iso_time, wall_ns
from aiperf_svc.cli.main import main
from aiperf_svc.core.compare.comparison import Word
from aiperf_svc.core.compare.history import (
    MIN_SIDE_RUNS,
    SIGNIFICANCE,
    History,
    change_points,
    history,
)
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError, Incomparable
from tests.support.runs_to_compare import LATENCY, P50, SPEED, inference_run, measured, side


def series(values: list[float], **keys: object) -> list[MeasuredRun]:
    """Return one run per second with each value."""
    return [
        measured(f"r{index}", {P50: RunValue(value, 100)}, start_wall_ns=index * 10**9, **keys)
        for index, value in enumerate(values)
    ]


def shown(values: list[float], tolerance: float = 0.05) -> History:
    return history(series(values), "latency:p50", tolerance=tolerance)


@pytest.mark.parametrize("count", [10, 30, 100])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "cauchy"])
def test_series_without_a_change_rarely_have_one(shape: str, count: int) -> None:
    generator = np.random.default_rng(count)
    draw = getattr(generator, "standard_cauchy" if shape == "cauchy" else shape)
    alarms = sum(bool(change_points(draw(size=count))) for _ in range(200))
    # 2 are expected. The probability of 8 or more is 0.1%.
    assert SIGNIFICANCE == 0.01
    assert alarms <= 7


@pytest.mark.parametrize(("count", "shift"), [(10, 6.0), (20, 3.0), (60, 3.0)])
def test_a_change_is_found_near_its_place(count: int, shift: float) -> None:
    generator = np.random.default_rng(count)
    found = 0
    for _ in range(50):
        values = generator.normal(size=count)
        values[count // 2 :] += shift
        found += any(abs(place - count // 2) <= 2 for place in change_points(values.tolist()))
    assert found >= 45


def test_two_changes_are_two() -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=60)
    values[20:] += 8
    values[40:] -= 12
    assert list(change_points(values.tolist())) == [20, 40]


def test_outliers_are_no_change() -> None:
    values = np.random.default_rng(4).normal(100, 1, size=40)
    values[[7, 8, 39]] = 10_000.0
    assert change_points(values.tolist()) == {}


def test_too_few_or_equal_values_have_no_change() -> None:
    assert change_points([1.0, 9.0] * (MIN_SIDE_RUNS - 1)) == {}
    assert change_points([1.0] * 4 + [9.0] * 4) == {}
    assert change_points([5.0] * 50) == {}
    assert change_points([]) == {}


def test_a_change_has_levels_direction_and_place() -> None:
    found = shown([100.0, 101.0, 99.0, 100.0, 100.5, 120.0, 121.0, 119.0, 120.0, 120.5])
    (change,) = found.changes
    assert (change.place, change.word) == (5, Word.WORSE)
    assert change.before == pytest.approx(100.1)
    assert change.delta == pytest.approx(0.2, rel=0.01)
    assert found.levels == pytest.approx([100.1] * 5 + [120.1] * 5)


def test_a_change_within_the_tolerance_is_not_marked() -> None:
    values = [100.0, 100.1, 99.9, 100.0, 100.05, 102.0, 102.1, 101.9, 102.0, 102.05]
    assert shown(values).changes == ()
    assert shown(values).levels == pytest.approx([101.01] * 10)
    assert len(shown(values, tolerance=0.01).changes) == 1


def test_increase_of_a_higher_is_better_metric_improves() -> None:
    key = RowKey("speed")
    runs = [
        measured(f"r{n}", {key: RunValue(v)}, start_wall_ns=n)
        for n, v in enumerate([1.0, 1.1, 1.2, 1.1, 1.0, 2.0, 2.1, 2.2, 2.1, 2.0])
    ]
    (change,) = history(runs, "speed", tolerance=0.05).changes
    assert change.word is Word.BETTER
    assert SPEED.better == "higher"


def test_runs_are_ordered_by_time_with_changed_keys() -> None:
    old, new = series([1.0, 2.0])
    first = measured("x", old.values, facts={"version": "1"}, start_wall_ns=5)
    second = measured("y", new.values, facts={"version": "2"}, start_wall_ns=9)
    found = history([second, first], "latency:p50", tolerance=0.05)
    assert [(run.run_id, run.changed_keys) for run in found.runs] == [
        ("x", ()),
        ("y", ("version",)),
    ]


def test_omitted_runs_have_a_reason() -> None:
    runs = series([100.0, 101.0])
    runs += series([9e9], verdict=Severity.INVALID, cause="client\x1b[2J", folder="bad")
    runs.append(measured("other", {RowKey("speed"): RunValue(1.0)}))
    assert left_out(history(runs, "latency:p50", tolerance=0.05)) == [
        "left out: runs/other: it has no value of latency:p50",
        "left out: bad: its verdict is invalid: client\\x1b[2J",
    ]


def test_a_metric_in_other_units_has_no_history() -> None:
    in_seconds = {"latency": replace(LATENCY, unit="s")}
    with pytest.raises(Incomparable, match="latency is not the same metric everywhere"):
        history([*series([1.0]), *side("b", [1.0], metrics=in_seconds)], "latency", tolerance=0.05)


def test_invalid_runs_are_left_out_and_named() -> None:
    runs = [*series([1.0, 2.0]), *side("bad", [9.0], verdict=Severity.INVALID)]
    found = history(runs, "", tolerance=0.05)
    assert [run.run_id for run in found.left_out] == ["bad0"]
    assert len(found.runs) == 2
    assert found.info == LATENCY


@pytest.mark.parametrize(
    ("metric", "message"),
    [("ttft", "no run has it; they have latency"), ("latency", "choose a statistic: latency:p50")],
)
def test_an_unclear_metric_is_explained(metric: str, message: str) -> None:
    both = {P50: RunValue(1.0), RowKey("latency", "p99"): RunValue(2.0)}
    with pytest.raises(ConfigError, match=message):
        history([measured("a", both)], metric, tolerance=0.05)


def test_metric_of_one_kind_shows_only_its_runs() -> None:
    other = measured("o", {RowKey("speed"): RunValue(2.0)}, kind="iperf")
    found = history([*series([1.0]), other], "speed", tolerance=0.05)
    assert found.kind == "iperf"
    assert [run.run_id for run in found.runs] == ["o"]
    assert len(found.left_out) == 1


def test_different_kinds_and_unusable_runs_are_refused() -> None:
    mixed = [*series([1.0]), *side("b", [1.0], kind="iperf")]
    with pytest.raises(Incomparable, match="different kinds"):
        history(mixed, "", tolerance=0.05)
    with pytest.raises(Incomparable, match="no run with a usable verdict"):
        history(series([1.0], verdict=Severity.INVALID), "", tolerance=0.05)


@pytest.mark.parametrize("count", [1, 10, 500])
def test_text_plot_has_a_dot_for_each_column(count: int) -> None:
    lines = text_plot(shown([float(place) for place in range(count)]), 80)
    assert max(map(len, lines)) <= 80
    columns = zip(*(line.ljust(80) for line in lines), strict=True)
    assert sum("•" in column for column in columns) == (count if count < 70 else -(-count // 7))


def test_page_has_levels_and_changes_and_escapes_markup() -> None:
    values = [100.0, 101.0, 99.0, 100.0, 100.5, 120.0, 121.0, 119.0, 120.0, 120.5]
    runs = series(values, folder="<script>")
    page = render_page(history(runs, "latency:p50", tolerance=0.05)).decode()
    assert page.count("<circle") == 11  # one belongs to the legend
    assert "worse: +20" in page
    assert "<script" not in page


def test_the_csv_has_a_time_and_all_values() -> None:
    rows = list(csv.DictReader(StringIO(render_csv(series([1.5, 2.5])).decode())))
    assert [row["latency_p50"] for row in rows] == ["1.5", "2.5"]
    assert rows[1]["time"] == "1970-01-01T00:00:01+00:00"


def test_the_command_prints_plots_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        inference_run(tmp_path / "runs" / str(number), f"r{number}", seed=number)
    words = ["history", str(tmp_path / "runs"), "--metric", "time_to_first_token:p99"]
    files = ["--html", str(tmp_path / "page.html"), "--csv", str(tmp_path / "runs.csv")]
    assert main([*words, *files]) == 0
    assert "no change beyond a tolerance of 5% was found" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 4
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == "history/1"
    assert sorted(run["run_id"] for run in found["runs"]) == ["r0", "r1", "r2"]
    assert main(["history", str(tmp_path / "nothing")]) == 2


def test_run_without_results_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        inference_run(tmp_path / str(number), f"r{number}", seed=number)
    (tmp_path / "9" / "logs").mkdir(parents=True)
    assert main(["history", str(tmp_path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["left_out"]
    assert run["folder"] == str(tmp_path / "9")
    assert run["verdict"] == "failed: it has no results"


def test_runs_of_current_folder_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", ".b"):
        inference_run(tmp_path / name, name, seed=1)
    monkeypatch.chdir(tmp_path)
    assert main(["history", ".", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(run["folder"] for run in found["runs"]) == ["./.b", "./a"]


def test_start_times_round_trip() -> None:
    for wall in (0, 1_790_000_000_123_456_000, 1_790_000_000_999_999_000):
        assert wall_ns(iso_time(wall)) == wall
