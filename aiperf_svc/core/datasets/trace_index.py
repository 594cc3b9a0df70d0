"""The index of a trace: positions, due times and lengths of its rows.

A trace may have millions of rows, so a row takes 32 bytes in columns, and its line is read again
when its prompt is made. The rows of one session are the turns of one entry.
"""

from array import array
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.load import Load
from aiperf_svc.core.datasets.multi_turn import MAX_TURNS
from aiperf_svc.core.datasets.traces import TraceRow, has_tokens
from aiperf_svc.domain.errors import DatasetError

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]


MAX_ROWS = 10_000_000
"""Maximum rows in the index, which then takes about 1 GiB. Reading them takes a minute."""


class Line(msgspec.Struct, frozen=True):
    """Position of a row in its file."""

    number: int
    position: int
    """Byte at which it begins."""
    size: int


class TraceIndex(msgspec.Struct, frozen=True):
    """The usable rows, as columns, in the order of their entries."""

    times_s: NDArray[np.float64]
    """Time of each row; NaN if it has none."""
    inputs: Int32s
    """Tokens of its prompt; -1: the trace contains the prompt."""
    outputs: Int32s
    """Tokens of its response; -1: unknown."""
    numbers: Int32s
    """Number of its line."""
    positions: Int64s
    sizes: Int32s
    """Bytes of its line."""
    firsts: Int64s
    """First row of each entry, and the number of rows at the end."""
    left_out: int
    """Number of rows without input or output tokens, or whose prompts exceed the config's
    limit."""

    @property
    def entry_count(self) -> int:
        return len(self.firsts) - 1

    @property
    def turn_counts(self) -> Int64s:
        """Number of rows of each entry."""
        return np.diff(self.firsts)


def in_schedule(
    rows: Iterable[TraceRow], load: Load, units_per_second: float
) -> Iterator[TraceRow]:
    """Yield the rows of a fixed schedule, with times: those between its offsets. Reading stops at
    the first row after the end. A row without a time is skipped if no earlier row of its session is
    sent. Raises DatasetError for a row without a time that does not continue a
    session."""
    start_s = (load.fixed_schedule_start_offset or 0) / 1e9
    end = load.fixed_schedule_end_offset
    end_s = float("inf") if end is None else end / 1e9
    known: set[str] = set()
    begun: set[str] = set()
    """Sessions with a sent row."""
    for row in rows:
        if row.timestamp is None and row.session not in begun:
            if row.session not in known:
                raise DatasetError(
                    f"{row.place}: a row without `timestamp`, which load.fixed_schedule needs; "
                    "give it one, or use load.request_rate or load.concurrency"
                )
            continue
        time_s = None if row.timestamp is None else row.timestamp / units_per_second
        if time_s is not None and time_s > end_s:
            return
        is_in = time_s is None or time_s >= start_s
        if row.session is not None:
            known.add(row.session)
            if is_in and has_tokens(row):
                begun.add(row.session)
        if is_in:
            yield row


def index_rows(
    rows: Iterable[tuple[Line, TraceRow]], *, units_per_second: float, limit: int | None = None
) -> TraceIndex:
    """Return the index of checked rows up to `limit` entries. Without sessions, reading stops at
    the limit.

    Raises DatasetError that names file and line.
    """
    columns = _Columns()
    sessions: dict[str, _Session] = {}
    left_out = count = 0
    for line, row in rows:
        is_full = limit is not None and count == limit
        if is_full and not sessions:
            break
        if len(columns) == MAX_ROWS:
            raise too_many_rows(row.place, f"over {MAX_ROWS:,}")
        if not has_tokens(row):
            left_out += 1
            continue
        known = sessions.get(row.session) if row.session is not None else None
        if known is not None:
            known.take(row)
            columns.add(row, line, known.entry)
        elif not is_full:
            if row.session is not None:
                sessions[row.session] = _Session(count, row)
            columns.add(row, line, count)
            count += 1
    return columns.index(left_out, units_per_second, in_order=not sessions)


def too_many_rows(place: str, number: str) -> DatasetError:
    """Return the error for a trace with too many rows for the index."""
    return DatasetError(
        f"{place}: {number} rows, and at most {MAX_ROWS:,} are held; say how many are read: "
        "dataset.entries (--num-prompts), or load.fixed_schedule_end_offset"
    )


class _Session:
    """A session with at least one row."""

    def __init__(self, entry: int, row: TraceRow) -> None:
        self.entry = entry
        self._turns = 1
        self._is_whole = is_whole(row)

    def take(self, row: TraceRow) -> None:
        """Count a further turn. Raises DatasetError if it is not valid."""
        if is_whole(row) != self._is_whole:
            raise DatasetError(
                f"{row.place}: session {row.session!r} has complete `messages` or a `payload` in "
                "some rows and only the new turn in others; give all rows the one or the other"
            )
        if self._turns == MAX_TURNS:
            raise DatasetError(
                f"{row.place}: session {row.session!r} has more than {MAX_TURNS:,} turns; split it"
            )
        self._turns += 1


def is_whole(row: TraceRow) -> bool:
    """Return whether a row has a whole request with its history, not only the new turn."""
    return row.written is not None and not row.written.texts


class _Columns:
    """Columns that grow."""

    def __init__(self) -> None:
        self._times = array("d")
        self._inputs, self._outputs = array("i"), array("i")
        self._numbers, self._sizes = array("i"), array("i")
        self._positions = array("q")
        self._entries = array("i")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, row: TraceRow, line: Line, entry: int) -> None:
        self._times.append(float("nan") if row.timestamp is None else row.timestamp)
        self._inputs.append(row.input_length if row.written is None else -1)
        self._outputs.append(-1 if row.output_length is None else row.output_length)
        self._numbers.append(line.number)
        self._sizes.append(line.size)
        self._positions.append(line.position)
        self._entries.append(entry)

    def index(self, left_out: int, units_per_second: float, *, in_order: bool) -> TraceIndex:
        """Return the columns in the order of the entries."""
        entries = np.frombuffer(self._entries, dtype=np.int32)
        order = slice(None) if in_order else np.argsort(entries, kind="stable")
        firsts = np.flatnonzero(np.diff(entries[order], prepend=-1))
        return TraceIndex(
            times_s=np.frombuffer(self._times, dtype=np.float64)[order] / units_per_second,
            inputs=np.frombuffer(self._inputs, dtype=np.int32)[order],
            outputs=np.frombuffer(self._outputs, dtype=np.int32)[order],
            numbers=np.frombuffer(self._numbers, dtype=np.int32)[order],
            positions=np.frombuffer(self._positions, dtype=np.int64)[order],
            sizes=np.frombuffer(self._sizes, dtype=np.int32)[order],
            firsts=np.append(firsts, len(entries)).astype(np.int64),
            left_out=left_out,
        )
