"""A comparison on a terminal, in benchstat's manner, and the history of a metric."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.comparison import history_views, wording
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.compare.comparison import Comparison, Word
from aiperf_svc.core.compare.groups import Comparisons
from aiperf_svc.core.compare.history import History
from aiperf_svc.domain.foreign_text import one_line

STYLES = {Word.WORSE: "bold red", Word.BETTER: "green", Word.CHANGED: "yellow"}
WIDE = 1000
"""More columns than a table has."""
SHIFT_WIDTH = 8
"""Columns of the change of a percentile, with the space beside it."""


def print_comparison(comparison: Comparison, console: Console, *, is_short: bool = False) -> None:
    """Print what differs in the config, the rows, the percentiles that moved, and the count. In
    short, without the names of the runs and without the percentiles."""
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        runs = wording.run_count(side) if is_short else wording.runs(side)
        for text in (runs, *wording.left_out(side)):
            print_text(console, f"{name:<4}  {text}")
    console.print()
    if comparison.differences:
        table = _table("differs", ("base", "new"), justify="left")
        for found in comparison.differences:
            table.add_row(*wording.differing(found))
        console.print(table)
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
    """Print the plot of a metric over runs, its changes, and the runs that were left out."""
    first, last = (history_views.when(found.runs[at].start_wall_ns) for at in (0, -1))
    runs = len(found.runs)
    console.print(history_views.title(found), style="bold")
    console.print(f"{runs} run{'' if runs == 1 else 's'}, {first} to {last} UTC")
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
    """Return the table of all rows. Where it is too wide, cells have several lines."""
    table = _rows_table(comparison, is_narrow=False)
    needed = console.measure(table, options=console.options.update(max_width=WIDE)).maximum
    return table if needed <= console.width else _rows_table(comparison, is_narrow=True)


def _rows_table(comparison: Comparison, *, is_narrow: bool) -> Table:
    table = _table("", wording.HEADS)
    if is_narrow:
        for column in table.columns:
            column.no_wrap = not column.no_wrap
    for row in comparison.rows:
        *cells, word = wording.cells(row)
        name = wording.name(row)
        if is_narrow:
            name = "\n(".join(name.rsplit(" (", 1))
        style = STYLES.get(row.word, "") if row.gates else "dim"
        table.add_row(name, *cells, Text(word, style))
    return table


def _shifts(comparison: Comparison, width: int) -> Table:
    """Return the table of the percentiles, without the lowest ones where it is too wide."""
    names = ["percentiles moved", *(each.info.name for each in comparison.shifts)]
    most = max(1, (width - max(map(len, names)) - 2) // SHIFT_WIDTH)
    stats = list(comparison.shifts[0].shifts)[-most:]
    table = _table("percentiles moved", [wording.stat_name(stat) for stat in stats])
    for each in comparison.shifts:
        shown = (wording.percent(each.shifts[s]) if s in each.shifts else "–" for s in stats)
        table.add_row(each.info.name, *shown)
    return table


def _table(first: str, heads: Sequence[str], *, justify: str = "right") -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=justify == "left")
    for head in heads:
        # Texts may be long and are folded; numbers are not.
        table.add_column(
            head,
            justify="left" if justify == "left" else "right",
            no_wrap=justify != "left",
            overflow="fold",
        )
    return table
