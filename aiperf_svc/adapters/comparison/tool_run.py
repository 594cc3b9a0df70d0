"""What comparisons need of a run that measured a tool on ranks."""

from pathlib import Path
from statistics import fmean

import numpy as np

from aiperf_svc.core.compare.measured_run import (
    MeasuredRun,
    RowKey,
    RunValue,
    common_facts,
    flatten,
)
from aiperf_svc.core.results.tool_result import MetricResult, ToolResult


def measured_run(folder: Path, result: ToolResult) -> MeasuredRun:
    """Return a run. Its parts are its repetitions."""
    facts = common_facts(result) | flatten(result.facts, "facts")
    facts["tools"] = ", ".join(result.tools) or "none"
    facts |= {f"rank.{rank.number}.node": rank.node for rank in result.ranks}
    curves = {}
    for metric in result.metrics:
        values = np.sort([each.value for each in metric.values])
        curves[metric.info.tag] = (np.linspace(0, 1, len(values)), values)
    return MeasuredRun(
        folder=str(folder),
        run_id=result.run_id,
        kind=result.workload,
        verdict=result.verdict,
        cause=result.cause,
        start_wall_ns=result.start_wall_ns,
        facts=facts,
        metrics=result.infos,
        values={
            RowKey(metric.info.tag): RunValue(metric.avg, batches=_repetitions(metric))
            for metric in result.metrics
        },
        headline=tuple(RowKey(tag) for tag, _ in result.headline),
        curves=curves,
    )


def _repetitions(metric: MetricResult) -> tuple[float, ...]:
    """Return the average of each repetition."""
    found: dict[int, list[float]] = {}
    for each in metric.values:
        found.setdefault(each.repetition, []).append(each.value)
    return tuple(fmean(values) for _, values in sorted(found.items()))
