"""Prints an experiment on a terminal: a line for each combination of parameters, the best ones, and
the trials left out."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report import experiment_texts
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import best_of
from aiperf_svc.core.experiments.combinations import Parameter
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import value_text
from aiperf_svc.domain.number_text import number

MEAN_WIDTH = 17
"""Width of a mean with its interval."""
MIN_MEANS, MAX_MEANS = 2, 6
WIDEST_VALUE = 24
"""Maximum width reserved for a parameter's value; a longer one may wrap."""
SHOWN_LINES = 8
POINT_WIDTH = 16
"""Width of a statistic of a search's point, including the space beside it."""
REASON_WIDTH = 36
"""Minimum width of the reason of a point's outcome and the columns without statistics."""
HELD = {True: "yes", False: "no", None: "?"}


def print_experiment(
    summary: ExperimentSummary,
    console: Console,
    search: SearchReport | None = None,
    *,
    title: str = "Experiment",
    is_brief: bool = False,
) -> None:
    """Print a finished experiment; with `is_brief` only its table and its problems."""
    console.print(f"{one_line(title)}: {experiment_texts.counts(summary)}", style="bold")
    if search is not None:
        for line in (f"{search.parameter} {search.result}", search.advice):
            if line:
                console.print(Text(line))
        console.print(_points_table(summary, search, console.width))
    console.print(combinations_table(summary, console.width))
    if not is_brief:
        _print_notes(summary, search, console)
    if search is None:  # a search looks for loads that miss the SLO
        for outcome in (MISSED, NOT_JUDGED):
            lines = experiment_texts.not_held(summary.rows_with_slo(outcome))
            _print_lines(f"SLO {outcome}", lines, console)
    for name, found in experiment_texts.findings(summary).items():
        _print_lines(name, [f"{each.share}, worst in {each.worst}" for each in found], console)
    _print_lines("run again", experiment_texts.replaced(summary.rows), console)
    _print_lines("left out", experiment_texts.left_out(summary.left_out), console)


def _shown_values(parameter: Parameter) -> list[str]:
    """Return the parameter's values, cut to the reserved width."""
    return [value_text(value)[:WIDEST_VALUE] for value in parameter.values]


def _points_table(summary: ExperimentSummary, search: SearchReport, width: int) -> Table:
    """Return the table of the values that a search tried, with the statistics that fit."""
    parameter = _key_lines(search.parameter)
    names = dict.fromkeys(name for point in search.points for name in point.statistics)
    room = width - max(map(len, parameter.splitlines())) - REASON_WIDTH
    keys = {_key(name): name for name in list(names)[: max(0, room // POINT_WIDTH)]}
    shown = experiment_texts.shown_metrics(
        summary, (key for key in keys if key.tag in summary.metrics)
    )
    rows = [
        (
            f"{point.value:.6g}",
            HELD[point.holds],
            str(point.runs),
            *(number(point.statistics.get(keys[each.key]), per=each.per) for each in shown),
            point.text,
        )
        for point in search.points
    ]
    table = text_table(
        (parameter, "holds", "runs", *map(_head, shown), "reason"),
        rows,
        texts=(1, len(shown) + 3),
    )
    table.columns[0].no_wrap = True
    for column in table.columns[3:-1]:
        column.width = POINT_WIDTH - 2
    return table


def _key_lines(name: str) -> str:
    """Return a key with one line per part."""
    return one_line(name).replace(".", ".\n")


def _head(metric: experiment_texts.ShownMetric) -> Text:
    return Text.assemble(metric.name, (f" ({metric.unit})" if metric.unit else "", "dim"))


def _key(name: str) -> RowKey:
    """Return the key of a statistic of a search: `time_to_first_token:p99`, or only a metric."""
    tag, _, stat = name.partition(":")
    return RowKey(tag, stat or "avg")


def print_scenarios(folder: Path, console: Console, *, is_brief: bool = False) -> None:
    """Print the result of each trial as a scenario, from the folder of the experiment. With
    `is_brief`, omit the statistics that are also in the trial's metrics."""
    for path in sorted(folder.glob(f"{TRIALS}/*/mlperf/mlperf_log_summary.txt")):
        console.print()
        text = path.read_text().rstrip()
        shown = text.partition("\n\n")[0] if is_brief else text
        print_text(console, Text(shown))


def combinations_table(summary: ExperimentSummary, width: int) -> Table:
    """Return the table of the combinations, with as many metrics as fit into the width."""
    names = [_key_lines(each.name) for each in summary.parameters]
    room = width - 8
    for name, each in zip(names, summary.parameters, strict=True):
        room -= max(map(len, (*name.splitlines(), *_shown_values(each)))) + 2
    means = max(MIN_MEANS, min(MAX_MEANS, room // MEAN_WIDTH))
    metrics = experiment_texts.shown_metrics(summary, summary.headline[:means])
    optimal, _ = experiment_texts.optimal(summary, "*")
    rows = [
        (
            *experiment_texts.parameter_texts(summary, combination.parameters),
            Text(experiment_texts.runs_text(combination), "yellow" if combination.left_out else ""),
            *(
                experiment_texts.mean_text(combination.values.get(each.key), each.per)
                for each in metrics
            ),
            "*" if any(combination is each for each in optimal) else "",
        )
        for combination in summary.combinations
    ]
    texts = {index for index, each in enumerate(summary.parameters) if not each.is_number}
    table = text_table((*names, "n", *map(_head, metrics), ""), rows, texts=texts)
    for column in table.columns[len(names) + 1 : -1]:
        column.max_width = MEAN_WIDTH - 2
    return table


def _print_notes(summary: ExperimentSummary, search: SearchReport | None, console: Console) -> None:
    if any(each.half_width is not None for c in summary.combinations for each in c.values.values()):
        note = "±: 95% interval of the mean over the repetitions, in per cent of the mean"
        console.print(note, style="dim")
    if on_front := experiment_texts.optimal(summary, "*")[1]:
        console.print(on_front, style="dim")
    for source in experiment_texts.token_sources(summary):
        print_text(console, Text(source, "dim"))
    best = best_of(summary, search)[:MAX_MEANS]
    are_single = all(each.value.half_width is None for each in best)
    for each in best:
        value, where = experiment_texts.best_texts(summary, each, is_interval_noted=not are_single)
        print_text(
            console, f"Best {experiment_texts.metric_name(summary, each.key)}: {value} at {where}"
        )
    if best and are_single:
        console.print("Each of these is one run, without a confidence interval.", style="dim")


def _print_lines(title: str, lines: list[str], console: Console) -> None:
    for line in lines[:SHOWN_LINES]:
        print_text(console, Text(f"{title}: {line}", "yellow"))
    if len(lines) > SHOWN_LINES:
        rest = len(lines) - SHOWN_LINES
        console.print(Text(f"{title}: {rest} more, see experiment.csv", "yellow"))
