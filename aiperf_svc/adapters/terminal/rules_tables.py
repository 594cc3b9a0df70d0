"""Prints the results of a rule set for finished runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.rules.report import CurvePoint, Outcome, PointOutcome, RulesReport
from aiperf_svc.domain.number_text import number

_STYLES = {Outcome.MET: "green", Outcome.NOT_MET: "bold red", Outcome.UNCHECKED: "dim"}


def print_report(report: RulesReport, console: Console) -> None:
    """Print the points, the requirements and their count."""
    print_text(console, f"{report.version}, {report.source}", style="bold")
    console.print(_points(report.points))
    console.print(_requirements(report))
    counts = ", ".join(f"{report.count(each)} {each}" for each in Outcome)
    print_text(console, f"{counts}. This is not an official result.", style="bold")


def _points(points: Sequence[CurvePoint]) -> Table:
    head = ("concurrency", "region", "numbers of", "tokens/s", "tokens/s per user")
    rows = []
    for each in points:
        values = (each.system_tps, each.tps_per_user, each.ttft_p90_ms, each.tpot_p90_ms)
        facts = (f"{each.concurrency:,}", each.region or "–", each.basis)
        rows.append((*facts, *map(number, values)))
    return text_table((*head, "TTFT p90 (ms)", "TPOT p90 (ms)"), rows, texts=(1, 2))


def _requirements(report: RulesReport) -> Table:
    rows = []
    for each in report.requirements:
        text = each.text or "\n".join(_lines(each.points, each.outcome))
        state = Text(str(each.outcome), style=_STYLES[each.outcome])
        rows.append((state, each.rule, each.section, Text(text)))
    return text_table(("", "requirement", "section", "found"), rows, texts=range(4))


def _lines(points: Sequence[PointOutcome], outcome: Outcome) -> list[str]:
    """Return the texts of the points with this outcome, each text once with its concurrencies."""
    texts: dict[str, list[int]] = {}
    for each in points:
        if each.outcome is outcome:
            texts.setdefault(each.text, []).append(each.concurrency)
    if len(texts) == 1:
        return list(texts)
    if outcome is Outcome.MET:
        return [f"all {len(points)} points"]
    return [f"{', '.join(map(str, levels))}: {text}" for text, levels in texts.items()]
