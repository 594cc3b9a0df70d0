"""Lines and tables about verdicts and objectives of benchmarks, for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import exact, number, quantity
from aiperf_svc.domain.shown_table import ShownTable

MAX_ROWS = 40
"""Maximum number of rows in a table of results."""
VERDICT_STYLES = {"valid": "bold green", "degraded": "bold yellow", "invalid": "bold red"}


def print_objectives(objectives: Sequence[ObjectiveResult], console: Console) -> None:
    """Print a table of all objectives, and the reasons why some do not hold."""
    rows = [
        (
            Text(f"{_OUTCOMES[each.outcome][0]} {each.outcome}", style=_OUTCOMES[each.outcome][1]),
            f"{each.metric} {each.stat}",
            number(each.measured, missing="none"),
            f"{'≤' if each.bound == 'max' else '≥'} {exact(each.limit)}",
            each.unit,
        )
        for each in objectives
    ]
    head, title = ("", "objective", "measured", "limit", "unit"), "Service level objectives"
    console.print(text_table(head, rows, title=title, texts=(0, 1, 4)))
    for each in objectives:
        if each.reason:
            mark = _OUTCOMES[each.outcome][0]
            console.print(indented(Text(f"{mark} {each.metric} {each.stat}: {each.reason}"), 2))


_OUTCOMES = {"held": ("✓", "green"), "missed": ("✗", "bold red"), "not judged": ("!", "yellow")}
"""Mark and style of each outcome."""


def print_verdict(
    title: str, verdict: str, cause: str, reasons: Iterable[Reason], console: Console
) -> None:
    """Print the verdict and the checks that did not pass."""
    label = f"{verdict}: {cause}" if cause else verdict
    line = Text.assemble(f"{title}: ", (label, VERDICT_STYLES.get(verdict, "bold")))
    if verdict == Severity.INVALID:
        line.append(" — do not use these numbers")
    console.print(line)
    for reason in reasons:
        style = VERDICT_STYLES.get(reason.severity, "")
        mark = "✗ " if reason.severity is Severity.INVALID else "! "
        console.print(indented(Text.assemble((mark, style), one_line(reason.text)), 2))
        measured, limit = (quantity(each, reason.unit) for each in (reason.measured, reason.limit))
        numbers = f"{reason.check}: {measured}, limit {limit}"
        console.print(indented(Text(f"{numbers} → {reason.remedy}", style="dim"), 4))


def print_tables(tables: Iterable[ShownTable], console: Console) -> None:
    """Print the tables that have rows, each with its notes."""
    for each in tables:
        if shown := each.rows[:MAX_ROWS]:
            found = text_table(each.columns, shown, title=each.title, texts=each.texts)
            console.print(found)
        if len(each.rows) > MAX_ROWS:
            print_text(console, f"{len(each.rows) - MAX_ROWS:,} more in report.html", style="dim")
        for style, notes in (("dim", each.notes), ("bold red", each.alerts)):
            for note in notes:
                print_text(console, one_line(note), style=style)


def print_text(console: Console, text: str | Text, style: str | None = None) -> None:
    """Print a line. A terminal breaks it between words; in a file it stays whole."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, markup=False)


def indented(text: Text, columns: int) -> Padding:
    """Return a text with all lines indented by this number of columns."""
    return Padding(text, (0, 0, 0, columns), expand=False)
