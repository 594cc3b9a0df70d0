"""The tables of `docs/workloads/<kind>.md`, printed from the kinds."""

from collections.abc import Sequence

from aiperf_svc.cli.commands.workloads import describe
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.workloads.registry import tool


def tables(kind: str) -> str:
    """Return the Markdown tables of a kind's own keys and of its metrics."""
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


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "".join(map(_line, (header, ("---",) * len(header), *rows)))


def _line(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"
