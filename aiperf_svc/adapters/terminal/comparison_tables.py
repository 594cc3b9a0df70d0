"""A comparison on a terminal, in the style of benchstat, and the history of a metric."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.comparison import history_views, wording
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.compare.comparison import Comparison, Word
from aiperf_svc.core.compare.groups import Comparisons
from aiperf_svc.core.compare.history import History
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import count

STYLES = {Word.WORSE: "bold red", Word.BETTER: "green", Word.CHANGED: "yellow"}
WIDE = 1000
"""A number above the number of columns in any table."""
SHIFT_WIDTH = 8
"""Width of the change of a percentile, including the space beside it."""


def print_comparison(comparison: Comparison, console: Console, *, is_short: bool = False) -> None:
    """Print the differences in config, the rows, the shifted percentiles, and the count. With
    `is_short`, omit the names of the runs and the percentiles."""
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        runs = count(len(side.runs), "run") if is_short else wording.runs(side)
        for text in (runs, *wording.left_out(side)):
            print_text(console, f"{name:<4}  {text}")
    console.print()
    if comparison.differences:
        found = map(wording.differing, comparison.differences)
        console.print(text_table(("differs", "base", "new"), found, texts=range(3)))
    else:
        console.print(wording.same_config(comparison))
    console.print(_rows(comparison, console))
    if comparison.shifts and not is_short:
        console.print(_shifts(comparison, console.width))
    for note in comparison.notes:
        print_text(console, note, style="dim")
    console.print(wording.conclusion(comparison), style="bold")


def print_comparisons(found: Comparisons, console: Console) -> None:
    """Print a comparison for each combination of parameters, and the count over all of them."""
    for each in found.groups:
        if each.name:
            print_text(console, each.name, style="bold underline")
        print_comparison(each, console, is_short=len(found.groups) > 1)
        if each.name:
            console.print()
    for text in wording.skipped(found):
        print_text(console, text, style="yellow")
    if len(found.groups) > 1:
        names = f"all {len(found.groups)} combinations: {wording.conclusion(found)}"
        print_text(console, names, style="bold")


def print_history(found: History, console: Console) -> None:
    """Print the plot of a metric over runs, its changes, and the runs left out."""
    first, last = (history_views.when(found.runs[at].start_wall_ns) for at in (0, -1))
    console.print(history_views.title(found), style="bold")
    console.print(f"{count(len(found.runs), 'run')}, {first} to {last} UTC")
    for line in history_views.text_plot(found, console.width):
        console.print(line, no_wrap=True)
    for line in history_views.left_out(found):
        print_text(console, line)
    for change in found.changes:
        text = history_views.change_text(found, change)
        print_text(console, Text(text, STYLES.get(change.word, "")))
    keys = dict.fromkeys(key for run in found.runs for key in run.changed_keys)
    if keys:
        text = f"not the same in all runs: {one_line(', '.join(keys))}"
        print_text(console, text, style="dim")
    if not found.changes:
        limit = f"{found.tolerance * 100:.4g}%"
        console.print(f"no change beyond a tolerance of {limit} was found")


def _rows(comparison: Comparison, console: Console) -> Table:
    """Return the table of all rows. If it is too wide, cells have several lines."""
    cells: list[list[str | Text]] = []
    for row in comparison.rows:
        *texts, word = wording.cells(row)
        style = STYLES.get(row.word, "") if row.gates else "dim"
        cells.append([wording.name(row), *texts, Text(word, style)])
    table = text_table(("", *wording.HEADS), cells)
    needed = console.measure(table, options=console.options.update(max_width=WIDE)).maximum
    if needed > console.width:
        for row, each in zip(comparison.rows, cells, strict=True):
            each[0] = Text("\n(".join(wording.name(row).rsplit(" (", 1)))
        table = text_table(("", *wording.HEADS), cells)
        table.columns[0].no_wrap = True
    return table


def _shifts(comparison: Comparison, width: int) -> Table:
    """Return the table of the percentiles, without the lowest ones if it is too wide."""
    stats, rows = wording.shifts(comparison)
    head = "percentiles moved"
    max_columns = max(
        1, (width - max(map(len, (head, *(name for name, *_ in rows)))) - 2) // SHIFT_WIDTH
    )
    return text_table(
        (head, *stats[-max_columns:]), [(name, *cells[-max_columns:]) for name, *cells in rows]
    )
