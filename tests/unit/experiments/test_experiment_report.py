"""The report and the terminal's table of an experiment."""

import json
import re
from pathlib import Path

from msgspec.structs import replace

from aiperf_svc.adapters.exports import aiperf_sweep_export, experiment_export
from aiperf_svc.adapters.report import experiment_charts as charts
from aiperf_svc.adapters.report import experiment_page, experiment_texts
from aiperf_svc.adapters.report.blocks import Block, markup
from aiperf_svc.adapters.report.plots import BOTTOM, HEIGHT, TOP
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.terminal.experiment_tables import print_experiment
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import best
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search_report import Ending, SearchPoint, SearchReport
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.verdict.check_result import graded
from tests.support import fake_run
from tests.support.fake_results import objective, throttled
from tests.support.fake_trials import outcome, sweep
from tests.support.terminal import on_console

CONFIG = fake_run.context(fake_run.closed_loop(requests=10)).config
POINTS = {1: (10.0, 5.0), 8: (20.0, 6.0), 64: (19.0, 700.0)}


def seven_by_two() -> list[TrialOutcome]:
    """Return a sweep of two parameters with three repetitions."""
    combinations = [(c, tokens) for c in (1, 2, 4, 8, 16, 32, 64) for tokens in (16, 64)]
    return [
        outcome(
            repetition * len(combinations) + index,
            {"load.concurrency": concurrency, "dataset.output_tokens.mean": tokens},
            repetition=repetition + 1,
            throughput=float(concurrency * 1000 // tokens + repetition),
            ttft=20.0 + concurrency + repetition,
        )
        for repetition in range(3)
        for index, (concurrency, tokens) in enumerate(combinations, 1)
    ]


def printed(outcomes: list[TrialOutcome], width: int = 140) -> str:
    return on_console(print_experiment, summarise(outcomes), width=width)


def test_page_has_rows_for_combinations_and_trials() -> None:
    page = experiment_page.render(summarise(seven_by_two()), CONFIG).decode()
    combinations = page.partition("<h2>Combinations</h2>")[2]
    assert '<th class="wrap">load.<wbr>concurrency</th>' in combinations
    assert re.search(r"<tr><td>64</td><td>16</td><td>3</td><td>★</td>", combinations)
    assert combinations.count("<tr><td>") == 14
    assert len(re.findall(r'<a href="trials/[^"]+/report.html">', page)) == 42


def test_the_page_loads_nothing_and_is_small() -> None:
    page = experiment_page.render(summarise(seven_by_two()), CONFIG).decode()
    assert len(page) < 100_000
    assert not re.search(r"<script|src=|@import|url\(|href=\"(?!trials/|data:)", page)


def shown(block: Block | None) -> str:
    assert block is not None
    return markup(block)


def test_page_has_plots_front_and_heat_maps() -> None:
    summary = summarise(seven_by_two())
    assert len(charts.by_parameter(summary)) == len(summary.headline) == 2
    assert "Time to First Token p99 against" in shown(charts.throughput_against_latency(summary))
    assert len(charts.heat_maps(summary)) == 2


def test_line_has_dots_and_interval_bars() -> None:
    (drawn, _) = charts.by_parameter(summarise(sweep(POINTS, repetitions=3, step=1.0)))
    throughput = shown(drawn)
    assert throughput.count("<circle") == 3
    (bars,) = re.findall(r'class="interval a" d="([^"]+)"', throughput)
    assert bars.count("V") == 3
    assert "bars" not in shown(charts.by_parameter(summarise(sweep(POINTS)))[0])


def test_long_bar_is_cut_at_the_frame() -> None:
    plot = shown(charts.by_parameter(summarise(sweep(POINTS, repetitions=2, step=1000.0)))[0])
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


def test_experiment_without_results_has_page_and_table() -> None:
    outcomes = [outcome(1, {"load.concurrency": 1}, state="failed", reason="no response")]
    page = experiment_page.render(summarise(outcomes), CONFIG).decode()
    assert "1 of 1 trials does not count." in page
    assert "left out: trial 1 (load.concurrency=1): failed: no response" in printed(outcomes)
    assert "0 trials of 0 combinations" in printed([])


def test_table_has_means_intervals_and_best() -> None:
    text = printed(sweep(POINTS, repetitions=3, step=1.0))
    assert re.search(r"\b8 +3 +21 ± 12% +7 ± 35% +\*", text)
    assert re.search(r"\b64 +3 +20 ± 12% +701 ± 0\.4% *\n", text)
    assert "Best Request Throughput: 21 requests/sec ± 12% at load.concurrency=8" in text


def test_the_best_share_has_one_percent_sign() -> None:
    shares = {1: (0.74, 0.76), 8: (0.5, 0.51)}
    outcomes = [
        outcome(
            number,
            {"load.concurrency": concurrency},
            repetition=number % 2 + 1,
            throughput=1.0,
            more={"cached_token_share": MetricStats(unit="ratio", avg=share)},
        )
        for number, (concurrency, share) in enumerate(
            ((concurrency, share) for concurrency, some in shares.items() for share in some), 1
        )
    ]
    summary = summarise(outcomes)
    found = best(summary, RowKey("cached_token_share", "avg"))
    assert found is not None
    value, _ = experiment_texts.best_texts(summary, found, is_interval_noted=False)
    assert value == "75% ± 17%"


def test_an_acceptance_length_is_no_percentage() -> None:
    tag = "spec_decode_token_weighted_acceptance_length"
    more = {tag: MetricStats(unit="ratio", avg=2.5)}
    summary = summarise([outcome(1, {"load.concurrency": 1}, throughput=10.0, more=more)])
    assert experiment_texts.unit_of(summary, RowKey(tag, "avg")) == (1.0, "tokens")
    swept = json.loads(aiperf_sweep_export.render_sweep_json(summary))
    (combination,) = swept["per_combination_metrics"]
    assert combination["metrics"][f"{tag}_avg"]["unit"] == "ratio"


def test_narrow_terminal_shows_fewer_metrics() -> None:
    text = printed(seven_by_two(), width=60)
    assert max(map(len, text.split("±: 95%")[0].splitlines())) <= 60


def test_urls_and_units_fit_in_hundred_columns() -> None:
    outcomes = [
        outcome(
            number,
            {"endpoint.url": f"http://localhost:800{number}", "dataset.input_tokens.mean": 64},
            throughput=float(number),
            ttft=20.0,
            more={
                "output_token_throughput": MetricStats(unit="tokens/sec", avg=4.0),
                "request_latency": MetricStats(unit="ms", avg=4.0, p99=5.0, p50=4.0),
            },
        )
        for number in (1, 2)
    ]
    text = printed(outcomes, width=100)
    assert " http://localhost:8001 " in text
    assert "(requests/sec)" in text
    assert "…" not in text


def a_search() -> SearchReport:
    """Return a search of the concurrency between 1 and 64 that ended with a bracket."""
    points = [
        SearchPoint(
            value=float(value),
            holds=value < 40,
            share_beyond=value / 40,
            statistics={"time_to_first_token:p99": 10.0 * value},
            verdict="valid",
            is_client_bound=False,
            reason=f"p99 <b>{value}</b>",
            runs=1,
            confirmations=3,
        )
        for value in (1, 8, 32, 64)
    ]
    return SearchReport(
        parameter="load.concurrency",
        unit="users",
        ending=Ending.BRACKETED,
        holds=32.0,
        breaks=64.0,
        reason="p99 <b>64</b>",
        confirmations=3,
        precision=0.05,
        is_narrowest=False,
        knee=40.0,
        points=tuple(points),
        trials=4,
    )


def test_terminal_lists_search_points_with_units() -> None:
    summary = summarise(sweep({1: (10.0, 5.0), 8: (20.0, 6.0), 64: (19.0, 700.0)}))
    for width in (80, 120):
        text = on_console(print_experiment, summary, width=width, search=a_search())
        table = text.partition("  n  ")[0]
        assert max(map(len, text.splitlines())) <= width
        assert "Time to First" in table
        assert re.search(r"Token p99 \(ms\) +reason *\n", table)
        assert re.search(r"\n +64  no +1 +640  p99 <b>64</b> *\n", table)
        assert "time_to_first_token" not in text
        assert "the bracket is 100.0% wide" in text


def test_search_recommends_only_held_loads() -> None:
    points = {1: (10.0, 5.0), 8: (20.0, 6.0), 64: (90.0, 700.0)}
    summary = summarise(sweep(points))
    text = on_console(print_experiment, summary, width=140, search=a_search())
    page = experiment_page.render(summary, CONFIG, a_search()).decode()
    assert "Best Request Throughput: 20 requests/sec at load.concurrency=8" in text
    assert "<th>Request Throughput</th><td>20 requests/sec</td>" in page
    exported = experiment_export.experiment_result(summary, CONFIG, a_search())
    assert exported.best[0].parameters == {"load.concurrency": 8}
    swept = json.loads(aiperf_sweep_export.render_sweep_json(summary, a_search()))
    assert swept["best_configurations"]["best_throughput"]["metric"] == 20.0


def test_overlapping_best_is_marked_unless_single_runs() -> None:
    near = {1: (10.0, 5.0), 8: (20.0, 6.0), 64: (20.5, 700.0)}
    text = printed(sweep(near, repetitions=3, step=1.0))
    expected = (
        "at load.concurrency=64; not distinguishable from load.concurrency=8: the intervals overlap"
    )
    assert expected in text
    assert "6 ms ± 41% at load.concurrency=1; not distinguishable from load.concurrency=8" in text
    single = printed(sweep(near))
    assert "at load.concurrency=64\n" in single
    assert single.count("one run, without a confidence interval") == 1


def test_a_search_has_its_answer_curve_and_path() -> None:
    summary = summarise(sweep({1: (10.0, 5.0), 8: (20.0, 6.0), 64: (19.0, 700.0)}))
    page = experiment_page.render(summary, CONFIG, a_search()).decode()
    assert "load.concurrency holds 32 users, breaks at 64" in page
    assert "<b>64" not in page
    curve = shown(charts.search_curve(a_search()))
    assert curve.count('<path class="line d dashed"') == 2, "the limit, and its key"
    assert [curve.count(f'class="dot {style}" cx="') for style in "ce"] == [4, 2]  # one: legend
    assert ">bracket</title>" in curve
    path = shown(charts.search_path(summary, a_search()))
    assert re.findall(r"<title>trial (\d): (\d+) users", path) == [
        ("1", "1"),
        ("2", "8"),
        ("3", "64"),
    ]


def test_undecided_point_is_marked_in_table_and_plot() -> None:
    found = a_search()
    *rest, last = found.points
    found = replace(found, points=(*rest, replace(last, holds=None, reason="p99 20 ms ≤ 50 ms")))
    summary = summarise(sweep({1: (10.0, 5.0), 8: (20.0, 6.0), 64: (19.0, 700.0)}))
    text = on_console(print_experiment, summary, width=160, search=found)
    assert re.search(r"\n +64  \? +1 +640  undecided: p99 20 ms ≤ 50 ms *\n", text)
    assert "64 users: undecided: p99 20 ms" in shown(charts.search_curve(found))


def test_search_without_percentile_is_plotted_by_its_statistic() -> None:
    found = a_search()
    points = tuple(replace(point, share_beyond=None) for point in found.points)
    curve = charts.search_curve(replace(found, points=points))
    assert "<b>time_to_first_token:p99</b>" in shown(curve)
    assert charts.search_curve(replace(found, points=())) is None


def test_terminal_and_file_have_the_search_result(tmp_path: Path) -> None:
    outcomes = sweep({1: (10.0, 5.0), 8: (20.0, 6.0)})
    text = on_console(print_experiment, summarise(outcomes), width=120, search=a_search())
    assert "holds 32 users, breaks at 64" in text
    write_experiment(tmp_path, CONFIG, summarise(outcomes), a_search())
    found = json.loads((tmp_path / "experiment.json").read_text())["search"]
    assert found["result"].startswith("holds 32 users, breaks at 64")
    assert [each["value"] for each in found["points"]] == [1.0, 8.0, 32.0, 64.0]


TTFT_MISSED = objective(ok=False, metric="time_to_first_token", limit=50.0)


def with_slo(outcome: TrialOutcome, found: ObjectiveResult) -> TrialOutcome:
    assert outcome.results is not None
    return outcome._replace(results=replace(outcome.results, slo=(found,)))


def test_trials_with_unjudged_slo_are_marked() -> None:
    outcomes = sweep({1: (10.0, 20.0)})
    few = replace(TTFT_MISSED, measured=20.0, judged=False, reason="p99 needs 100 values")
    outcomes = [with_slo(outcomes[0], few)]
    text = " ".join(printed(outcomes).split())
    assert "SLO not judged: trial 1 (load.concurrency=1): p99 time_to_first_token 20 ms" in text
    assert "(limit 50 ms): not judged: p99 needs 100" in text
    assert "SLO missed" not in text
    page = experiment_page.render(summarise(outcomes), CONFIG).decode()
    assert "The SLO is not judged in 1 of 1 trials." in page
    assert [row.measured.slo for row in summarise(outcomes).rows if row.measured] == ["not judged"]


def test_trials_that_miss_the_slo_are_named() -> None:
    outcomes = sweep({1: (10.0, 20.0), 2: (20.0, 90.0)})
    slow = replace(TTFT_MISSED, measured=90.0, reason="above the limit")
    outcomes = [outcomes[0], with_slo(outcomes[1], slow)]
    expected = (
        "trial 2 (load.concurrency=2): p99 time_to_first_token 90 ms (limit 50 ms): above the limit"
    )
    assert f"SLO missed: {expected}" in printed(outcomes)
    assert "SLO missed: trial 1" not in printed(outcomes)
    page = experiment_page.render(summarise(outcomes), CONFIG).decode()
    assert "The SLO is missed in 1 of 2 trials." in page
    assert expected in page


def test_failed_checks_of_the_system_are_shown() -> None:
    shares = {1: 0.2, 2: 0.3, 4: 0.0}
    outcomes = [
        outcome(number, {"load.concurrency": number}, throughput=1.0, system=throttled(share))
        for number, share in shares.items()
    ]
    outcomes.append(
        outcome(8, {"load.concurrency": 8}, throughput=1.0, verdict="invalid", system=throttled(1))
    )
    summary = summarise(outcomes)
    text = " ".join(printed(outcomes).split())
    worst = "trial 2 (load.concurrency=2): power limits, 30%"
    assert f"system: degraded in 2 of 3 trials, worst in {worst}" in text
    page = experiment_page.render(summary, CONFIG).decode()
    assert "The system is degraded in 2 of 3 trials." in page
    assert worst in page
    trials = experiment_export.experiment_numbers(summary).trials
    assert [each.system for each in trials] == [
        "gpu_throttling",
        "gpu_throttling",
        "",
        "gpu_throttling",
    ]


def test_failed_checks_of_the_verdict_are_shown() -> None:
    outcomes = [
        outcome(
            number,
            {"load.concurrency": number},
            throughput=1.0,
            verdict=check.severity,
            reasons=() if check.ok else (check,),
        )
        for number, share in ((1, 0.1), (2, 0.3), (4, 0.0), (8, 0.6))
        for check in [
            graded("cpu", share, (0.05, 0.5), text=f"steal {share:.0%}", remedy="use another node")
        ]
    ]
    summary = summarise(outcomes)
    worst = "trial 2 (load.concurrency=2): steal 30%"
    text = " ".join(printed(outcomes).split())
    assert f"verdict: degraded in 2 of 3 trials, worst in {worst}" in text
    page = experiment_page.render(summary, CONFIG).decode()
    assert "The verdict is degraded in 2 of 3 trials." in page
    assert worst in page
    verdicts = re.findall(r'<td class="state">([^<]*)</td>', page.partition("All trials")[2])
    assert verdicts == ["degraded: cpu", "degraded: cpu", "valid", "invalid: cpu"]
    trials = experiment_export.experiment_numbers(summary).trials
    assert [each.checks for each in trials] == ["cpu", "cpu", "", "cpu"]
    assert trials[-1].left_out == "invalid: cpu"
