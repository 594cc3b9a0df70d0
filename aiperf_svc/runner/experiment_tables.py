"""Prints an experiment on a terminal: a line for each combination of parameters, what is best, and
the trials that were left out."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report import experiment_words as words
from aiperf_svc.core.experiments.choices import best_of, front
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.foreign_text import one_line

MEAN_WIDTH = 17
"""Columns of a mean with its interval."""
LEAST_MEANS, MOST_MEANS = 2, 6
SHOWN_LINES = 8


def print_experiment(
    summary: ExperimentSummary,
    console: Console,
    search: SearchReport | None = None,
    *,
    title: str = "Experiment",
    is_brief: bool = False,
) -> None:
    """Everything about an experiment that is over; with `is_brief` its table and what is wrong."""
    console.print(f"{one_line(title)}: {words.counts(summary)}", style="bold")
    if search is not None:
        for line in search.lines():
            console.print(Text(line), soft_wrap=True)
    console.print(combinations_table(summary, console.width))
    if not is_brief:
        _print_notes(summary, console)
    if search is None:  # which looks for loads that miss it
        _print_lines("SLO missed", words.missed(summary.missing_slo), console)
    _print_lines("left out", words.left_out(summary.left_out), console)


def print_scenarios(folder: Path, console: Console, *, is_brief: bool = False) -> None:
    """What a scenario makes of each trial, from the folder of the experiment; with `is_brief`
    without the statistics, which the metrics of the trial have too."""
    for path in sorted(folder.glob(f"{TRIALS}/*/mlperf/mlperf_log_summary.txt")):
        console.print()
        text = path.read_text().rstrip()
        shown = text.partition("\n\n")[0] if is_brief else text
        console.print(Text(shown), soft_wrap=True)


def combinations_table(summary: ExperimentSummary, width: int) -> Table:
    """Return the table of the combinations, with as many metrics as the width has room for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    room = width
    for each in summary.parameters:
        # A dotted key takes a line for each of its parts.
        name = one_line(each.name).replace(".", ".\n")
        table.add_column(name, justify="right" if each.is_number else "left", overflow="fold")
        room -= max(map(len, name.splitlines())) + 1
    table.add_column("n", justify="right", no_wrap=True)
    means = max(LEAST_MEANS, min(MOST_MEANS, (room - 10) // MEAN_WIDTH))
    keys = summary.headline[:means]
    units = [words.unit_of(summary, key) for key in keys]
    for key, (_, unit) in zip(keys, units, strict=True):
        title = Text(words.metric_name(summary, key))
        table.add_column(title.append(f" ({unit})" if unit else "", "dim"), justify="right")
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


def _print_notes(summary: ExperimentSummary, console: Console) -> None:
    if any(each.half_width is not None for c in summary.combinations for each in c.values.values()):
        console.print("±: 95% interval of the mean over the repetitions", style="dim")
    found = front(summary)
    if found is not None and len(found.points) > 1:
        up, down = (words.metric_name(summary, key) for key in (found.throughput, found.latency))
        console.print(
            f"*: no other combination is better in {up} and in {down} at once", style="dim"
        )
    for each in best_of(summary)[:MOST_MEANS]:
        divisor, unit = words.unit_of(summary, each.key)
        console.print(
            f"Best {words.metric_name(summary, each.key)}: "
            f"{words.mean_text(each.value, divisor)} {unit} at "
            f"{words.parameters_text(each.combination.parameters)}",
            soft_wrap=True,
        )


def _print_lines(title: str, lines: list[str], console: Console) -> None:
    for line in lines[:SHOWN_LINES]:
        console.print(Text(f"{title}: {line}", "yellow"), soft_wrap=True)
    if len(lines) > SHOWN_LINES:
        rest = len(lines) - SHOWN_LINES
        console.print(Text(f"{title}: {rest} more, see experiment.csv", "yellow"))
