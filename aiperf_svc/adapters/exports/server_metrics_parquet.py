"""`server_metrics_export.parquet`: servers' metrics pages under load in AIPerf's format. AIPerf's
`plot` draws server series from it.

A row is a value of a series on one page, or a bucket of a histogram. Counters and histograms count
from the start of the load. Each label is a column.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from arro3.core import Array, DataType, Field

from aiperf_svc.adapters.exports.parquet_export import write_table
from aiperf_svc.adapters.exports.server_metrics_export import servers, unit_of, window
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.telemetry.log import SourceLog, Times, Values
from aiperf_svc.core.telemetry.statistics import Family, families

MAX_ROWS = 1_000_000
"""Maximum number of rows. Beyond it, only every second, third, … page is written."""
_HEAD = ("endpoint_url", "metric_name", "metric_type", "unit", "description")
_VALUES = ("value", "sum", "count")
_RESERVED = {*_HEAD, *_VALUES, "timestamp_ns", "bucket_le", "bucket_count"}


class _Rows(NamedTuple):
    wall_ns: Times
    values: dict[str, Values]
    """`value`, or `sum`, `count` and `bucket_count`; missing ones are null."""
    bounds: list[str] | None
    """Upper bound of the bucket of each row."""


def write(path: Path, summary: Summary) -> None:
    """Write the file. Raises OSError."""
    found = [(log, family) for log, _ in servers(summary) for family in families(log)]
    labels = sorted({name for _, family in found for name, _ in family.labels} - _RESERVED)
    fields = [
        *(Field(name, DataType.string(), nullable=True) for name in _HEAD),
        Field("timestamp_ns", DataType.int64(), nullable=False),
        *(Field(name, DataType.string(), nullable=True) for name in labels),
        *(Field(name, DataType.float64(), nullable=True) for name in _VALUES),
        Field("bucket_le", DataType.string(), nullable=True),
        Field("bucket_count", DataType.float64(), nullable=True),
    ]
    rows = sum(len(log.wall_ns) * max(1, len(family.numbers) - 2) for log, family in found)
    step = max(1, math.ceil(rows / MAX_ROWS))
    metadata = {
        "aiperf.schema_version": "1.0",
        "aiperf.benchmark_id": summary.context.run_id,
        "aiperf.exporter": "aiperf-svc",
    }
    write_table(path, fields, _groups(found, labels, summary, step), metadata)


def _groups(
    found: list[tuple[SourceLog, Family]], labels: list[str], summary: Summary, step: int
) -> Iterator[list[Array]]:
    begin_ns, end_ns = window(summary)
    for log, family in found:
        rows = _rows(log, family, begin_ns, end_ns, step)
        count = len(rows.wall_ns)
        if not count:
            continue
        known = dict(family.labels)
        head = (log.url, family.name, family.type, unit_of(family.name), "")
        texts: list[str | None] = [*head, *(known.get(name) for name in labels)]
        columns = [Array([text] * count, DataType.string()) for text in texts]
        columns.insert(len(_HEAD), Array.from_numpy(rows.wall_ns))
        columns += [_floats(rows.values.get(name), count) for name in _VALUES]
        columns.append(
            Array(rows.bounds, DataType.string())
            if rows.bounds
            else _nulls(count, DataType.string())
        )
        columns.append(_floats(rows.values.get("bucket_count"), count))
        yield columns


def _nulls(count: int, kind: DataType) -> Array:
    missing: list[str | None] = [None] * count
    return Array(missing, kind)


def _floats(values: Values | None, count: int) -> Array:
    if values is None:
        return _nulls(count, DataType.float64())
    return Array.from_numpy(np.ascontiguousarray(values))


def _rows(log: SourceLog, family: Family, begin_ns: int, end_ns: int, step: int) -> _Rows:
    curves = {part: log.curve(number).values for part, number in family.numbers.items()}
    times = log.wall_ns
    is_there = ~np.any([np.isnan(values) for values in curves.values()], axis=0)
    is_loaded = is_there & (times >= begin_ns) & (times <= end_ns)
    places = np.flatnonzero(is_loaded)[::step]
    if not len(places):
        return _Rows(times[:0], {}, None)
    before = np.flatnonzero(is_there & (times < begin_ns))
    start = int(before[-1]) if len(before) else int(places[0])
    # A series that is not on the first page appeared later and started at zero.
    has_begun = len(before) > 0 or is_there[0]
    if family.type not in ("counter", "histogram"):
        return _Rows(times[places], {"value": curves["value"][places]}, None)
    grown = {
        part: np.maximum(v[places] - (v[start] if has_begun else 0.0), 0.0)
        for part, v in curves.items()
    }
    if family.type == "counter":
        return _Rows(times[places], {"value": grown["value"]}, None)
    ends = [part for part in ("sum", "count") if part in grown]
    wholes = {part: grown.pop(part) for part in ends}
    bounds = sorted(grown, key=float)
    if not bounds:
        return _Rows(times[:0], {}, None)
    values: dict[str, Values] = {p: np.repeat(value, len(bounds)) for p, value in wholes.items()}
    values["bucket_count"] = np.array([grown[bound] for bound in bounds]).T.reshape(-1)
    return _Rows(np.repeat(times[places], len(bounds)), values, bounds * len(places))
