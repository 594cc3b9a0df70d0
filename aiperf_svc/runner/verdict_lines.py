"""Lines about the verdict and the objectives of any benchmark, on a terminal."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aiperf_svc.core.results.readable import readable_unit
from aiperf_svc.core.results.slo_results import outcome_word
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number

VERDICT_STYLES = {"valid": "bold green", "degraded": "bold yellow", "invalid": "bold red"}


def print_objectives(objectives: list[dict[str, Any]], console: Console) -> None:
    """A table of all, then why some do not hold."""
    console.print(_objectives(objectives))
    for o in objectives:
        if o.get("reason"):
            mark = _OUTCOMES[_outcome(o)][0]
            console.print(indented(Text(f"{mark} {o['metric']} {o['stat']}: {o['reason']}"), 2))


_OUTCOMES = {"held": ("✓", "green"), "missed": ("✗", "bold red"), "not judged": ("!", "yellow")}
"""The mark and the style of each outcome."""


def _outcome(objective: dict[str, Any]) -> str:
    return outcome_word(ok=objective["ok"], judged=objective.get("judged", True))


def _objectives(objectives: list[dict[str, Any]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="Service level objectives", title_justify="left"
    )
    for name in ("", "objective", "measured", "limit", "unit"):
        table.add_column(name, justify="right" if name in ("measured", "limit") else "left")
    for o in objectives:
        word = _outcome(o)
        mark, style = _OUTCOMES[word]
        table.add_row(
            Text(f"{mark} {word}", style=style),
            f"{o['metric']} {o['stat']}",
            number(o["measured"], missing="none"),
            f"{'≤' if o['bound'] == 'max' else '≥'} {number(o['limit'])}",
            o["unit"],
        )
    return table


def print_verdict(
    title: str, verdict: str, cause: str, reasons: Iterable[dict[str, Any]], console: Console
) -> None:
    """The verdict and the checks that did not pass."""
    label = f"{verdict}: {cause}" if cause else verdict
    line = Text.assemble(f"{title}: ", (label, VERDICT_STYLES.get(verdict, "bold")))
    if verdict == "invalid":
        line.append(" — do not use these numbers")
    console.print(line)
    for reason in reasons:
        style = VERDICT_STYLES.get(reason["severity"], "")
        mark = "✗ " if reason["severity"] == "invalid" else "! "
        console.print(indented(Text.assemble((mark, style), one_line(reason["text"])), 2))
        divisor, unit = readable_unit(reason["unit"], reason["measured"])
        measured, limit = (number(reason[name] / divisor) for name in ("measured", "limit"))
        numbers = f"{reason['check']}: {measured} {unit}, limit {limit} {unit}"
        console.print(indented(Text(f"{numbers} → {reason['remedy']}", style="dim"), 4))


def print_text(console: Console, text: str | Text, style: str | None = None) -> None:
    """Print a line: between words a terminal breaks it, and in a file it stays whole."""
    console.print(text, style=style, soft_wrap=not console.is_terminal, markup=False)


def indented(text: Text, columns: int) -> Padding:
    """A text, all of whose lines begin so many columns to the right."""
    return Padding(text, (0, 0, 0, columns), expand=False)
