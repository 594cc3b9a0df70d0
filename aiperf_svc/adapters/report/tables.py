"""The tables of the report, as HTML."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from aiperf_svc.core.results.accounts import Accounts
from aiperf_svc.core.results.slo import ObjectiveResult
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.percentiles import Distribution
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind

STATS = ("avg", "min", "p50", "p90", "p99", "p99_9", "max", "std")
_SHORT_UNITS = {
    "requests/sec": "/s",
    "tokens/sec": "tokens/s",
    "tokens/sec/user": "tokens/s",
    "sec": "s",
    "requests": "",
    "count": "",
}


def number(value: float) -> str:
    """Format a number with four significant digits, or all digits of a whole number: 0.0312, 12.35,
    2,969, 12,346. Below a thousandth (mostly a microsecond) it is empty."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return "&lt; 0.001"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def headline(summary: Summary, name: str, tag: str, stat: str) -> str:
    """Render one large number; empty if it was not measured."""
    value = summary.measured(tag, stat)
    if value is None:
        return ""
    unit = _SHORT_UNITS.get(CATALOG[tag].unit, CATALOG[tag].unit)
    return (
        f"<div><dt>{escape(name)}</dt><dd>{number(value)} <small>{escape(unit)}</small></dd></div>"
    )


def distributions(summary: Summary, tags: set[str]) -> str:
    """Render the per-request and pooled metrics among `tags`, one row each."""
    rows, notes = [], set()
    for metric in METRICS:
        if metric.tag == "effective_concurrency" and metric.tag in tags and summary.concurrency:
            cells = "".join(_cell(summary.concurrency.get(stat)) for stat in STATS)
            rows.append(_row(metric.name, metric.unit, cells))
        measured = summary.metrics.get(metric.tag)
        if metric.tag not in tags or measured is None:
            continue
        found = measured.distribution
        cells = "".join(_stat(found, stat) for stat in STATS)
        rows.append(_row(metric.name, metric.unit, cells))
        if found.censored:
            notes.add(
                f"{metric.name}: {found.censored_share:.2%} were cut before their responses ended; "
                "&gt; says what a number is known to lie beyond."
            )
        if any(stat in found.unreliable for stat in STATS):
            notes.add("* fewer than one request is expected beyond this percentile.")
    head = "".join(f"<th>{stat.replace('_', '.')}</th>" for stat in STATS)
    return _table(f"<th>Metric</th>{head}", rows) + "".join(
        f'<p class="note">{note}</p>' for note in sorted(notes)
    )


def scalars(summary: Summary, tags: set[str]) -> str:
    """Render the metrics among `tags` that are one number."""
    rows = [
        _row(metric.name, metric.unit, _cell(summary.scalars[metric.tag]))
        for metric in METRICS
        if metric.tag in tags and metric.tag in summary.scalars
    ]
    return f"<br>{_table('<th>Metric</th><th>Value</th>', rows)}" if rows else ""


def objectives(summary: Summary) -> str:
    """Render every SLO with its measured value."""
    rows = [_objective(result, summary) for result in summary.objectives]
    head = "<th>Objective</th><th>Limit</th><th>Measured</th><th></th>"
    head += '<th class="text"></th>'
    return f"<h2>Service level objectives</h2>{_table(head, rows)}" if rows else ""


def _objective(result: ObjectiveResult, summary: Summary) -> str:
    metric = CATALOG[result.metric]
    stat = "" if metric.kind is Kind.SCALAR else f" {result.stat}"
    measured = summary.metrics.get(metric.tag)
    cell = _cell(result.measured) if measured is None else _stat(measured.distribution, result.stat)
    return (
        f'<tr class="{"valid" if result.ok else "invalid"}"><th>{escape(metric.name + stat)}</th>'
        f"<td>{'≤' if result.bound == 'max' else '≥'} {number(result.limit)} "
        f"{escape(metric.unit)}</td>{cell}"
        f'<td class="state">{"held" if result.ok else "missed"}</td>'
        f'<td class="wide">{escape(result.reason)}</td></tr>'
    )


def checks(reasons: Iterable[Reason]) -> str:
    """Render all checks of the verdict."""
    rows = [
        f'<tr class="{reason.severity}"><th>{escape(reason.check.replace("_", " "))}</th>'
        f'<td class="state">{escape(reason.severity)}</td>'
        f"<td>{number(reason.measured)}</td><td>{number(reason.limit)}</td>"
        f'<td class="wide">{escape(reason.text)}</td></tr>'
        for reason in reasons
    ]
    head = '<th>Check</th><th>Result</th><th>Measured</th><th>Limit</th><th class="text"></th>'
    return _table(head, rows)


def errors(summary: list[dict[str, Any]]) -> str:
    """Render the errors by kind, with the first message of each."""
    rows = []
    for error in summary:
        details = error["error_details"]
        code = "" if details["code"] is None else str(details["code"])
        rows.append(
            f"<tr><th>{escape(details['type'])}</th><td>{code}</td><td>{error['count']:,}</td>"
            f'<td class="wide">{escape(details["message"])}</td></tr>'
        )
    head = '<th>Error</th><th>Status</th><th>Count</th><th class="text">First message</th>'
    return f"<h2>Errors</h2>{_table(head, rows)}"


def accounts(books: Accounts) -> str:
    """Render the accounts: credits and requests by outcome."""
    figures = msgspec.structs.asdict(books)
    rows = [
        _row(name.replace("_", " "), "", _cell(float(value)))
        for name, value in figures.items()
        if name != "violations"
    ]
    return _table("<th>Credits and requests</th><th>Count</th>", rows)


def finish_reasons(counts: dict[str, int]) -> str:
    """Render the number of responses by finish reason, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [_row(name.replace("_", " "), "", _cell(float(count))) for name, count in ordered]
    return _table("<th>Finish reason</th><th>Requests</th>", rows)


def _stat(found: Distribution, stat: str) -> str:
    value = found.stats.get(stat)
    mark = "<i>*</i>" if stat in found.unreliable else ""
    if value is not None:
        return f"<td>{number(value)}{mark}</td>"
    if stat in found.beyond:
        return f"<td><i>&gt; {number(found.beyond[stat])}</i></td>"
    return f"<td><i>–</i>{mark}</td>"


def _cell(value: float | None) -> str:
    return "<td><i>–</i></td>" if value is None else f"<td>{number(value)}</td>"


def _row(name: str, unit: str, cells: str) -> str:
    small = f" <small>{escape(unit)}</small>" if unit not in ("", "requests", "count") else ""
    return f"<tr><th>{escape(name)}{small}</th>{cells}</tr>"


def _table(head: str, rows: Sequence[str]) -> str:
    if not rows:
        return ""
    return (
        f'<section class="card"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )
