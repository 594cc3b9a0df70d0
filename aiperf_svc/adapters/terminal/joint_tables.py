"""Prints several simultaneous runs on a terminal: a column for each run and for the total, or a
table of the trials of each run and of the total."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report import joint_page
from aiperf_svc.adapters.terminal.experiment_tables import print_experiment, print_scenarios
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import print_tables, print_text
from aiperf_svc.core.experiments.joint_trials import JointExperiment
from aiperf_svc.core.experiments.outcomes import DONE
from aiperf_svc.core.results.cache_stats import cache_tables
from aiperf_svc.core.results.joint_result import Joint, rows
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number

WIDEST_NAME = 16
"""Maximum width of a column due to its name; a longer name is folded if there is no room."""
GAP = 2
"""Spaces between two columns of a table."""


def print_joint(joint: Joint, console: Console) -> None:
    """Print the table, and how each run ended."""
    console.print(f"\n{one_line(joint.name)}: {len(joint.members)} {joint.kind}", style="bold")
    if rows(joint, is_short=True):
        for table in joint_tables(joint, console.width):
            console.print(table)
    print_tables(cache_tables(joint.cache), console)
    for member in joint.members:
        style = {"valid": "green", "degraded": "yellow"}.get(member.verdict or "", "bold red")
        line = Text.assemble((f"{one_line(member.name)}: ", "bold"))
        line.append(one_line(joint_page.outcome(member)), style)
        print_text(console, line)
    for text in (joint_page.start(joint), *joint.notes, joint_page.joining_text(joint)):
        if text:
            print_text(console, text, style="dim")


def print_joint_experiment(joint: JointExperiment, folder: Path, console: Console) -> None:
    """Print the table of each run and of the total, and how each run ended. `folder` is the folder
    of the joint result."""
    console.print(f"\n{one_line(joint.name)}: {len(joint.members)} {joint.kind}", style="bold")
    for member in joint.members:
        if member.summary.rows:
            console.print()
            print_experiment(member.summary, console, title=member.name, is_brief=joint.has_total)
            print_scenarios(folder / member.folder, console, is_brief=True)
    console.print()
    if joint.has_total:
        print_experiment(joint.total, console, joint.search, title="total")
        console.print()
    for member in joint.members:
        style = "" if member.state == DONE else "bold red"
        line = Text.assemble((f"{one_line(member.name)}: ", "bold"))
        line.append(one_line(joint_page.end(member)), style)
        print_text(console, line)
    method_text = joint_page.JOINING_TEXT if joint.has_total else joint_page.NO_TOTAL
    for text in (joint_page.starts(joint), *joint.notes, method_text):
        if text:
            print_text(console, text, style="dim")


def joint_tables(joint: Joint, width: int) -> list[Table]:
    """Return a column for each run or target and, if known, for the total. Columns that do not fit
    into the width are in additional tables."""
    found = [row.shown for row in rows(joint, is_short=True)]
    names, units = [one_line(row.name) for row in found], [one_line(row.unit) for row in found]
    columns = [
        (one_line(member.name), [number(row.values[index]) for row in found])
        for index, member in enumerate(joint.members)
    ]
    if joint.total:
        columns.append(("total", [number(row.total) for row in found]))
    min_width = max(map(len, names), default=0) + max(map(len, units), default=0) + 2 * GAP
    groups: list[list[tuple[str, list[str]]]] = []
    room = 0
    for title, cells in columns:
        taken = max(min(len(title), WIDEST_NAME), *map(len, cells)) + GAP
        if not groups or taken > room:
            groups.append([])
            room = width - min_width
        groups[-1].append((title, cells))
        room -= taken
    return [_table(names, group, units) for group in groups]


def _table(names: list[str], columns: list[tuple[str, list[str]]], units: list[str]) -> Table:
    rows = zip(names, *(cells for _, cells in columns), units, strict=True)
    head = ("", *(title for title, _ in columns), "unit")
    table = text_table(head, rows, texts=(0, len(head) - 1))
    table.columns[0].no_wrap = table.columns[-1].no_wrap = True
    for column, (_, cells) in zip(table.columns[1:-1], columns, strict=True):
        column.min_width = max(map(len, cells), default=0)
    return table
