"""Tracks which records of each worker have arrived, and counts them for a comparison with the
worker's own accounts.

A worker numbers its records 1, 2, … as requests end. Usually they arrive in that order. After the
loss of a record processor some arrive twice and some late. For each worker, the ledger stores the
number up to which every record has arrived, and the spans beyond it.

It is separate from the accounts because it needs NumPy, which a local run must not import before it
starts, while such a run reads accounts.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.columns import CHUNK_ROWS
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.messages.records import SequenceSpan
from aiperf_svc.protocol.records import Flag

_OUTCOMES = 8
"""Number of outcome slots: a power of two above the largest outcome."""
_INDEX_BITS = 40
"""Bits of a credit's number in the key of a session tree, below the worker and the phase."""

Source = tuple[int, int]
"""A worker's rank and a phase."""


class ArrivedRecords(msgspec.Struct, frozen=True):
    """Counts by worker and phase, without workers that have no records."""

    sent: dict[Source, int]
    """Requests of which at least one byte was written."""
    outcomes: dict[Source, dict[int, int]]
    """Conversations that ended, by outcome."""
    whole: dict[Source, int]
    """Conversations whose last response was complete."""


def count_arrived(columns: Columns, *, has_trees: bool = False) -> ArrivedRecords:
    """Count all records in one pass, in chunks. With `has_trees` each credit is a session tree, of
    which several requests may have failed."""
    sent = ends = whole = np.zeros(0, dtype=np.int64)
    of_trees = _ends_of_trees(columns) if has_trees else None
    for begin in range(0, len(columns["phase"]), CHUNK_ROWS):
        piece = slice(begin, begin + CHUNK_ROWS)
        outcome = np.asarray(columns["outcome"][piece])
        source = columns["worker"][piece].astype(np.int64) * 2 + columns["phase"][piece]
        is_last = (np.asarray(columns["flags"][piece]) & np.uint16(Flag.LAST_TURN)) != 0
        is_completed = outcome == Outcome.COMPLETED
        is_end = is_last | ~is_completed if of_trees is None else of_trees[piece]
        sent = _added(sent, source[np.asarray(columns["start_wall_ns"][piece]) > 0])
        ends = _added(ends, (source * _OUTCOMES + outcome)[is_end])
        whole = _added(whole, source[is_end & is_completed])
    outcomes: dict[Source, dict[int, int]] = {}
    for combined in np.flatnonzero(ends).tolist():
        key, outcome_number = divmod(combined, _OUTCOMES)
        outcomes.setdefault(divmod(key, 2), {})[outcome_number] = int(ends[combined])
    return ArrivedRecords(_by_source(sent), outcomes, _by_source(whole))


def _ends_of_trees(columns: Columns) -> NDArray[np.bool_]:
    """Return which record determines the outcome of its session tree: a failed one, errors before
    cancellations, or else the request that was sent last."""
    outcome = np.asarray(columns["outcome"])
    source = columns["worker"].astype(np.uint64) * np.uint64(2) + columns["phase"]
    trees = (source << np.uint64(_INDEX_BITS)) | columns["index"]
    failed = np.flatnonzero(outcome != Outcome.COMPLETED)
    failed = failed[np.argsort(outcome[failed], kind="stable")]
    failed_trees, first = np.unique(trees[failed], return_index=True)
    is_end = (np.asarray(columns["flags"]) & np.uint16(Flag.LAST_TURN)) != 0
    is_end &= ~np.isin(trees, failed_trees)
    is_end[failed[first]] = True
    return np.asarray(is_end)


def _added(counts: NDArray[np.int64], numbers: NDArray[Any]) -> NDArray[np.int64]:
    more = np.bincount(numbers, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def _by_source(counts: NDArray[np.int64]) -> dict[Source, int]:
    return {divmod(key, 2): int(counts[key]) for key in np.flatnonzero(counts).tolist()}


class _Worker(msgspec.Struct):
    epoch: int
    highest: int = 0
    beyond_gap: list[tuple[int, int]] = []
    """Spans that arrived beyond a gap, in ascending order, not adjacent."""


class RecordLedger:
    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._fenced: dict[str, int] = {}

    def accept(self, span: SequenceSpan) -> bool:
        """Add a span. Returns False if any of it is already known or its worker is fenced."""
        if self._fenced.get(span.worker) == span.worker_epoch:
            return False
        worker = self._workers.setdefault(span.worker, _Worker(span.worker_epoch))
        if worker.epoch != span.worker_epoch:
            return False
        if span.first == worker.highest + 1:
            worker.highest = span.last
            while worker.beyond_gap and worker.beyond_gap[0][0] == worker.highest + 1:
                worker.highest = worker.beyond_gap.pop(0)[1]
            return True
        if span.first <= worker.highest:
            return False
        if any(span.first <= last and first <= span.last for first, last in worker.beyond_gap):
            return False
        worker.beyond_gap.append((span.first, span.last))
        worker.beyond_gap.sort()
        worker.beyond_gap = _joined(worker.beyond_gap)
        return True

    def fence(self, worker: str, epoch: int) -> None:
        """Fence a lost worker: later records of it count as late."""
        self._fenced[worker] = epoch

    def highest(self) -> dict[str, int]:
        """Return for each worker the number up to which every record has arrived."""
        return {name: worker.highest for name, worker in self._workers.items()}

    def missing(self, worker: str, last: int) -> int:
        """Return how many of a worker's records 1..last have not arrived."""
        known = self._workers.get(worker)
        if known is None:
            return last
        missing = sum(
            min(end, last) - first + 1 for first, end in known.beyond_gap if first <= last
        )
        return max(0, last - known.highest - missing)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [spans[0]]
    for first, last in spans[1:]:
        if first == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
