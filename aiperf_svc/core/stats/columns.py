"""Reads the rows of one phase in chunks, so memory does not grow with the run.

The base columns are memory-mapped files (or arrays in a test). A formula gets `Chunk`s of at most
`CHUNK_ROWS` rows, containing only the requests that a metric covers. Only one derived column at a
time is complete in memory, as float64: 120 MB for 15 million requests.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.domain.metric_catalog import Metric, Population
from aiperf_svc.domain.metric_formulas import Columns, Floats, Formula
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.records import Flag

Mask = NDArray[np.bool_]

CHUNK_ROWS = 1 << 17
"""Rows per chunk: enough to make Python's overhead per chunk negligible, few enough for the
processor's cache."""

FLAG_COLUMNS = {
    "is_reused": Flag.REUSED,
    "is_retried": Flag.RETRIED,
    "is_unstamped": Flag.UNSTAMPED,
    "is_clock_jump": Flag.CLOCK_JUMP,
    "is_streamed": Flag.STREAMED,
    "is_capped": Flag.CAPPED,
    "is_abandoning": Flag.ABANDONS,
    "is_blocked": Flag.BLOCKED,
}
"""Boolean columns for formulas, by their bits in `flags`."""


def padded(array: NDArray[Any], size: int, fill: int = 0) -> NDArray[Any]:
    """Pad an array that is indexed by worker or entry to at least `size` items."""
    missing = size - len(array)
    return array if missing <= 0 else np.pad(array, (0, missing), constant_values=fill)


class Chunk(Mapping[str, NDArray[Any]]):
    """Some rows of the base columns, and each flag as a boolean column (`is_streamed`, ...)."""

    def __init__(self, columns: Columns, piece: slice, keep: Mask | None) -> None:
        self._columns, self._piece, self._keep = columns, piece, keep

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in FLAG_COLUMNS:
            flags: NDArray[Any] = (self["flags"] & np.uint16(FLAG_COLUMNS[name])) != 0
            return flags
        column = np.asarray(self._columns[name][self._piece])
        return column if self._keep is None else column[self._keep]

    def __iter__(self) -> Iterator[str]:
        yield from self._columns
        yield from FLAG_COLUMNS

    def __len__(self) -> int:
        return len(self._columns) + len(FLAG_COLUMNS)

    @property
    def rows(self) -> int:
        if self._keep is None:
            return int(self._piece.stop - self._piece.start)
        return int(np.count_nonzero(self._keep))

    def where(self, keep: Mask) -> "Chunk":
        """Return the rows for which `keep`, of the chunk's length, is true."""
        if keep.all():
            return self
        if self._keep is None:
            return Chunk(self._columns, self._piece, keep)
        both = self._keep.copy()
        both[both] = keep
        return Chunk(self._columns, self._piece, both)


def is_cut_off(chunk: Chunk) -> Mask:
    """Return which requests were cut before their response could arrive."""
    outcome = chunk["outcome"]
    cut: Mask = (outcome == Outcome.CANCELLED) | (outcome == Outcome.UNSENT)
    cut |= chunk["error"] == ErrorKind.TIMEOUT
    return cut


def due_values(metric: Metric, chunk: Chunk) -> tuple[Floats, Mask]:
    """Return the values of a metric for all due requests, NaN if not observed, and which requests
    were cut before their value could be observed."""
    assert metric.compute is not None
    values, is_cut = metric.compute(chunk), is_cut_off(chunk)
    is_seen = chunk["outcome"] == Outcome.COMPLETED
    if metric.tag == "intended_time_to_first_token":
        # A request that was cut after its first token has a value for it.
        is_seen |= is_cut
        is_cut &= chunk["is_streamed"]
    values[~is_seen] = np.nan
    return values, is_cut & np.isnan(values)


def exclude_abandoned(chunk: Chunk) -> Chunk:
    """Return the requests without those whose clients may leave early (`load.cancellation`). Of
    these only the fast ones complete, so latencies exclude all of them. This does not shift
    percentiles, because they are chosen at random."""
    return chunk.where(~chunk["is_abandoning"])


class PhaseRows:
    """The rows of the measurement, without the warmup."""

    def __init__(self, columns: Columns, *, only: Mask | None = None) -> None:
        """`only` selects rows of the table; None: all rows of the measurement."""
        self._columns = columns
        self._only = only
        self.row_count = len(columns["phase"])
        """Number of rows of all phases, the maximum of any selection."""
        self._chunks: dict[Population, list[Chunk]] = {}

    def chunks(self, population: Population = Population.DUE) -> list[Chunk]:
        """Return the requests in chunks; `DUE` are all that have a row. The selection is cached for
        the next metric, with at most one byte per row."""
        if population not in self._chunks:
            self._chunks[population] = list(self._select(population))
        return self._chunks[population]

    def _select(self, population: Population) -> Iterator[Chunk]:
        for begin in range(0, self.row_count, CHUNK_ROWS):
            piece = slice(begin, min(begin + CHUNK_ROWS, self.row_count))
            keep = np.asarray(self._columns["phase"][piece]) == Phase.PROFILING
            if self._only is not None:
                keep &= self._only[piece]
            if population is Population.COMPLETED:
                keep &= np.asarray(self._columns["outcome"][piece]) == Outcome.COMPLETED
            elif population is Population.SENT:
                keep &= np.asarray(self._columns["start_wall_ns"][piece]) != 0
            if keep.any():
                yield Chunk(self._columns, piece, None if keep.all() else keep)

    def collect(self, formula: Formula, population: Population) -> Floats:
        """Return the defined values of a formula, in no particular order, as an array owned by the
        caller. Clients that leave early are only included for `SENT`."""
        values = np.empty(self.row_count, dtype=np.float64)
        filled = 0
        for chunk in self.chunks(population):
            some = formula(chunk if population is Population.SENT else exclude_abandoned(chunk))
            missing = np.isnan(some)
            if missing.any():
                some = some[~missing]
            values[filled : filled + len(some)] = some
            filled += len(some)
        return values[:filled]
