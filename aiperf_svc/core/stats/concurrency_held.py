"""Computes whether a closed loop held the configured concurrency.

The number in flight falls at the end of every run, when the last requests drain, and rises with the
ramp. Neither is the client's fault. So each worker is judged over its own window: from the end of
the ramp to the stop or, if a run ends by count, to the last start of a request, or of a
conversation, of the worker: until then every free slot had a next one. The available time is the
worker's slots times that window. The used time is from connecting to the last byte. Think time of a
conversation holds the slot too, but not the time for which a turn is late. A conversation between
two turns at the stop is in its think time for no longer than the longest one seen: what comes after
that is a turn that was not sent.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows, padded
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import Flag

Times = NDArray[np.int64]


class SlotUse(msgspec.Struct, frozen=True):
    """Use of the concurrency slots, in seconds of slot time."""

    used_s: float
    asked_s: float
    window_s: float
    """Mean length of the workers' windows."""

    @property
    def ratio(self) -> float:
        """Used over available slot time."""
        return self.used_s / self.asked_s


def slot_use(
    rows: PhaseRows,
    totals: Totals,
    clocks: ClockMap,
    *,
    concurrency: int,
    worker_count: int,
    begin_ns: int,
    stop_ns: int,
) -> SlotUse | None:
    """Compute the use over all workers, each with its share of `concurrency`. `begin_ns` is the end
    of the ramp, `stop_ns` the end of sending, or 0 if a count ended it. None if there is no
    window."""
    last_begins = np.zeros(max(worker_count, len(totals.last_begin_by_worker)), dtype=np.int64)
    last_begins[: len(totals.last_begin_by_worker)] = totals.last_begin_by_worker
    # A worker that never sent anything had slots too.
    stops = np.where(last_begins == 0, last_begins.max(), last_begins)
    if stop_ns:
        stops = np.full_like(stops, stop_ns)
    ranks = np.arange(len(stops))
    slots = (concurrency - ranks + worker_count - 1) // worker_count
    slots = np.where(ranks < worker_count, np.maximum(slots, 0), 0)
    windows = np.maximum(stops - begin_ns, 0) / 1e9
    asked = float(slots @ windows)
    if asked <= 0:
        return None
    used = (
        _conversations(rows, clocks, begin_ns, stops)
        if totals.is_multi_turn
        else _requests(rows, clocks, begin_ns, stops)
    )
    return SlotUse(used, asked, asked / concurrency)


def _requests(rows: PhaseRows, clocks: ClockMap, begin_ns: int, stops: Times) -> float:
    used = 0.0
    for chunk in rows.chunks(Population.SENT):
        worker = chunk["worker"]
        start = _taken(chunk, clocks)
        end = clocks.to_timing(chunk["end_wall_ns"], worker)
        used += _clipped(start, end, begin_ns, stops[worker])
    return used


def _conversations(rows: PhaseRows, clocks: ClockMap, begin_ns: int, stops: Times) -> float:
    first = np.zeros(0, dtype=np.int64)
    last = np.zeros(0, dtype=np.int64)
    owner = np.zeros(0, dtype=np.int64)
    has_ended = np.zeros(0, dtype=np.int8)
    late, longest_pause = 0.0, 0
    for chunk in rows.chunks(Population.SENT):
        worker, index = chunk["worker"], chunk["index"].astype(np.int64)
        size = int(index.max()) + 1
        first, last, owner = padded(first, size, 2**62), padded(last, size, 0), padded(owner, size)
        has_ended = padded(has_ended, size)
        taken = _taken(chunk, clocks)
        due = clocks.to_timing(chunk["due_wall_ns"], worker)
        end = clocks.to_timing(chunk["end_wall_ns"], worker)
        np.minimum.at(first, index, taken)
        np.maximum.at(last, index, end)
        owner[index] = worker
        is_end = (chunk["flags"] & np.uint16(Flag.LAST_TURN)) != 0
        has_ended[index[is_end | (chunk["outcome"] != Outcome.COMPLETED)]] = True
        later = chunk["turn"] > 0
        late += _clipped(due[later], taken[later], begin_ns, stops[worker[later]])
        longest_pause = max(longest_pause, _longest_pause(index, chunk["turn"], due, end))
    between = (last > 0) & ~has_ended.astype(np.bool_)
    held_until = np.where(between, last + longest_pause, last)
    return _clipped(first, held_until, begin_ns, stops[owner]) - late


def _longest_pause(index: Times, turn: NDArray[Any], due: Times, end: Times) -> int:
    """Return the longest think time between two turns of one conversation in this chunk."""
    order = np.lexsort((turn, index))
    follows = (np.diff(index[order]) == 0) & (np.diff(turn[order].astype(np.int64)) == 1)
    pauses = (due[order][1:] - end[order][:-1])[follows]
    return max(0, int(pauses.max())) if len(pauses) else 0


def _taken(chunk: Chunk, clocks: ClockMap) -> NDArray[Any]:
    """Return when each slot was taken. Connecting belongs to the request, not to the client's
    schedule lag."""
    connecting_ns = chunk["connect_ns"] + chunk["tls_ns"]
    return clocks.to_timing(chunk["start_wall_ns"] - connecting_ns, chunk["worker"])


def _clipped(start: NDArray[Any], end: NDArray[Any], begin_ns: int, stop_ns: Times) -> float:
    inside = np.minimum(end, stop_ns) - np.maximum(start, begin_ns)
    return float(np.maximum(inside, 0).sum(dtype=np.float64)) / 1e9
