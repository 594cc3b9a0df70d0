"""Tables in the documentation that are generated from code: metrics, flags and workloads."""

from collections.abc import Iterable, Sequence

from aiperf_svc.cli.commands.workloads import describe
from aiperf_svc.cli.flags import GROUPS
from aiperf_svc.cli.foreign_flags import TABLE
from aiperf_svc.cli.key_docs import flag_text
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.domain.metric_catalog import METRICS, Kind, Metric, Population
from aiperf_svc.workloads.registry import tool


def metric_tables() -> str:
    """Return the tables of `docs/metrics.md`: distributions, then single numbers."""
    distributions = (metric for metric in METRICS if metric.kind is not Kind.SCALAR)
    scalars = (metric for metric in METRICS if metric.kind is Kind.SCALAR)
    return (
        "### Distributions\n\n"
        + _metrics("Covers", (_distribution(metric) for metric in distributions))
        + "\n### Single numbers\n\n"
        + _metrics("Source", (_cells(metric, metric.source) for metric in scalars))
    )


def _distribution(metric: Metric) -> tuple[str, ...]:
    covers = {Kind.POOLED: "all chunks", Kind.TIMED: "the time"}.get(metric.kind)
    if metric.population is Population.CONNECTIONS:
        covers = "all connections"
    return _cells(metric, covers or f"{metric.population} requests")


def _cells(metric: Metric, third: str) -> tuple[str, ...]:
    needs = f"; needs {metric.needs}" if metric.needs else ""
    ours = " †" if metric.is_ours else ""
    return f"`{metric.tag}`{ours}", metric.unit, third, metric.formula + needs, metric.better


def _metrics(third: str, rows: Iterable[tuple[str, ...]]) -> str:
    return _table(("Tag", "Unit", third, "Formula", "Better"), rows)


def flag_tables() -> str:
    """Return the tables of `docs/flags.md`, one for each group of flags."""
    return "\n".join(
        f"### {title.capitalize()}\n\n"
        + _table(
            ("Flag", "Config key", "Meaning"),
            ((_quoted(flag.names), f"`{flag.key}`", flag_text(flag)) for flag in flags),
        )
        for title, flags in GROUPS.items()
    )


def aiperf_tables() -> str:
    """Return the tables of `docs/from-aiperf.md`, one for each kind of advice."""
    titles = {
        "same": "Flags that can be left out",
        "other": "Flags with another name or form",
        "none": "Flags without a counterpart",
    }
    return "\n".join(
        f"### {title}\n\n"
        + _table(
            ("Flags of AIPerf", "Here"),
            ((_quoted(names.split()), text) for found, text, names in TABLE if found == kind),
        )
        for kind, title in titles.items()
    )


def workload_tables(kind: str) -> str:
    """Return the tables of `docs/workloads/<kind>.md`: the keys and the metrics of a kind."""
    described = describe(tool(kind))
    keys = [
        (f"`{key['key']}`", f"`{key['default']}`" if key["default"] else "", key["text"])
        for key in described["keys"]
        if key["key"] not in WorkloadSpec.model_fields
    ]
    metrics = [
        (f"`{each['tag']}`", each["unit"], each["better"], each["formula"])
        for each in described["metrics"]
    ]
    text = "## Keys\n\n" + _table(("key", "default", "meaning"), keys)
    if metrics:
        text += "\n## Metrics\n\n" + _table(("metric", "unit", "better", "from"), metrics)
    return text


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
