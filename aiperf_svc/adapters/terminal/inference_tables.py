"""Prints a finished inference run on a terminal: results, errors, objectives and verdict."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import (
    indented,
    print_objectives,
    print_tables,
    print_text,
    print_verdict,
)
from aiperf_svc.core.events.report import event_tables
from aiperf_svc.core.quality.gate import QualityResult
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.inference_result import EndpointView, ErrorCount, InferenceResult
from aiperf_svc.core.results.joint_result import of_groups
from aiperf_svc.core.results.remarks import remarks
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind, Metric
from aiperf_svc.domain.number_text import number

WIDE = 100
"""Width of the whole table; a narrower terminal shows fewer statistics."""
STATS = ("avg", "min", "p50", "p90", "p99", "max")
NARROW_STATS = ("avg", "p50", "p90", "p99")
SHORT_UNITS = {"tokens/sec/user": "tok/s"}
"""Short form of a unit that is too long for a row."""
SHOWN_ERRORS = 8
SHOWN_MESSAGE = 400
"""Maximum length of an error's first message, enough for a certificate's problem and its remedy."""


def print_inference_result(found: InferenceResult, console: Console) -> None:
    """Print the metrics of a run, its errors and objectives, and its verdict."""
    console.print(_title(found.name, found.config_view.endpoint), style="bold")
    if not all(stats.is_single for stats in found.metrics.values()):
        console.print(_distributions(found, console.width))
    in_two = _scalars(found, columns=2)
    needed = console.measure(in_two, options=console.options.update(max_width=WIDE)).maximum
    console.print(in_two if needed <= console.width else _scalars(found, columns=1))
    _print_notes(found, console)
    tables = [*found.shown_tables, *event_tables(found.events)]
    if found.slo or any(each.rows for each in tables):
        console.print()
    print_tables(tables, console)
    _print_quality(found.quality, console)
    _print_groups(found, console)
    if found.errors:
        console.print(_errors(found.errors))
    if found.slo:
        shown = [each.in_unit(*CATALOG[each.metric].scale) for each in found.slo]
        print_objectives(shown, console)
    _print_accounts(found.accounts, console)
    for text in remarks(found):
        print_text(console, one_line(text))
    print_verdict("Verdict on the client", found.verdict, found.cause, found.reasons, console)
    if found.system is not None:
        _print_system(found.system, console)


def _print_groups(found: InferenceResult, console: Console) -> None:
    if not found.targets and not found.models:
        return
    # Only runs with several targets or models need this.
    from aiperf_svc.adapters.terminal.joint_tables import joint_tables

    for joint in (of_groups(found, "targets"), of_groups(found, "models")):
        if joint.members:
            for table in joint_tables(joint, console.width):
                console.print(table)


def _title(name: str, endpoint: EndpointView) -> str:
    parts = [
        name,
        _with_more(endpoint.url, endpoint.urls),
        _with_more(endpoint.model or "", endpoint.models),
        endpoint.type,
        "streaming" if endpoint.streaming else "",
    ]
    return " · ".join(one_line(part) for part in parts if part)


def _with_more(first: str, others: Sequence[str]) -> str:
    return f"{first} and {len(others)} more" if others else first


# --- metrics -------------------------------------------------------------------------------------


def _shown(found: InferenceResult, *, is_scalar: bool) -> list[tuple[Metric, MetricStats]]:
    return [
        (metric, found.metrics[metric.tag])
        for metric in METRICS
        if metric.in_table
        and (metric.kind is Kind.SCALAR) is is_scalar
        and metric.tag in found.metrics
    ]


def _distributions(found: InferenceResult, width: int) -> Table:
    """Return the metrics with percentiles. With enough requests, p99.9 replaces the deviation."""
    metrics = _shown(found, is_scalar=False)
    reliable = any(
        stats.stat("p99_9") is not None and not stats.is_unreliable("p99_9")
        for metric, stats in metrics
        if metric.kind is Kind.RECORD
    )
    stats: tuple[str, ...] = (*STATS[:5], "p99_9", "max") if reliable else (*STATS, "std")
    if width < WIDE:
        stats = NARROW_STATS
    rows = []
    for metric, values in metrics:
        per, unit = metric.scale
        name = Text.assemble(metric.name, (f" ({SHORT_UNITS.get(unit, unit)})", "dim"))
        rows.append((name, *(_stat(values, stat, per=per) for stat in stats)))
    table = text_table(("", *(stat.replace("_", ".") for stat in stats)), rows)
    for column in table.columns[1:]:
        column.no_wrap = True
    return table


def _stat(found: MetricStats, stat: str, *, per: float) -> Text:
    value, beyond = found.stat(stat), (found.beyond or {}).get(stat)
    if value is None and beyond is not None:
        return Text(f">{number(beyond, per=per)}", style="yellow")
    mark = "*" if found.is_unreliable(stat) and value is not None else ""
    return Text(f"{number(value, per=per)}{mark}", style="dim" if mark or value is None else "")


def _scalars(found: InferenceResult, *, columns: int) -> Table:
    cells = []
    for metric, stats in _shown(found, is_scalar=True):
        per, unit = metric.scale
        value = Text(number(stats.stat("avg"), per=per))
        cells.append((Text.assemble(metric.name), value, "" if unit == "count" else unit))
    table = Table.grid(padding=(0, 1))
    for _ in range(columns):
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", no_wrap=True, min_width=14)
    lines = -(-len(cells) // columns)
    for line in range(lines):
        table.add_row(*(part for cell in cells[line::lines] for part in cell))
    return table


def _print_quality(quality: QualityResult | None, console: Console) -> None:
    """Print the score of the quality gate, and the notes on the answers."""
    if quality is None:
        return
    line = Text("Quality: ")
    if quality.min_score is not None:
        line.append(*(("✓ ", "green") if quality.is_met else ("✗ ", "bold red")))
    line.append(quality.text)
    line.append("" if quality.min_score is None else f", minimum {quality.min_score:.1%}")
    print_text(console, line)
    graders = (f"{name} {each.right:,}/{each.issued:,}" for name, each in quality.graders.items())
    for text in (*quality.notes, ", ".join(graders)):
        print_text(console, f"  {text}", style="dim")


def _print_notes(found: InferenceResult, console: Console) -> None:
    """Print the meaning of the marks in the table, and its omissions."""
    metrics = _shown(found, is_scalar=False)
    shown = {*STATS, "p99_9"}
    if any(shown & {*(stats.unreliable or ())} for _, stats in metrics):
        console.print("* fewer than one request is expected beyond this percentile", style="dim")
    censored = [(metric, stats.censored_share) for metric, stats in metrics if stats.censored_share]
    if censored:
        names = ", ".join(f"{metric.name} {share:.2%}" for metric, share in censored)
        print_text(
            console,
            f"> the value is higher; requests cut off before their responses ended: {names}",
            style="dim",
        )
    if found.token_source:
        print_text(console, Text(one_line(found.token_source), style="dim"))
    for note in found.notes:
        print_text(console, Text(one_line(note), style="yellow"))


# --- errors and objectives -----------------------------------------------------------------------


def _errors(errors: Sequence[ErrorCount]) -> Table:
    rows: list[tuple[str | Text, ...]] = []
    for error in errors[:SHOWN_ERRORS]:
        details = error.error_details
        message = Text(one_line(details.message)[:SHOWN_MESSAGE], style="red")
        rows.append((number(error.count), details.type, str(details.code or ""), message))
    if len(errors) > SHOWN_ERRORS:
        rest = sum(error.count for error in errors[SHOWN_ERRORS:])
        rows.append((number(rest), f"{len(errors) - SHOWN_ERRORS} more kinds"))
    head = ("count", "kind", "status", "first message")
    return text_table(head, rows, title="Errors", texts=(1, 3))


# --- accounts and verdict ------------------------------------------------------------------------


def _print_accounts(accounts: Accounts, console: Console) -> None:
    outcomes = [
        f"{number(count)} {name}"
        for name in ("completed", "errored", "cancelled", "abandoned", "unsent", "lost")
        if (count := getattr(accounts, name)) or name in ("completed", "errored")
    ]
    lost = f" + {number(accounts.records_lost)} lost" if accounts.records_lost else ""
    retries = f" + {number(accounts.retries)} retries" if accounts.retries else ""
    print_text(
        console,
        f"\nAccounts: {number(accounts.issued)} issued = {' + '.join(outcomes)}; "
        f"{number(accounts.requests_sent)} requests sent = {number(accounts.records)} "
        f"records{lost}{retries}",
    )
    for violation in accounts.violations:
        print_text(console, Text(f"  ✗ {one_line(violation)}", style="bold red"))


def _print_system(system: SystemReport, console: Console) -> None:
    """Print what the metrics of servers and GPU exporters show."""
    print_verdict("Verdict on the system", system.verdict, "", system.reasons, console)
    for check in system.checks:
        if check.severity is Severity.INFO:
            console.print(indented(Text(one_line(check.text), style="dim"), 2))
