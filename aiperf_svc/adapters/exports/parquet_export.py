"""`records.parquet`: the base columns of every record, of both phases. Every metric can be
recomputed from them.

Columns are streamed from the memory maps, one row group at a time. Times increase slowly from row
to row, so they are stored as differences and compress well with zstd.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema
from arro3.io import read_parquet, write_parquet
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.manifest import check_listed
from aiperf_svc.core.results.summary import FinishedRun
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import METRIC_DTYPE, RARE, Flag, usual_column

ROW_GROUP = 1 << 18
FORMAT = "4"
"""Version of the format, increased when a column changes its meaning or a metadata key is added."""
FORMAT_KEY = "aiperf_svc.format"
RUN_KEY = "aiperf_svc.run_id"
CLOCKS_KEY = "aiperf_svc.clocks"
"""Metadata key of the workers' clocks, by rank: times of the worker, offsets to the timing
manager's clock, and uncertainties; linear in between."""
MESSAGES_KEY = "aiperf_svc.error_messages"
"""Metadata key of the first message of each `error/status` in the profiling phase."""
WARMUP_KEY = "aiperf_svc.has_warmup"
STREAMS_KEY = "aiperf_svc.streams"
"""Streams of session trees: `turns` and `streams` of the dataset's shape, in base 64."""

_TYPES = {
    "u1": DataType.uint8,
    "u2": DataType.uint16,
    "u4": DataType.uint32,
    "u8": DataType.uint64,
    "i4": DataType.int32,
    "i8": DataType.int64,
}


def write_records(path: Path, columns: Columns, context: FinishedRun) -> None:
    """Write all records. Raises OSError."""
    names = METRIC_DTYPE.names or ()
    rows = len(columns["phase"])

    pieces = (slice(begin, begin + ROW_GROUP) for begin in range(0, rows, ROW_GROUP))
    groups = (
        [Array.from_numpy(np.ascontiguousarray(columns[name][piece])) for name in names]
        for piece in pieces
    )
    times = [name for name in names if METRIC_DTYPE[name].itemsize == 8]
    write_table(
        path,
        map(_field, names),
        groups,
        _metadata(context),
        max_row_group_size=ROW_GROUP,
        column_encoding=dict.fromkeys(times, "delta_binary_packed"),
        column_dictionary_enabled=dict.fromkeys(times, False),
    )


def write_table(
    path: Path,
    fields: Iterable[Field],
    groups: Iterable[Sequence[Array]],
    metadata: Mapping[str, str],
    **options: Any,
) -> None:
    """Write rows to a Parquet file. Each group contains an array for each field. `options` are
    passed to `arro3.io.write_parquet`. Raises OSError."""
    schema = Schema(list(fields))
    batches = (RecordBatch.from_arrays(arrays, schema=schema) for arrays in groups)
    reader = RecordBatchReader.from_batches(schema, batches)
    options |= {"compression": "zstd(3)", "key_value_metadata": metadata}
    with _Sink(path, "wb") as sink:
        write_parquet(reader, sink, **options)
    if sink.error is not None:
        raise sink.error


class _Sink(FileIO):
    """A file that stores its first error instead of raising it: the Parquet library panics on a
    full disk, and `except` cannot catch a panic."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left and self.error is None:
            try:
                left = left[super().write(left) :]
            except OSError as error:
                self.error = error
        return size


def check_records(path: Path) -> None:
    """Raise EnvironmentProblem unless the file is complete and of this version. The Parquet library
    panics on a damaged file, and `except` cannot catch a panic, so only files that match their
    folder's manifest are read."""
    check_listed(path)
    known = read_parquet(path, batch_size=ROW_GROUP).schema.metadata
    found = known.get(FORMAT_KEY.encode(), b"").decode()
    if found != FORMAT:
        wrote = known.get(b"aiperf_svc.version", b"unknown").decode()
        raise EnvironmentProblem(
            f"{path}: its format is {found!r}, expected {FORMAT!r}; use the version that wrote it "
            f"({wrote})"
        )


def read_records(path: Path) -> dict[str, NDArray[Any]]:
    """Read the columns of a `records.parquet` into memory."""
    table = read_parquet(path, batch_size=ROW_GROUP).read_all()
    if not table.num_rows:  # a column without chunks has no array
        return {name: np.empty(0, dtype=METRIC_DTYPE[name]) for name in table.column_names}
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    missing = {name: usual_column(name, table.num_rows) for name in RARE if name not in columns}
    return columns | missing


def read_clocks(path: Path) -> list[tuple[int, list[ClockEstimate]]]:
    """Read the estimates of each worker's clock, by its rank, from a `records.parquet`."""
    known = read_parquet(path, batch_size=ROW_GROUP).schema.metadata
    clocks = json.loads(known[CLOCKS_KEY.encode()])
    return [
        (
            int(rank),
            [
                ClockEstimate(at_wall_ns=at, offset_ns=offset, uncertainty_ns=uncertainty)
                for at, offset, uncertainty in clock["offsets"]
            ],
        )
        for rank, clock in clocks.items()
    ]


def _field(name: str) -> Field:
    kind, metadata = METRIC_DTYPE[name].str[1:], {"unit": "ns"} if name.endswith("_ns") else None
    return Field(name, _TYPES[kind](), nullable=False, metadata=metadata)


def _metadata(context: FinishedRun) -> dict[str, str]:
    """Return the metadata that a reader needs to interpret the numbers."""
    clocks = {
        worker.rank: {
            "worker": worker.account.worker,
            "offsets": [(c.at_wall_ns, c.offset_ns, c.uncertainty_ns) for c in worker.clocks],
        }
        for worker in context.workers
    }
    messages = {
        f"{sample.kind}/{sample.status}": sample.message
        for sample in context.errors
        if sample.phase is Phase.PROFILING
    }
    return {
        FORMAT_KEY: FORMAT,
        "aiperf_svc.version": context.version,
        RUN_KEY: context.run_id,
        "aiperf_svc.phases": json.dumps({p.name: int(p) for p in Phase}),
        "aiperf_svc.outcomes": json.dumps({o.name: int(o) for o in Outcome}),
        "aiperf_svc.finish_reasons": json.dumps({r.name: int(r) for r in FinishReason}),
        "aiperf_svc.errors": json.dumps({e.name: int(e) for e in ErrorKind}),
        "aiperf_svc.flags": json.dumps({f.name: int(f) for f in Flag}),
        CLOCKS_KEY: json.dumps(clocks),
        MESSAGES_KEY: json.dumps(messages),
        WARMUP_KEY: json.dumps(context.config.load.has_warmup),
        **_streams(context),
    }


def _streams(context: FinishedRun) -> dict[str, str]:
    """Return the streams of session trees, if the run has any."""
    if context.streams is None:
        return {}
    return {STREAMS_KEY: json.dumps([b64encode(each).decode() for each in context.streams])}
