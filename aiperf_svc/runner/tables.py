"""The result table."""

from rich.console import Console
from rich.table import Table

from aiperf_svc.runner.outcome import Outcome


def render(outcome: Outcome, console: Console) -> None:
    """Print everything."""
    table = Table("metric", "unit", "avg", "p50", "p99")
    for tag, m in (outcome.summary or {}).items():
        if isinstance(m, dict) and "unit" in m and "avg" in m:
            table.add_row(tag, m["unit"], *(str(m.get(k)) for k in ("avg", "p50", "p99")))
    console.print(table)
    console.print(f"{outcome.state} {outcome.reason} {outcome.artifacts} {outcome.artifact_error}")
