"""Prints a finished benchmark of a tool on a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import (
    indented,
    print_objectives,
    print_text,
    print_verdict,
)
from aiperf_svc.core.results.tool_result import MetricResult, StepTable, ToolResult
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number

SHOWN_TABLES = 2
SHOWN_ROWS = 12
"""Maximum rows of a table by size; longer tables show every second, third, … and the last row."""
SHOWN_FAILURES = 8


def print_tool_result(run: ToolResult, console: Console) -> None:
    """Print the metrics, tables and steps of a run, its objectives and its verdict."""
    console.print(_title(run), style="bold")
    if run.metrics:
        console.print(_metrics(run))
        _print_matrix(run.metrics[0], console)
    is_repeated = any(table.repetition > 1 for table in run.tables)
    for table in run.tables[:SHOWN_TABLES]:
        title = f"{table.name}: {one_line(table.step)}"
        title += f" #{table.repetition}" if is_repeated else ""
        print_text(console, Text(title, style="italic"))
        console.print(_table(table))
    if len(run.tables) > SHOWN_TABLES:
        console.print(f"{len(run.tables) - SHOWN_TABLES} more tables in report.html", style="dim")
    _print_failures(run, console)
    if run.slo:
        print_objectives([each.readable for each in run.slo], console)
    _print_accounts(run, console)
    _print_facts(run, console)
    print_verdict("Verdict on the measurement", run.verdict, run.cause, run.reasons, console)


def _title(run: ToolResult) -> str:
    nodes = dict.fromkeys(rank.node for rank in run.ranks if rank.node)
    where = ", ".join(nodes) if len(nodes) <= 3 else f"{len(nodes)} nodes"
    parts = [run.name, run.workload, ", ".join(run.tools), where]
    return " · ".join(one_line(part) for part in parts if part)


def _metrics(run: ToolResult) -> Table:
    # The average, minimum and maximum of one value are equal.
    names = ("avg", "min", "max") if any(each.count > 1 for each in run.metrics) else ("value",)
    rows = []
    for metric in run.metrics:
        if metric.info.in_table:
            per, unit = metric.unit
            stats = (metric.avg, metric.min, metric.max)[: len(names)]
            rows.append([metric.info.name, *(number(value, per=per) for value in stats), unit])
    return text_table(("", *names, "unit"), rows, texts=(0, len(names) + 1))


def _print_matrix(metric: MetricResult, console: Console) -> None:
    """Print the headline metric by pair of nodes, if there are several nodes."""
    pairs = metric.by_pair()
    if len(pairs) < 2:
        return
    per, unit = metric.unit
    targets = sorted({target for _, target in pairs})
    rows = [
        [source, *(number(pairs.get((source, target)), per=per) for target in targets)]
        for source in sorted({source for source, _ in pairs})
    ]
    title = f"{one_line(metric.info.name)}{f' ({unit})' if unit else ''}, from row to column"
    console.print(text_table(("", *map(one_line, targets)), rows, title=title))


def _table(each: StepTable) -> Table:
    columns, rows = each.shown()
    heads = [
        Text.assemble(one_line(name), (f" ({unit})" if unit else "", "dim"))
        for name, unit in columns
    ]
    table = text_table(heads, _thinned(rows), texts=())
    # If there are many columns, their names wrap.
    for column in table.columns:
        column.vertical = "bottom"
    table.columns[0].no_wrap = True
    return table


def _thinned(rows: list[list[str]]) -> list[list[str]]:
    if len(rows) <= SHOWN_ROWS:
        return rows
    every = -(-len(rows) // (SHOWN_ROWS - 1))
    shown = rows[::every]
    return shown if (len(rows) - 1) % every == 0 else [*shown, rows[-1]]


def _print_failures(run: ToolResult, console: Console) -> None:
    failed = [step for step in run.steps if step.problem]
    for step in failed[:SHOWN_FAILURES]:
        end = "failed and retried" if step.was_retried else "failed"
        style = "yellow" if step.was_retried else "bold red"
        repetition = f", repetition {step.repetition}" if step.repetition > 1 else ""
        text = Text.assemble((f"✗ {step.name}{repetition} {end}: ", style), one_line(step.problem))
        console.print(indented(text, 2))
        console.print(indented(Text(f"raw/{step.folder}", style="dim"), 4))
    if len(failed) > SHOWN_FAILURES:
        console.print(f"  {len(failed) - SHOWN_FAILURES} more in report.html", style="dim")


def _print_accounts(run: ToolResult, console: Console) -> None:
    print_text(console, f"\nSteps: {run.accounts.text}")


def _print_facts(run: ToolResult, console: Console) -> None:
    if run.facts:
        facts = ", ".join(f"{name} {text}" for name, text in run.facts.items())
        print_text(console, Text(f"Facts: {one_line(facts)}"))
