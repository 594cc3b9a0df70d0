"""The files of a benchmark that ran a tool on ranks: `results.json`, `results.csv`,
`series.parquet`, `config.yaml`."""

import csv
from io import StringIO
from pathlib import Path

from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema

from aiperf_svc.adapters.exports.parquet_export import write_stream
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.results.tool_result import STATS, ToolResult
from aiperf_svc.domain.foreign_text import csv_cell

SERIES_FORMAT = "1"
"""Version of the format of series.parquet."""
_SERIES_FIELDS = (
    ("step", DataType.string()),
    ("repetition", DataType.uint32()),
    ("series", DataType.string()),
    ("label", DataType.string()),
    ("unit", DataType.string()),
    ("time_s", DataType.float64()),
    ("value", DataType.float64()),
)


def render_config(result: ToolResult) -> bytes:
    """Render config.yaml: the resolved config, which can be run again as it is."""
    return yaml_text(result.config).encode()


def render_csv(result: ToolResult) -> bytes:
    """Render results.csv: a row for each metric and statistic, then one for each of its values.
    What a row does not have is empty."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("metric", "unit", "better", "statistic", "step", "repetition", "value"))
    for metric in result.metrics:
        info = metric.info
        head = (info.tag, csv_cell(info.unit), info.better)
        for stat in STATS:
            writer.writerow((*head, stat, "", "", _number(metric.stat(stat))))
        for each in metric.values:
            place = (csv_cell(each.step), each.repetition)
            writer.writerow((*head, "value", *place, _number(each.value)))
    return text.getvalue().encode()


def write_series(path: Path, result: ToolResult) -> None:
    """Write a row for each point of each series. Raises OSError."""
    rows = [
        (each.step, each.repetition, series.name, series.label, series.unit, time_s, value)
        for each in result.series
        for series in (each.series,)
        for time_s, value in zip(series.times_s, series.values, strict=True)
    ]
    schema = Schema([Field(name, kind, nullable=False) for name, kind in _SERIES_FIELDS])
    arrays = [
        Array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(_SERIES_FIELDS)
    ]
    batch = RecordBatch.from_arrays(arrays, schema=schema)
    write_stream(
        path,
        RecordBatchReader.from_batches(schema, [batch]),
        compression="zstd(3)",
        key_value_metadata={
            "aiperf_svc.format": SERIES_FORMAT,
            "aiperf_svc.version": result.version,
            "aiperf_svc.run_id": result.run_id,
        },
    )


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
