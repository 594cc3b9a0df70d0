"""`report.html` of a benchmark that ran a tool on ranks: one self-contained page without scripts.

Every text that came from outside (names, output of tools) is escaped.
"""

from collections.abc import Sequence
from html import escape

from aiperf_svc.adapters.exports.inference_file import iso_time
from aiperf_svc.adapters.report import layout, tool_charts
from aiperf_svc.adapters.report.layout import cell, details, number, row, table
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.results.readable import readable_unit, size_text
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.tool_result import STATS, MetricResult, StepTable, ToolResult
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.workloads.steps import Plot

_HEADLINES = {
    Severity.VALID: "Nothing contradicts the tool's numbers.",
    Severity.DEGRADED: "Read with care: something below may have touched the numbers.",
    Severity.INVALID: "Do not use these numbers.",
}
_CAUSES = {
    "run-failed": "Do not use these numbers: the run failed.",
    "rank-lost": "Do not use these numbers: a rank was lost.",
    "step-failed": "Do not use these numbers: a step failed.",
    "bytes-differ": "Do not use these numbers: the network carried other bytes than the tool says.",
    "rank-starved": "Do not use these numbers: a rank had too little CPU.",
}
LARGE_NUMBERS = 6
OPEN_TABLES = 2
"""Tables of the run that are shown at once; more open on a click."""
WITNESSED = (
    "interface_rx_bytes", "interface_tx_bytes", "loopback_bytes", "dropped_packets",
    "tcp_retransmits", "udp_errors", "oom_kills",
)  # fmt: skip


def render(result: ToolResult, plots: Sequence[Plot]) -> bytes:
    """Render the file's content, with the plots of the workload."""
    config = escape(yaml_text(result.config))
    rows = [_objective(each, result) for each in result.slo]
    parts = [
        _header(result),
        layout.verdict_box(result.judgement, _HEADLINES, _CAUSES),
        _numbers(result),
        layout.objectives(rows),
        layout.plots(tool_charts.draw(result, plots)),
        _metrics(result),
        *_tables(result),
        _steps(result),
        details("Values of each step", _values(result)),
        details("All checks of the verdict", layout.checks(result.checks)),
        details("What the couriers saw", _witnesses(result)),
        details("Ranks", _ranks(result)),
        details("Facts", _facts(result)),
        details("Configuration", f"<pre>{config}</pre>"),
    ]
    return layout.document(result.name, parts)


def _header(result: ToolResult) -> str:
    nodes = list(dict.fromkeys(rank.node for rank in result.ranks if rank.node))
    facts = [result.workload, ", ".join(result.tools), ", ".join(nodes[:6])]
    if len(nodes) > 6:
        facts[-1] += f" and {len(nodes) - 6} more"
    facts.append(f"{iso_time(result.start_wall_ns)[:19].replace('T', ' ')} UTC")
    if result.was_cancelled:
        facts.append("stopped by the user")
    if result.failure:
        facts.append("failed")
    return layout.header(result.name, facts)


def _numbers(result: ToolResult) -> str:
    shown = [metric for metric in result.metrics if metric.info.in_table][:LARGE_NUMBERS]
    cells = []
    for metric in shown:
        divisor, unit = readable_unit(metric.info.unit, metric.max)
        cells.append((escape(metric.info.name), number(metric.avg / divisor), escape(unit)))
    return layout.numbers(cells)


def _objective(each: ObjectiveResult, result: ToolResult) -> str:
    info = next((m.info for m in result.metrics if m.info.tag == each.metric), None)
    divisor, unit = readable_unit(each.unit, max(abs(each.limit), abs(each.measured or 0.0)))
    return layout.objective(
        f"{info.name if info else each.metric} {each.stat}",
        each.bound,
        each.limit / divisor,
        unit,
        cell(None if each.measured is None else each.measured / divisor),
        ok=each.ok,
        judged=each.judged,
        reason=each.reason,
    )


def _metrics(result: ToolResult) -> str:
    rows = [_metric(metric) for metric in result.metrics]
    head = "".join(f"<th>{stat}</th>" for stat in STATS)
    shown = table(f"<th>Metric</th>{head}<th>values</th>", rows)
    return f"<h2>Metrics</h2>{shown}" if rows else ""


def _metric(metric: MetricResult) -> str:
    divisor, unit = readable_unit(metric.info.unit, metric.max)
    found = [metric.stat(stat) for stat in STATS]
    cells = "".join(cell(None if value is None else value / divisor) for value in found)
    return row(metric.info.name, unit, cells + cell(metric.count))


def _tables(result: ToolResult) -> list[str]:
    parts = []
    for place, each in enumerate(result.tables):
        where = tool_charts.place_text(each.step, each.repetition, result)
        title = each.table.name.replace("_", " ") + (f": {where}" if where else "")
        title = title[:1].upper() + title[1:]
        shown = _table(each)
        is_open = place < OPEN_TABLES
        parts.append(f"<h2>{escape(title)}</h2>{shown}" if is_open else details(title, shown))
    return parts


