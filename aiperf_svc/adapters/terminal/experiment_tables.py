"""Prints an experiment on a terminal: a line for each combination of parameters, what is best, and
the trials that were left out."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report import experiment_words as words
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import best_of, front
from aiperf_svc.core.experiments.combinations import Parameter
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number

MEAN_WIDTH = 17
"""Columns of a mean with its interval."""
LEAST_MEANS, MOST_MEANS = 2, 6
WIDEST_VALUE = 24
"""Most columns that are kept free for a parameter's value; a longer one may take several lines."""
SHOWN_LINES = 8
POINT_WIDTH = 16
"""Columns of a statistic of a search's point, with the space beside it."""
DECIDED_WIDTH = 36
"""Columns for what decided a point, at least, and for the columns beside it that are no
statistics."""
HELD = {True: "yes", False: "no", None: "?"}


def print_experiment(
    summary: ExperimentSummary,
    console: Console,
    search: SearchReport | None = None,
    *,
    title: str = "Experiment",
    is_brief: bool = False,
) -> None:
    """Print a finished experiment; with `is_brief` only its table and what is wrong."""
    console.print(f"{one_line(title)}: {words.counts(summary)}", style="bold")
    if search is not None:
        for line in (f"{search.parameter} {search.result}", search.advice):
            if line:
                console.print(Text(line))
        console.print(_points_table(summary, search, console.width))
    console.print(combinations_table(summary, console.width))
    if not is_brief:
        _print_notes(summary, search, console)
    if search is None:  # which looks for loads that miss it
        for outcome in (MISSED, NOT_JUDGED):
            lines = words.not_held(summary.rows_with_slo(outcome))
            _print_lines(f"SLO {outcome}", lines, console)
    _print_lines("run again", words.replaced(summary.rows), console)
    _print_lines("left out", words.left_out(summary.left_out), console)


def _shown_values(parameter: Parameter) -> list[str]:
    """Return its values, cut to what is kept free for them."""
    return [words.value_text(value)[:WIDEST_VALUE] for value in parameter.values]


def _points_table(summary: ExperimentSummary, search: SearchReport, width: int) -> Table:
    """Return the table of the values that a search tried, with as many statistics as the width has
    room for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    # A dotted key takes a line for each of its parts.
    name = one_line(search.parameter).replace(".", ".\n")
    table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holds")
    table.add_column("runs", justify="right")
    names = dict.fromkeys(name for point in search.points for name in point.statistics)
    room = width - max(map(len, name.splitlines())) - DECIDED_WIDTH
    keys = {name: _key(name) for name in list(names)[: max(0, room // POINT_WIDTH)]}
    keys = {name: key for name, key in keys.items() if key.tag in summary.metrics}
    for key in keys.values():
        _, unit = words.unit_of(summary, key)
        title = Text(words.metric_name(summary, key))
        title.append(f" ({unit})" if unit else "", "dim")
        table.add_column(title, justify="right", width=POINT_WIDTH - 2)
    table.add_column("decided by")
    for point in search.points:
        cells = []
        for name, key in keys.items():
            value, (divisor, _) = point.statistics.get(name), words.unit_of(summary, key)
            cells.append("–" if value is None else number(value / divisor))
        table.add_row(
            f"{point.value:.6g}",
            HELD[point.holds],
            str(point.runs),
            *cells,
            one_line(point.reason),
        )
    return table


def _key(name: str) -> RowKey:
    """Return the key of a statistic of a search: `time_to_first_token:p99`, or a metric alone."""
    tag, _, stat = name.partition(":")
    return RowKey(tag, stat or "avg")


def print_scenarios(folder: Path, console: Console, *, is_brief: bool = False) -> None:
    """Print the result of each trial as a scenario, from the folder of the experiment; with
    `is_brief` without the statistics, which the metrics of the trial have too."""
    for path in sorted(folder.glob(f"{TRIALS}/*/mlperf/mlperf_log_summary.txt")):
        console.print()
        text = path.read_text().rstrip()
        shown = text.partition("\n\n")[0] if is_brief else text
        print_text(console, Text(shown))


def combinations_table(summary: ExperimentSummary, width: int) -> Table:
    """Return the table of the combinations, with as many metrics as the width has room for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    room = width - 8
    for each in summary.parameters:
        # A dotted key takes a line for each of its parts.
        name = one_line(each.name).replace(".", ".\n")
        table.add_column(name, justify="right" if each.is_number else "left", overflow="fold")
        room -= max(map(len, (*name.splitlines(), *_shown_values(each)))) + 2
    table.add_column("n", justify="right", no_wrap=True)
    means = max(LEAST_MEANS, min(MOST_MEANS, room // MEAN_WIDTH))
    keys = summary.headline[:means]
    units = [words.unit_of(summary, key) for key in keys]
    for key, (_, unit) in zip(keys, units, strict=True):
        title = Text(words.metric_name(summary, key))
        title.append(f" ({unit})" if unit else "", "dim")
        table.add_column(title, justify="right", max_width=MEAN_WIDTH - 2)
    table.add_column("")
    found = front(summary)
    optimal = found.optimal if found is not None and len(found.points) > 1 else ()
    for of in summary.combinations:
        table.add_row(
            *(words.value_text(of.parameters.get(each.name)) for each in summary.parameters),
            Text(words.runs_text(of), "yellow" if of.left_out else ""),
            *(
                words.mean_text(of.values.get(key), divisor)
                for key, (divisor, _) in zip(keys, units, strict=True)
            ),
            "*" if any(of is each for each in optimal) else "",
        )
    return table


def _print_notes(summary: ExperimentSummary, search: SearchReport | None, console: Console) -> None:
    if any(each.half_width is not None for c in summary.combinations for each in c.values.values()):
        console.print("±: 95% interval of the mean over the repetitions", style="dim")
    found = front(summary)
    if found is not None and len(found.points) > 1:
        up, down = (words.metric_name(summary, key) for key in (found.throughput, found.latency))
        console.print(
            f"*: no other combination is better in {up} and in {down} at once", style="dim"
        )
    best = best_of(summary, search)[:MOST_MEANS]
    are_single = all(each.value.half_width is None for each in best)
    for each in best:
        divisor, unit = words.unit_of(summary, each.key)
        place = words.best_place_text(each, is_interval_noted=not are_single)
        print_text(
            console,
            f"Best {words.metric_name(summary, each.key)}: "
            f"{words.mean_text(each.value, divisor)} {unit} at {place}",
        )
    if best and are_single:
        console.print("Each of these is one run, without a confidence interval.", style="dim")


def _print_lines(title: str, lines: list[str], console: Console) -> None:
    for line in lines[:SHOWN_LINES]:
        print_text(console, Text(f"{title}: {line}", "yellow"))
    if len(lines) > SHOWN_LINES:
        rest = len(lines) - SHOWN_LINES
        console.print(Text(f"{title}: {rest} more, see experiment.csv", "yellow"))
