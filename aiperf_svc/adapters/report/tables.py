"""The tables of the report of an inference benchmark, as HTML."""

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from aiperf_svc.adapters.report import layout
from aiperf_svc.adapters.report.layout import cell, number, row, table
from aiperf_svc.core.results.accounts import Accounts
from aiperf_svc.core.results.inference_result import ErrorCount
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.percentiles import Distribution
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


def large_numbers(summary: Summary, wanted: Iterable[tuple[str, str, str]]) -> str:
    """Render the large numbers at the top: name, tag and statistic of each. Those that were not
    measured are left out."""
    cells = []
    for name, tag, stat in wanted:
        value = summary.measured(tag, stat)
        if value is not None:
            unit = _SHORT_UNITS.get(CATALOG[tag].unit, CATALOG[tag].unit)
            cells.append((escape(name), number(value), escape(unit)))
    return layout.numbers(cells)


def goodput_tiers(summary: Summary) -> str:
    """Render the goodput by each set of limits; empty without any."""
    if not summary.goodput_tiers:
        return ""
    rows = []
    for tier in summary.goodput_tiers:
        limits = ", ".join(f"{metric} {limit}" for metric, limit in tier.limits.items())
        share = None if tier.attainment is None else 100 * tier.attainment
        cells = "".join(map(cell, (tier.good_request_count, share, tier.goodput)))
        rows.append(f"<tr><th>{escape(tier.name)}</th><td>{escape(limits)}</td>{cells}</tr>")
    head = "<th>Tier</th><th>Limits</th><th>good requests</th><th>% of those due</th>"
    return "<h2>Goodput</h2>" + table(f"{head}<th>requests/s</th>", rows)


def distributions(summary: Summary, tags: set[str]) -> str:
    """Render the per-request and pooled metrics among `tags`, one row each."""
    rows, notes = [], set()
    for metric in METRICS:
        if metric.tag == "effective_concurrency" and metric.tag in tags and summary.concurrency:
            cells = "".join(cell(summary.concurrency.get(stat)) for stat in STATS)
            rows.append(row(metric.name, metric.unit, cells))
        measured = summary.metrics.get(metric.tag)
        if metric.tag not in tags or measured is None:
            continue
        found = measured.distribution
        cells = "".join(_stat(found, stat) for stat in STATS)
        rows.append(row(metric.name, metric.unit, cells))
        if found.censored:
            notes.add(
                f"{metric.name}: {found.censored_share:.2%} were cut before their responses ended; "
                "&gt; says what a number is known to lie beyond."
            )
        if any(stat in found.unreliable for stat in STATS):
            notes.add("* fewer than one request is expected beyond this percentile.")
    head = "".join(f"<th>{stat.replace('_', '.')}</th>" for stat in STATS)
    return table(f"<th>Metric</th>{head}", rows) + "".join(
        f'<p class="note">{note}</p>' for note in sorted(notes)
    )


def scalars(summary: Summary, tags: set[str]) -> str:
    """Render the metrics among `tags` that are one number."""
    rows = [
        row(metric.name, metric.unit, cell(summary.scalars[metric.tag]))
        for metric in METRICS
        if metric.tag in tags and metric.tag in summary.scalars
    ]
    return f"<br>{table('<th>Metric</th><th>Value</th>', rows)}" if rows else ""


def objectives(summary: Summary) -> str:
    """Render every SLO with its measured value."""
    return layout.objectives([_objective(result, summary) for result in summary.objectives])


def _objective(result: ObjectiveResult, summary: Summary) -> str:
    metric = CATALOG[result.metric]
    stat = "" if metric.kind is Kind.SCALAR else f" {result.stat}"
    measured = summary.metrics.get(metric.tag)
    shown = cell(result.measured) if measured is None else _stat(measured.distribution, result.stat)
    return layout.objective(
        metric.name + stat,
        result.bound,
        result.limit,
        metric.unit,
        shown,
        ok=result.ok,
        judged=result.judged,
        reason=result.reason,
    )


def errors(counts: Sequence[ErrorCount]) -> str:
    """Render the errors by kind, with the first message of each."""
    rows = []
    for error in counts:
        details = error.error_details
        code = "" if details.code is None else str(details.code)
        rows.append(
            f"<tr><th>{escape(details.type)}</th><td>{code}</td><td>{error.count:,}</td>"
            f'<td class="wide">{escape(details.message)}</td></tr>'
        )
    head = '<th>Error</th><th>Status</th><th>Count</th><th class="text">First message</th>'
    return f"<h2>Errors</h2>{table(head, rows)}"


def accounts(books: Accounts) -> str:
    """Render the accounts: credits and requests by outcome."""
    figures = msgspec.structs.asdict(books)
    rows = [
        row(name.replace("_", " "), "", cell(float(value)))
        for name, value in figures.items()
        if name != "violations"
    ]
    return table("<th>Credits and requests</th><th>Count</th>", rows)


def finish_reasons(counts: dict[str, int]) -> str:
    """Render the number of responses by finish reason, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [row(name.replace("_", " "), "", cell(float(count))) for name, count in ordered]
    return table("<th>Finish reason</th><th>Requests</th>", rows)


def _stat(found: Distribution, stat: str) -> str:
    value = found.stats.get(stat)
    mark = "<i>*</i>" if stat in found.unreliable else ""
    if value is not None:
        return f"<td>{number(value)}{mark}</td>"
    if stat in found.beyond:
        return f"<td><i>&gt; {number(found.beyond[stat])}</i></td>"
    return f"<td><i>–</i>{mark}</td>"
