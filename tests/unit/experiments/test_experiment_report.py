"""The report and the terminal's table of an experiment."""

import re
from io import StringIO

import fake_run
from fake_trials import outcome, sweep
from rich.console import Console

from aiperf_svc.adapters.report import experiment_charts as charts
from aiperf_svc.adapters.report import experiment_page
from aiperf_svc.adapters.report.plots import BOTTOM, HEIGHT, TOP
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.runner.experiment_tables import print_experiment

CONFIG = fake_run.context(fake_run.closed_loop(requests=10)).config
POINTS = {1: (10.0, 5.0), 8: (20.0, 6.0), 64: (19.0, 700.0)}


def seven_by_two() -> list[TrialOutcome]:
    """A sweep of two parameters with three repetitions."""
    combinations = [(c, tokens) for c in (1, 2, 4, 8, 16, 32, 64) for tokens in (16, 64)]
    return [
        outcome(
            repetition * len(combinations) + place,
            {"load.concurrency": concurrency, "dataset.output_tokens.mean": tokens},
            repetition=repetition + 1,
            throughput=float(concurrency * 1000 // tokens + repetition),
            ttft=20.0 + concurrency + repetition,
        )
        for repetition in range(3)
        for place, (concurrency, tokens) in enumerate(combinations, 1)
    ]


def printed(outcomes: list[TrialOutcome], width: int = 140) -> str:
    text = StringIO()
    print_experiment(summarise(outcomes), Console(file=text, width=width))
    return text.getvalue()


def test_the_page_has_a_row_for_each_combination_and_each_trial() -> None:
    page = experiment_page.render(summarise(seven_by_two()), CONFIG).decode()
    combinations = page.partition("<h2>Combinations</h2>")[2]
    assert combinations.count("<tr><td>") == 14
    assert len(re.findall(r'<a href="trials/[^"]+/report.html">', page)) == 42


def test_the_page_loads_nothing_and_is_small() -> None:
    page = experiment_page.render(summarise(seven_by_two()), CONFIG).decode()
    assert len(page) < 100_000
    assert not re.search(r"<script|src=|@import|url\(|href=\"(?!trials/|data:)", page)


def test_there_is_a_plot_for_each_metric_one_of_the_front_and_two_heat_maps() -> None:
    summary = summarise(seven_by_two())
    assert len(charts.by_parameter(summary)) == len(summary.headline) == 2
    assert "Time to First Token p99 against" in charts.throughput_against_latency(summary)
    assert len(charts.heat_maps(summary)) == 2


def test_the_line_has_a_dot_for_each_value_and_a_bar_for_each_interval() -> None:
    (throughput, _) = charts.by_parameter(summarise(sweep(POINTS, repetitions=3, step=1.0)))
    assert throughput.count("<circle") == 3
    (bars,) = re.findall(r'class="interval a" d="([^"]+)"', throughput)
    assert bars.count("V") == 3
    assert "bars" not in charts.by_parameter(summarise(sweep(POINTS)))[0]


def test_a_bar_longer_than_the_axis_is_cut_at_the_frame() -> None:
    plot = charts.by_parameter(summarise(sweep(POINTS, repetitions=2, step=1000.0)))[0]
    (bars,) = re.findall(r'class="interval a" d="([^"]+)"', plot)
    ends = [float(end) for end in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", bars)]
    assert min(ends) >= TOP
    assert max(ends) <= HEIGHT - BOTTOM


def test_other_numbers_of_parameters_have_no_heat_map() -> None:
    assert charts.heat_maps(summarise(sweep(POINTS))) == []
    three = [
        outcome(n, {"a": n, "b": -n, "c": 2 * n}, throughput=1.0 * n, ttft=1.0) for n in (1, 2)
    ]
    assert charts.heat_maps(summarise(three)) == []


def test_names_values_and_reasons_cannot_be_markup() -> None:
    bad = "<script>alert(1)</script>"
    outcomes = [
        outcome(1, {bad: bad}, throughput=1.0, ttft=1.0),
        outcome(2, {bad: "x"}, throughput=2.0, ttft=1.0),
        outcome(3, {bad: 1}, state="failed", reason=bad),
    ]
    assert "<script" not in experiment_page.render(summarise(outcomes), CONFIG).decode()


def test_an_experiment_in_which_everything_failed_has_a_page_and_a_table() -> None:
    outcomes = [outcome(1, {"load.concurrency": 1}, state="failed", reason="no answer")]
    page = experiment_page.render(summarise(outcomes), CONFIG).decode()
    assert "1 of 1 trials does not count." in page
    assert "left out: trial 1 (load.concurrency=1): failed: no answer" in printed(outcomes)
    assert "0 trials of 0 combinations" in printed([])


def test_the_table_has_means_intervals_and_what_is_best() -> None:
    text = printed(sweep(POINTS, repetitions=3, step=1.0))
    assert re.search(r"\b8 +3 +21 ± 12% +7 ± 35% +\*", text)
    assert re.search(r"\b64 +3 +20 ± 12% +701 ± 0\.4% *\n", text)
    assert "Best Request Throughput: 21 ± 12% requests/sec at load.concurrency=8" in text


def test_a_narrow_terminal_gets_fewer_metrics_and_no_line_is_cut() -> None:
    text = printed(seven_by_two(), width=60)
    assert max(map(len, text.split("±: 95%")[0].splitlines())) <= 60
