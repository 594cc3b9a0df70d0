"""The metric tables of `docs/metrics.md`, printed from the catalog."""

from collections.abc import Iterable

from aiperf_svc.domain.metric_catalog import METRICS, Kind, Metric, Population


def tables() -> str:
    """Return a Markdown table of the distributions, and one of the single numbers."""
    distributions = (metric for metric in METRICS if metric.kind is not Kind.SCALAR)
    scalars = (metric for metric in METRICS if metric.kind is Kind.SCALAR)
    return (
        "### Distributions\n\n"
        + _table("Covers", (_distribution(metric) for metric in distributions))
        + "\n### Single numbers\n\n"
        + _table("Source", (_cells(metric, metric.source) for metric in scalars))
    )


def _distribution(metric: Metric) -> tuple[str, ...]:
    covers = {Kind.POOLED: "all chunks", Kind.TIMED: "the time"}.get(metric.kind)
    if metric.population is Population.CONNECTIONS:
        covers = "all connections"
    return _cells(metric, covers or f"{metric.population} requests")


def _cells(metric: Metric, third: str) -> tuple[str, ...]:
    formula = metric.formula.replace("|", "\\|")
    needs = f"; needs {metric.needs}" if metric.needs else ""
    ours = " †" if metric.is_ours else ""
    return f"`{metric.tag}`{ours}", metric.unit, third, formula + needs, metric.better


def _table(third: str, rows: Iterable[tuple[str, ...]]) -> str:
    head = ("Tag", "Unit", third, "Formula", "Better")
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
