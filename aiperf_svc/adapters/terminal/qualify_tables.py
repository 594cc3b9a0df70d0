"""Prints a qualification on a terminal: nodes, paths, and what changed since another one."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report.qualify_page import units_of, why
from aiperf_svc.core.qualify.changes import NodeChange
from aiperf_svc.core.qualify.result import Qualification, Verdict
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number, readable_unit

SHOWN_NODES = 40
"""Most nodes that are listed; those that passed are left out first."""
_STYLES = {
    Verdict.PASS: "green",
    Verdict.DEGRADED: "yellow",
    Verdict.NOT_MEASURED: "bold red",
    Verdict.FAIL: "bold red",
}


def print_qualification(found: Qualification, console: Console) -> None:
    """Print the verdicts."""
    console.print(_nodes(found))
    for path in found.paths:
        line = Text(f"path {one_line(path.source)} → {one_line(path.target)}: ")
        line.append(path.result.verdict.value, _STYLES[path.result.verdict])
        line.append(f"  {path.result.check}: {one_line(path.result.reason)}")
        console.print(line)
    units = units_of(found)
    for each in found.all:
        info, divisor, unit = units[each.check]
        value = number(None if each.value is None else each.value / divisor)
        line = Text(f"all nodes: {info.stage}: {info.name} {value} {unit} ")
        line.append(each.verdict.value, _STYLES[each.verdict])
        line.append(f"  {one_line(each.reason)}" if each.reason else "")
        console.print(line)
    for stage in found.stages:
        if stage.ended < stage.planned:
            what = "rounds" if stage.nodes == "pairs" else "runs"
            text = f"stage {stage.name}: {stage.ended:,} of {stage.planned:,} {what} were measured"
            console.print(text, style="yellow")
    for text in found.warnings:
        console.print(one_line(text), style="yellow")
    console.print(one_line(found.result), style="bold red" if found.has_failed else "bold green")


def _nodes(found: Qualification) -> Table:
    infos = [each for each in units_of(found).values() if each[0].nodes != "all"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for info, _, unit in infos:
        table.add_column(f"{info.stage}\n{info.name}\n({unit})", justify="right")
    table.add_column("why")
    order = sorted(found.nodes, key=lambda node: node.verdict is Verdict.PASS)
    shown = {node.node for node in order[:SHOWN_NODES]}
    for node in found.nodes:
        if node.node not in shown:
            continue
        of = {each.check: each for each in node.checks}
        values = [(of[info.check].value, divisor) for info, divisor, _ in infos]
        table.add_row(
            one_line(node.node),
            Text(node.verdict.value, _STYLES[node.verdict]),
            *(number(None if value is None else value / divisor) for value, divisor in values),
            one_line("; ".join(filter(None, map(why, node.checks)))),
        )
    if len(found.nodes) > len(shown):
        table.add_row(f"… and {len(found.nodes) - len(shown):,} that passed")
    return table


def print_changes(found: Sequence[NodeChange], console: Console) -> None:
    """Print what changed node by node."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("node", "check", "base", "new", "", "unit", "change", "verdict"):
        justify = "right" if name in ("base", "new", "") else "left"
        table.add_column(name, justify=justify, no_wrap=name != "check")  # type: ignore[arg-type]
    for each in found:
        divisor, unit = readable_unit(each.unit, max(each.base or 0.0, each.new or 0.0))
        shown = (None if value is None else value / divisor for value in (each.base, each.new))
        share = "" if each.share is None else f"{each.share - 1:+.1%}"
        verdicts = dict.fromkeys(filter(None, (each.base_verdict, each.new_verdict)))
        style = "red" if each.change in ("worse", "gone", "not measured") else ""
        table.add_row(
            one_line(each.node) or "all nodes",
            each.check,
            *map(number, shown),
            share,
            unit,
            Text(each.change, style),
            " → ".join(verdicts),
        )
    console.print(table)
