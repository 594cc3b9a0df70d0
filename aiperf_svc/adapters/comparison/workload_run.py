"""Reads a run that measured a tool on ranks: `results.json`."""

from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue, flatten
from aiperf_svc.core.results.run_result import SCHEMA, MetricResult, RunResult
from aiperf_svc.domain.errors import ConfigError

NAME = "results.json"


class _Head(msgspec.Struct):
    schema_version: str
    version: str = "unknown"


def read(folder: Path) -> MeasuredRun:
    """Read the run in a folder. The parts of a run are its repetitions. Raises ConfigError."""
    path = folder / NAME
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        if head.schema_version != SCHEMA:
            raise ConfigError(
                f"{path}: its schema is {head.schema_version!r}, expected {SCHEMA!r}; compare with "
                f"the version that wrote it ({head.version})"
            )
        result = msgspec.json.decode(data, type=RunResult)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: broken: {error}") from error
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
