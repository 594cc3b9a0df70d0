"""`telemetry.parquet` and `metrics.om`: every value read, for other tools.

Both contain each value at which a series changed, with the time of the read; `metrics.om` also
repeats unchanged values. It is OpenMetrics with timestamps: `promtool tsdb create-blocks-from
openmetrics metrics.om DATA` creates blocks for any Prometheus.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from arro3.core import Array, DataType, Field

from aiperf_svc.adapters.exports.parquet_export import write_table
from aiperf_svc.core.telemetry.log import Curve, SourceLog
from aiperf_svc.core.telemetry.page import Series

FORMAT = "1"
REPEAT_NS = 60_000_000_000
"""Time after which an unchanged value is written again: Prometheus treats a series without a sample
for five minutes as gone."""
_FIELDS = (
    *(
        Field(name, DataType.string(), nullable=False)
        for name in ("source", "metric", "labels", "type")
    ),
    Field("wall_ns", DataType.int64(), nullable=False),
    Field("value", DataType.float64(), nullable=False),
)


def write_parquet(path: Path, logs: Iterable[SourceLog], *, run_id: str) -> None:
    """Write a row for each change of each series; `labels` is JSON. Raises OSError."""
    metadata = {"aiperf_svc.format": FORMAT, "aiperf_svc.run_id": run_id}
    write_table(path, _FIELDS, _groups(logs), metadata)


def _groups(logs: Iterable[SourceLog]) -> Iterator[list[Array]]:
    for log in logs:
        for number, each in enumerate(log.series):
            curve = log.changes(number)
            count = len(curve.wall_ns)
            if count:
                labels = json.dumps(dict(each.series.labels), ensure_ascii=False)
                texts = (log.url, each.series.name, labels, each.type)
                arrays = [Array([text] * count, DataType.string()) for text in texts]
                arrays += [Array.from_numpy(curve.wall_ns), Array.from_numpy(curve.values)]
                yield arrays


def render_openmetrics(logs: Iterable[SourceLog]) -> Iterator[bytes]:
    """Yield the lines of `metrics.om`. All samples of a series are contiguous, in order of time."""
    by_name: dict[str, list[tuple[SourceLog, int, Series]]] = {}
    for log in logs:
        for number, each in enumerate(log.series):
            by_name.setdefault(each.series.name, []).append((log, number, each.series))
    for name, members in sorted(by_name.items()):
        # The parts of a histogram are written as series of type unknown: the format requires the
        # complete histogram at each time, and only changed values are available here.
        yield f"# TYPE {name} unknown\n".encode()
        for log, number, series in members:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in _labels(log, series))
            curve = _kept_alive(log.curve(number))
            head = f"{name}{{{labels}}} "
            for wall_ns, value in zip(curve.wall_ns.tolist(), curve.values.tolist(), strict=True):
                seconds, rest_ns = divmod(wall_ns, 10**9)
                text = f"{head}{_number(value)} {seconds}.{rest_ns // 10**6:03d}\n"
                yield text.encode()
    yield b"# EOF\n"


def _kept_alive(curve: Curve) -> Curve:
    """Return the changes of a series from its first value on, repeating its value every
    `REPEAT_NS`. Where the series disappears, write one NaN, since Prometheus' sums are NaN if a
    series is NaN."""
    is_there = ~np.isnan(curve.values)
    if not is_there.any():
        return Curve(curve.wall_ns[:0], curve.values[:0])
    begin = int(is_there.argmax())
    times, values, is_there = curve.wall_ns[begin:], curve.values[begin:], is_there[begin:]
    is_new = np.ones(len(values), dtype=bool)
    is_new[1:] = (values[1:] != values[:-1]) & (is_there[1:] | is_there[:-1])
    is_new[1:] |= is_there[1:] & (np.diff((times - times[0]) // REPEAT_NS) > 0)
    is_new[-1] |= is_there[-1]
    return Curve(times[is_new], values[is_new])


def _labels(log: SourceLog, series: Series) -> list[tuple[str, str]]:
    """Return the labels of a series and its source. As in Prometheus, a label of the page with the
    same name becomes `exported_source`."""
    taken, name = dict(series.labels), "exported_source"
    while name in taken:
        name = f"exported_{name}"
    own = [(name if key == "source" else key, value) for key, value in series.labels]
    return [*own, ("source", log.url)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))
