"""Lines about the verdict, the objectives and the prefix cache of benchmarks, on a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.core.results.cache_stats import CACHE_COLUMNS, CacheUse, cache_rows
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number, quantity

VERDICT_STYLES = {"valid": "bold green", "degraded": "bold yellow", "invalid": "bold red"}


def print_objectives(objectives: Sequence[ObjectiveResult], console: Console) -> None:
    """Print a table of all objectives, and why some do not hold."""
    rows = [
        (
            Text(f"{_OUTCOMES[each.outcome][0]} {each.outcome}", style=_OUTCOMES[each.outcome][1]),
            f"{each.metric} {each.stat}",
            number(each.measured, missing="none"),
            f"{'≤' if each.bound == 'max' else '≥'} {number(each.limit)}",
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
"""The mark and the style of each outcome."""


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
        measured, limit = (
            quantity(value, reason.unit, high=reason.measured)
            for value in (reason.measured, reason.limit)
        )
        numbers = f"{reason.check}: {measured}, limit {limit}"
        console.print(indented(Text(f"{numbers} → {reason.remedy}", style="dim"), 4))


def print_cache_use(use: CacheUse | None, console: Console) -> None:
    """Print the server's cache hits by turn, of conversations."""
    if use is None:
        return
    title = "Prefix cache by turn"
    console.print(text_table(CACHE_COLUMNS, cache_rows(use), title=title, texts=()))
    print_text(console, use.sessions.text, style="dim")
    requests = sum(each.requests for each in use.turns)
    known = sum(each.known for each in use.turns)
    if known < requests:
        share = f"{known / requests:.1%}"
        print_text(console, f"{share} of the requests state cached tokens", style="dim")


def print_text(console: Console, text: str | Text, style: str | None = None) -> None:
    """Print a line: between words a terminal breaks it, and in a file it stays whole."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, markup=False)


def indented(text: Text, columns: int) -> Padding:
    """A text whose lines are all indented by this number of columns."""
    return Padding(text, (0, 0, 0, columns), expand=False)