def _table(each: StepTable) -> str:
    columns = each.table.columns
    units = []
    for place, column in enumerate(columns):
        values = [abs(row[place] or 0.0) for row in each.table.rows]
        units.append(readable_unit(column.unit, max(values, default=0.0)))
    is_size = columns[0].unit == "bytes"
    head = "".join(
        f"<th>{escape(column.name.replace('_', ' '))}"
        f"{'' if is_size and not place else f' <small>{escape(unit)}</small>'}</th>"
        for place, (column, (_, unit)) in enumerate(zip(columns, units, strict=True))
    )
    rows = []
    for numbers in each.table.rows:
        first = numbers[0]
        name = (
            "–" if first is None else size_text(first) if is_size else number(first / units[0][0])
        )
        cells = "".join(
            cell(None if value is None else value / divisor)
            for value, (divisor, _) in zip(numbers[1:], units[1:], strict=True)
        )
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    return table(head, rows)


def _steps(result: ToolResult) -> str:
    rows = []
    for step in result.steps:
        state = "retried" if step.was_retried else "failed" if step.problem else "completed"
        tone = {"completed": "valid", "failed": "invalid", "retried": "degraded"}[state]
        attempt = f" <small>attempt {step.attempt}</small>" if step.attempt > 1 else ""
        rows.append(
            f'<tr class="{tone}"><th>{escape(step.name)}{attempt}</th>'
            f"<td>{step.repetition or '<i>prepares</i>'}</td>"
            f'<td class="state">{state}</td>{cell(step.duration_s or None)}'
            f"{cell(step.expected_s or None)}{cell(step.start_skew_ms)}"
            f'<td class="wide">{escape(step.problem)}</td></tr>'
        )
    head = "<th>Step</th><th>Repetition</th><th></th><th>Length <small>s</small></th>"
    head += "<th>Asked for <small>s</small></th><th>Start skew <small>ms</small></th>"
    accounts = result.accounts
    note = (
        f"{accounts.planned:,} planned = {accounts.completed:,} completed + {accounts.failed:,} "
        f"failed + {accounts.lost:,} not run; {accounts.retried:,} attempts were made again."
    )
    shown = table(head + '<th class="text"></th>', rows)
    return f'<h2>Steps</h2>{shown}<p class="note">{note}</p>'


def _values(result: ToolResult) -> str:
    rows = []
    for metric in result.metrics:
        divisor, unit = readable_unit(metric.info.unit, metric.max)
        for each in metric.values:
            cells = f"<td>{escape(each.step)}</td><td>{each.repetition}</td>"
            rows.append(row(metric.info.name, unit, cells + cell(each.value / divisor)))
    return table("<th>Metric</th><th>Step</th><th>Repetition</th><th>Value</th>", rows)


def _witnesses(result: ToolResult) -> str:
    rows = []
    for step in result.steps:
        for seen in step.witnesses:
            length_ns = seen.ended_wall_ns - seen.started_wall_ns if seen.started_wall_ns else 0
            cores = seen.cpu_ns / length_ns if seen.cpu_ns and length_ns > 0 else None
            late = (seen.started_wall_ns - seen.due_wall_ns) / 1e6 if seen.started_wall_ns else None
            pressure = 100 * seen.cpu_pressure if seen.cpu_pressure is not None else None
            peak = seen.memory_peak_bytes / 2**20 if seen.memory_peak_bytes else None
            figures = [cores, seen.throttled_ns / 1e6, pressure, seen.stolen_ns / 1e6, peak]
            figures += [float(getattr(seen, name)) for name in WITNESSED]
            cells = "".join(map(cell, figures))
            rows.append(
                f"<tr><th>{step.number} {escape(step.name)}</th><td>{seen.rank}</td>"
                f"<td>{escape(seen.node)}</td>{cell(late)}{cells}</tr>"
            )
    names = [
        "start after due, ms",
        "cores used",
        "throttled, CPU ms",
        "CPU pressure, %",
        "stolen, ms",
    ]
    names += ["memory peak, MiB", *(name.replace("_", " ") for name in WITNESSED)]
    head = "<th>Step</th><th>Rank</th><th>Node</th>" + "".join(f"<th>{n}</th>" for n in names)
    return table(head, rows)


def _ranks(result: ToolResult) -> str:
    rows = [
        f"<tr><th>{rank.number}</th><td>{escape(rank.role)}</td><td>{escape(rank.node)}</td>"
        f"<td>{escape(rank.address)}</td>{cell(rank.cores)}"
        f"{cell(rank.memory_bytes / 2**20 if rank.memory_bytes else None)}</tr>"
        for rank in result.ranks
    ]
    head = "<th>Rank</th><th>Role</th><th>Node</th><th>Address</th><th>Cores</th>"
    return table(head + "<th>Memory <small>MiB</small></th>", rows)


def _facts(result: ToolResult) -> str:
    rows = [
        f'<tr><th>{escape(name)}</th><td class="text">{escape(text)}</td></tr>'
        for name, text in result.facts.items()
    ]
    return table('<th>Fact</th><th class="text"></th>', rows)
