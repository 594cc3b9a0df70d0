"""Counts the records of each worker that have arrived, to compare with the worker's own accounts.

It is apart from the accounts because it needs NumPy, which a local run must not import before it
starts, and such a run reads accounts.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.columns import CHUNK_ROWS
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import Flag

_OUTCOMES = 8
"""Number of places for outcomes: a power of two above the largest."""

Source = tuple[int, int]
"""A worker's rank and a phase."""


class ArrivedRecords(msgspec.Struct, frozen=True):
    """Counts by worker and phase. A worker without records is left out."""

    sent: dict[Source, int]
    """Requests of which at least one byte was written."""
    outcomes: dict[Source, dict[int, int]]
    """Conversations that ended, by outcome."""
    whole: dict[Source, int]
    """Conversations whose last response was complete."""


def count_arrived(columns: Columns) -> ArrivedRecords:
    """Count all records in one pass, a piece at a time."""
    sent = ends = whole = np.zeros(0, dtype=np.int64)
    for begin in range(0, len(columns["phase"]), CHUNK_ROWS):
        piece = slice(begin, begin + CHUNK_ROWS)
        outcome = np.asarray(columns["outcome"][piece])
        source = columns["worker"][piece].astype(np.int64) * 2 + columns["phase"][piece]
        is_last = (np.asarray(columns["flags"][piece]) & np.uint16(Flag.LAST_TURN)) != 0
        is_completed = outcome == Outcome.COMPLETED
        sent = _added(sent, source[np.asarray(columns["start_wall_ns"][piece]) > 0])
        ends = _added(ends, (source * _OUTCOMES + outcome)[is_last | ~is_completed])
        whole = _added(whole, source[is_last & is_completed])
    outcomes: dict[Source, dict[int, int]] = {}
    for combined in np.flatnonzero(ends).tolist():
        key, outcome_number = divmod(combined, _OUTCOMES)
        outcomes.setdefault(divmod(key, 2), {})[outcome_number] = int(ends[combined])
    return ArrivedRecords(_by_source(sent), outcomes, _by_source(whole))


def _added(counts: NDArray[np.int64], numbers: NDArray[Any]) -> NDArray[np.int64]:
    more = np.bincount(numbers, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def _by_source(counts: NDArray[np.int64]) -> dict[Source, int]:
    return {divmod(key, 2): int(counts[key]) for key in np.flatnonzero(counts).tolist()}
