"""`report.html` of a benchmark of a tool: one self-contained page without scripts."""

from collections.abc import Sequence

from aiperf_svc.adapters.exports.inference_file import iso_time
from aiperf_svc.adapters.report import blocks, tool_charts
from aiperf_svc.adapters.report.blocks import (
    Block,
    Cell,
    Code,
    Details,
    Header,
    Heading,
    Note,
    Numbers,
    Plots,
    Row,
    Table,
    check_table,
    document,
    name_cell,
    number_cell,
    number_row,
    section,
    table,
    text_table,
    verdict_box,
)
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.tool_result import STATS, ToolResult
from aiperf_svc.domain.number_text import number
from aiperf_svc.workloads.steps import Plot

_VALID = "Nothing contradicts the numbers of the tool."
LARGE_NUMBERS = 6
OPEN_TABLES = 2
"""Tables that are shown at once; others open on a click."""
COURIER_FIELDS = (
    "interface_rx_bytes", "interface_tx_bytes", "loopback_bytes", "dropped_packets",
    "tcp_retransmits", "udp_errors", "oom_kills",
)  # fmt: skip


def render(result: ToolResult, plots: Sequence[Plot]) -> bytes:
    """Render the file's content, with the plots of the workload."""
    parts = [
        _header(result),
        verdict_box(result.judgement, _VALID),
        _numbers(result),
        *blocks.objectives([_objective(each, result) for each in result.slo]),
        Plots(tool_charts.draw(result, plots)),
        *_metrics(result),
        *_tables(result),
        *_steps(result),
        Details("Values of each step", [_values(result)]),
        Details("All checks of the verdict", [check_table(result.checks)]),
        Details("Measurements of the couriers", [_courier_table(result)]),
        Details("Ranks", [_ranks(result)]),
        Details("Facts", [_facts(result)]),
        Details("Configuration", [Code(yaml_text(result.config))]),
    ]
    return document(result.name, parts)


def _header(result: ToolResult) -> Header:
    nodes = list(dict.fromkeys(rank.node for rank in result.ranks if rank.node))
    facts = [result.workload, ", ".join(result.tools), ", ".join(nodes[:6])]
    if len(nodes) > 6:
        facts[-1] += f" and {len(nodes) - 6} more"
    facts.append(f"{iso_time(result.start_wall_ns)[:19].replace('T', ' ')} UTC")
    if result.was_cancelled:
        facts.append("stopped by the user")
    if result.failure:
        facts.append("failed")
    return Header(result.name, facts)


def _numbers(result: ToolResult) -> Numbers:
    shown = [metric for metric in result.metrics if metric.info.in_table][:LARGE_NUMBERS]
    return Numbers([(m.info.name, number(m.avg, per=m.unit[0]), m.unit[1]) for m in shown])


def _objective(each: ObjectiveResult, result: ToolResult) -> Row:
    name = next((m.info.name for m in result.metrics if m.info.tag == each.metric), each.metric)
    readable = each.readable
    return blocks.objective_row(f"{name} {each.stat}", readable, number_cell(readable.measured))


def _metrics(result: ToolResult) -> list[Block]:
    rows = []
    for metric in result.metrics:
        per, unit = metric.unit
        found = number_row(metric.info.name, unit, map(metric.stat, STATS), per=per)
        rows.append(Row([*found.cells, number_cell(metric.count)]))
    return section("Metrics", table(("Metric", *STATS, "values"), rows))


def _tables(result: ToolResult) -> list[Block]:
    parts: list[Block] = []
    for index, each in enumerate(result.tables):
        where = tool_charts.place_text(each.step, each.repetition, result)
        title = each.name + (f": {where}" if where else "")
        title = title[:1].upper() + title[1:]
        heads, rows = each.shown()
        shown = text_table([Cell(name, unit=unit) for name, unit in heads], rows)
        is_open = index < OPEN_TABLES
        parts += [Heading(title), shown] if is_open else [Details(title, [shown])]
    return parts


def _steps(result: ToolResult) -> list[Block]:
    rows = []
    for step in result.steps:
        state = "retried" if step.was_retried else "failed" if step.problem else "completed"
        tone = {"completed": "valid", "failed": "invalid", "retried": "degraded"}[state]
        cells = [
            name_cell(step.name, f"attempt {step.attempt}" if step.attempt > 1 else ""),
            Cell(str(step.repetition or "preparation"), is_faint=not step.repetition),
            Cell(state, "state"),
            number_cell(step.duration_s or None),
            number_cell(step.expected_s or None),
            number_cell(step.start_skew_ms),
            Cell(step.problem, "wide"),
        ]
        rows.append(Row(cells, tone))
    head = ("Step", "Repetition", "", Cell("Length", unit="s"), Cell("Requested", unit="s"),
            Cell("Start skew", unit="ms"), Cell(style="text"))  # fmt: skip
    return [Heading("Steps"), table(head, rows), Note(f"{result.accounts.text}.")]


def _values(result: ToolResult) -> Table:
    rows = []
    for metric in result.metrics:
        per, unit = metric.unit
        for each in metric.values:
            cells = [Cell(each.step), Cell(str(each.repetition)), number_cell(each.value, per=per)]
            rows.append(Row([name_cell(metric.info.name, unit), *cells]))
    return table(("Metric", "Step", "Repetition", "Value"), rows)


def _courier_table(result: ToolResult) -> Table:
    rows = []
    for step in result.steps:
        for seen in step.witnesses:
            length_ns = seen.ended_wall_ns - seen.started_wall_ns if seen.started_wall_ns else 0
            cores = seen.cpu_ns / length_ns if seen.cpu_ns and length_ns > 0 else None
            late = (seen.started_wall_ns - seen.due_wall_ns) / 1e6 if seen.started_wall_ns else None
            pressure = 100 * seen.cpu_pressure if seen.cpu_pressure is not None else None
            peak = seen.memory_peak_bytes / 2**20 if seen.memory_peak_bytes else None
            figures = [late, cores, seen.throttled_ns / 1e6, pressure, seen.stolen_ns / 1e6, peak]
            figures += [float(getattr(seen, name)) for name in COURIER_FIELDS]
            cells = [name_cell(f"{step.number} {step.name}"), Cell(str(seen.rank)), Cell(seen.node)]
            rows.append(Row([*cells, *map(number_cell, figures)]))
    head = (
        "Step",
        "Rank",
        "Node",
        "start after due, ms",
        "cores used",
        "throttled, CPU ms",
        "CPU pressure, %",
        "stolen, ms",
        "memory peak, MiB",
        *(name.replace("_", " ") for name in COURIER_FIELDS),
    )
    return table(head, rows)


def _ranks(result: ToolResult) -> Table:
    rows = []
    for rank in result.ranks:
        memory_mib = rank.memory_bytes / 2**20 if rank.memory_bytes else None
        texts = map(Cell, (rank.role, rank.node, rank.address))
        values = map(number_cell, (rank.cores, memory_mib))
        rows.append(Row([name_cell(str(rank.number)), *texts, *values]))
    return table(("Rank", "Role", "Node", "Address", "Cores", Cell("Memory", unit="MiB")), rows)


def _facts(result: ToolResult) -> Table:
    rows = [Row([name_cell(name), Cell(text, "text")]) for name, text in result.facts.items()]
    return table(("Fact", Cell(style="text")), rows)
