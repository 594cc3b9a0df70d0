"""Reads a run that measured a tool on ranks: `results.json`."""

from pathlib import Path
from statistics import fmean

import numpy as np

from aiperf_svc.adapters.exports.versioned_json import read_versioned
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue, flatten
from aiperf_svc.core.results.run_result import SCHEMA, MetricResult, RunResult

NAME = "results.json"


def read(folder: Path) -> MeasuredRun:
    """Read the run in a folder. The parts of a run are its repetitions. Raises ConfigError."""
    result = read_versioned(folder / NAME, RunResult, schema=SCHEMA, remedy="compare with")
    return _summary(folder, result)


def _summary(folder: Path, result: RunResult) -> MeasuredRun:
    facts = {"version": result.version, "verdict": str(result.verdict)}
    if result.was_cancelled:
        facts["was_cancelled"] = "true"
    config = {name: each for name, each in result.config.items() if name != "artifacts"}
    facts |= flatten(config) | flatten(result.facts, "facts")
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
        metrics={metric.info.tag: metric.info for metric in result.metrics},
        values={
            RowKey(metric.info.tag): RunValue(metric.avg, batches=_repetitions(metric))
            for metric in result.metrics
        },
        headline=tuple(
            RowKey(metric.info.tag)
            for metric in result.metrics
            if metric.info.better and metric.info.in_table
        )
        or tuple(RowKey(metric.info.tag) for metric in result.metrics),
        curves=curves,
    )


def _repetitions(metric: MetricResult) -> tuple[float, ...]:
    """The average of each repetition."""
    found: dict[int, list[float]] = {}
    for each in metric.values:
        found.setdefault(each.repetition, []).append(each.value)
    return tuple(fmean(values) for _, values in sorted(found.items()))
