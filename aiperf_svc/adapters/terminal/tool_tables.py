"""Prints a finished benchmark of a tool on a terminal."""

from msgspec.structs import replace
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.terminal.verdict_lines import (
    indented,
    print_objectives,
    print_text,
    print_verdict,
)
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.tool_result import MetricResult, StepTable, ToolResult
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number, readable_unit, size_text

SHOWN_TABLES = 2
SHOWN_ROWS = 12
"""Rows of a table by size; of a longer one every second, third, … is shown, and the last."""
SHOWN_FAILURES = 8


def print_tool_result(run: ToolResult, console: Console) -> None:
    """Print the metrics, tables and steps of a run, its objectives and its verdict."""
    console.print(_title(run), style="bold")
    if run.metrics:
        console.print(_metrics(run))
        _print_matrix(run.metrics[0], console)
    is_repeated = any(table.repetition > 1 for table in run.tables)
    for table in run.tables[:SHOWN_TABLES]:
        title = f"{table.table.name.replace('_', ' ')}: {one_line(table.step)}"
        title += f" #{table.repetition}" if is_repeated else ""
        print_text(console, Text(title, style="italic"))
        console.print(_table(table))
    if len(run.tables) > SHOWN_TABLES:
        console.print(f"{len(run.tables) - SHOWN_TABLES} more tables in report.html", style="dim")
    _print_failures(run, console)
    if run.slo:
        print_objectives([_readable(each) for each in run.slo], console)
    _print_accounts(run, console)
    _print_facts(run, console)
    print_verdict("Verdict on the measurement", run.verdict, run.cause, run.reasons, console)


def _title(run: ToolResult) -> str:
    nodes = dict.fromkeys(rank.node for rank in run.ranks if rank.node)
    where = ", ".join(nodes) if len(nodes) <= 3 else f"{len(nodes)} nodes"
    words = [run.name, run.workload, ", ".join(run.tools), where]
    return " · ".join(one_line(word) for word in words if word)


def _metrics(run: ToolResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    # The average, least and most of one value are equal.
    names = ("avg", "min", "max") if any(each.count > 1 for each in run.metrics) else ("value",)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for metric in run.metrics:
        if metric.info.in_table:
            divisor, unit = readable_unit(metric.info.unit, metric.max)
            stats = (metric.avg, metric.min, metric.max)
            shown = (number(value / divisor) for value in stats[: len(names)])
            table.add_row(one_line(metric.info.name), *shown, one_line(unit))
    return table


def _print_matrix(metric: MetricResult, console: Console) -> None:
    """The headline by pair of nodes, where there are several."""
    pairs = metric.by_pair()
    if len(pairs) < 2:
        return
    divisor, unit = readable_unit(metric.info.unit, metric.max)
    title = f"{one_line(metric.info.name)} ({unit}), row to column"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    targets = sorted({target for _, target in pairs})
    table.add_column("")
    for target in targets:
        table.add_column(one_line(target), justify="right")
    for source in sorted({source for source, _ in pairs}):
        values = (pairs.get((source, target)) for target in targets)
        cells = (number(None if value is None else value / divisor) for value in values)
        table.add_row(one_line(source), *cells)
    console.print(table)


def _table(each: StepTable) -> Table:
    columns, rows = each.table.columns, _thinned(each.table.rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    units = []
    for place, column in enumerate(columns):
        values = [abs(row[place] or 0.0) for row in each.table.rows]
        units.append(readable_unit(column.unit, max(values, default=0.0)))
    is_size = columns[0].unit == "bytes"
    for place, (column, (_, unit)) in enumerate(zip(columns, units, strict=True)):
        name = Text(one_line(column.name.replace("_", " ")))
        if unit and not (is_size and not place):
            name.append(f" ({unit})", "dim")
        # Where there are many columns, their names take several lines.
        table.add_column(name, justify="right", vertical="bottom", no_wrap=not place)
    for row in rows:
        cells = [
            number(None if value is None else value / divisor)
            for value, (divisor, _) in zip(row, units, strict=True)
        ]
        if is_size and row[0] is not None:
            cells[0] = size_text(row[0])
        table.add_row(*cells)
    return table


def _thinned(rows: tuple[tuple[float | None, ...], ...]) -> list[tuple[float | None, ...]]:
    if len(rows) <= SHOWN_ROWS:
        return list(rows)
    every = -(-len(rows) // (SHOWN_ROWS - 1))
    shown = list(rows[::every])
    return shown if (len(rows) - 1) % every == 0 else [*shown, rows[-1]]


def _readable(each: ObjectiveResult) -> ObjectiveResult:
    """Return an objective in a unit in which its numbers are short."""
    measured = each.measured
    divisor, unit = readable_unit(each.unit, max(abs(each.limit), abs(measured or 0.0)))
    shown = None if measured is None else measured / divisor
    return replace(each, limit=each.limit / divisor, measured=shown, unit=unit)


def _print_failures(run: ToolResult, console: Console) -> None:
    failed = [step for step in run.steps if step.problem]
    for step in failed[:SHOWN_FAILURES]:
        what = "failed, tried again" if step.was_retried else "failed"
        style = "yellow" if step.was_retried else "bold red"
        repetition = f", repetition {step.repetition}" if step.repetition > 1 else ""
        text = Text.assemble((f"✗ {step.name}{repetition} {what}: ", style), one_line(step.problem))
        console.print(indented(text, 2))
        console.print(indented(Text(f"raw/{step.folder}", style="dim"), 4))
    if len(failed) > SHOWN_FAILURES:
        console.print(f"  {len(failed) - SHOWN_FAILURES} more in report.html", style="dim")


def _print_accounts(run: ToolResult, console: Console) -> None:
    found = run.accounts
    parts = [f"{found.completed:,} completed"]
    parts += [f"{found.failed:,} failed"] if found.failed else []
    parts += [f"{found.lost:,} not run"] if found.lost else []
    retried = f"; {found.retried:,} attempts made again" if found.retried else ""
    line = f"\nSteps: {found.planned:,} planned = {' + '.join(parts)}{retried}"
    print_text(console, line)


def _print_facts(run: ToolResult, console: Console) -> None:
    if run.facts:
        facts = ", ".join(f"{name} {text}" for name, text in run.facts.items())
        print_text(console, Text(f"Facts: {one_line(facts)}"))
