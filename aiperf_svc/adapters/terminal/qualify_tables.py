"""Prints a qualification on a terminal: nodes, paths, and the changes since another one."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.report.qualify_page import units_of, why
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.core.qualify.changes import NodeChange
from aiperf_svc.core.qualify.result import Qualification, Verdict
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number, readable_unit

SHOWN_NODES = 40
"""Maximum number of listed nodes; nodes that passed are left out first."""
_STYLES = {
    Verdict.PASS: "green",
    Verdict.DEGRADED: "yellow",
    Verdict.NOT_MEASURED: "bold red",
    Verdict.FAIL: "bold red",
}


def print_qualification(found: Qualification, console: Console) -> None:
    console.print(_nodes(found))
    for path in found.paths:
        line = Text(f"path {one_line(path.source)} → {one_line(path.target)}: ")
        line.append(path.result.verdict.value, _STYLES[path.result.verdict])
        line.append(f"  {path.result.check}: {one_line(path.result.reason)}")
        console.print(line)
    units = units_of(found)
    for each in found.all:
        info, per, unit = units[each.check]
        value = number(each.value, per=per)
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
    heads = (
        f"{info.stage}\n{info.name}\n" + (f"({unit})" if unit else "") for info, _, unit in infos
    )
    order = sorted(found.nodes, key=lambda node: node.verdict is Verdict.PASS)
    shown = {node.node for node in order[:SHOWN_NODES]}
    rows: list[Sequence[str | Text]] = []
    for node in found.nodes:
        if node.node in shown:
            by_check = {each.check: each for each in node.checks}
            name, verdict = node.node, Text(node.verdict.value, _STYLES[node.verdict])
            values = [number(by_check[info.check].value, per=per) for info, per, _ in infos]
            rows.append([name, verdict, *values, "; ".join(filter(None, map(why, node.checks)))])
    has_passed = [node.verdict is Verdict.PASS for node in order[SHOWN_NODES:]]
    for label, is_pass in (("did not pass", False), ("passed", True)):
        if count := has_passed.count(is_pass):
            rows.append([f"… and {count:,} that {label}"])
    return text_table(("node", "verdict", *heads, "why"), rows, texts=(0, 1, len(infos) + 2))


def print_changes(found: Sequence[NodeChange], console: Console) -> None:
    rows = []
    for each in found:
        per, unit = readable_unit(each.unit, max(each.base or 0.0, each.new or 0.0))
        verdicts = dict.fromkeys(filter(None, (each.base_verdict, each.new_verdict)))
        style = "red" if each.is_worse else ""
        row = (
            each.node or "all nodes",
            each.check,
            number(each.base, per=per),
            number(each.new, per=per),
            "" if each.share is None else f"{each.share - 1:+.1%}",
            unit,
            Text(each.change, style),
            " → ".join(verdicts),
        )
        rows.append(row)
    head = ("node", "check", "base", "new", "", "unit", "change", "verdict")
    console.print(text_table(head, rows, texts=(0, 1, 5, 6, 7)))
