"""Computes exactly how many requests were in flight, from their start and end times.

Starts and ends are sorted separately. The number in flight at a time is the number of starts so far
minus the number of ends. This takes two int64 columns (240 MB for 15 million requests) and one pass
in pieces.

`slot_use` computes whether a closed loop held the configured concurrency. The number in flight
falls at the end of every run, when the last requests drain, and rises with the ramp. The client
causes neither. So each worker is judged over its own window. It begins at the end of the ramp, or
when its slots were first all taken if that is just after it. It ends at the stop or, if a run ends
by count, at the worker's last start of a request or conversation: until then every free slot had a
next one. The available time is the worker's slots times that window. The used time is from
connecting to the last byte. Think time of a conversation holds the slot too, but the lateness of a
turn does not. A conversation between two turns at the stop counts as thinking for at most the
longest think time that a worker waited for. Any later time belongs to a turn that was not
sent.

With a limit on requests in prefill, users are supposed to wait. Then the wasted time counts: a slot
of a worker was free while one of its users waited. One such slot of several, idle for the whole
window, is at most that share of the load.
"""

import itertools
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

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

_MERGED_STARTS: Final = 1 << 17
"""Number of request starts that are merged with their ends at a time, which bounds memory."""
_START_NS: Final = 20_000_000
"""Maximum time in which a worker's first requests may leave one by one; it writes several hundred
in this time. Such a start takes equally long in short and long runs, so its share of the slot time
would depend on the length of the run. A worker that needs longer is judged from the end of the
ramp."""


class SlotUse(msgspec.Struct, frozen=True):
    """Use of the concurrency slots, in seconds of slot time."""

    used_s: float
    requested_s: float
    window_s: float
    """Mean length of the workers' windows."""

    @property
    def ratio(self) -> float:
        """Used over available slot time."""
        return self.used_s / self.requested_s


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a closed loop, and the time over which they count."""

    concurrency: int
    prefill_concurrency: int | None = None
    worker_count: int
    begin_ns: int
    """End of the ramp; with a limit on prefill, of both ramps."""
    stop_ns: int
    """End of sending; 0: a count ended it."""
    longest_pause_ns: int
    """Longest think time that a worker waited for."""
    begun: int = 0
    """Number of first conversations that hold their slots from the start, even if they begin with a
    pause."""


def slot_use(rows: PhaseRows, totals: Totals, clocks: ClockMap, loop: ClosedLoop) -> SlotUse | None:
    """Compute the use over all workers, each with its share of the concurrency or, if limited, of
    the prefill slots: a free prefill slot counts as unused only while a user of its worker waits.
    None if there is no window."""
    stops = _stops(totals, loop.worker_count, loop.stop_ns)
    limit = loop.prefill_concurrency or loop.concurrency
    slots = _dealt(limit, loop.worker_count, len(stops))
    begins = _begins(rows, clocks, slots, loop.begin_ns)
    requested_s = float(slots @ (np.maximum(stops - begins, 0) / 1e9))
    if requested_s <= 0:
        return None
    has_turns = bool(totals.is_multi_turn or loop.longest_pause_ns)
    if loop.prefill_concurrency is not None:
        held = _conversations(rows, clocks, loop.longest_pause_ns) if has_turns else None
        users = _dealt(loop.concurrency, loop.worker_count, len(stops))
        used_s = requested_s - sum(
            _unused(
                *_takers(rows, clocks, rank, held),
                slots=int(slots[rank]),
                users=int(users[rank]),
                begin_ns=int(begins[rank]),
                stop_ns=int(stops[rank]),
            )
            for rank in np.flatnonzero(slots).tolist()
        )
    elif has_turns:
        held = _conversations(rows, clocks, loop.longest_pause_ns, loop.begun)
        used_s = _clipped(held.first, held.last, begins[held.worker], stops[held.worker])
        for worker, due, taken in _later_turns(rows, clocks):
            used_s -= _clipped(due, taken, begins[worker], stops[worker])
    else:
        used_s = _requests(rows, clocks, begins, stops)
    return SlotUse(used_s, requested_s, requested_s / limit)


def _stops(totals: Totals, worker_count: int, stop_ns: int) -> Times:
    """Return the end of each worker's window."""
    last_begins = padded(totals.last_begin_by_worker, worker_count)
    if stop_ns:
        return np.full_like(last_begins, stop_ns)
    # A worker that never sent anything had slots too.
    return np.where(last_begins == 0, last_begins.max(), last_begins)


def _begins(rows: PhaseRows, clocks: ClockMap, slots: Times, begin_ns: int) -> Times:
    """Return the begin of each worker's window: when its slots were first all taken, if that is
    within `_START_NS` after `begin_ns`, and `begin_ns` otherwise."""
    owner = taken = np.zeros(0, dtype=np.int64)
    for chunk in rows.chunks(Population.SENT):
        times = _taken(chunk, clocks)
        is_early = times <= begin_ns + _START_NS
        owner = np.concatenate([owner, chunk["worker"][is_early].astype(np.int64)])
        taken = np.concatenate([taken, times[is_early]])
        order = np.lexsort((taken, owner))
        owner, taken = owner[order], taken[order]
        # Only the first requests of each worker, as many as it has slots.
        is_first = np.arange(len(owner)) - np.searchsorted(owner, owner) < slots[owner]
        owner, taken = owner[is_first], taken[is_first]
    has_all = (np.bincount(owner, minlength=len(slots)) == slots) & (slots > 0)
    begins = np.full(len(slots), begin_ns, dtype=np.int64)
    last = np.searchsorted(owner, np.arange(len(slots)), side="right") - 1
    begins[has_all] = np.maximum(begin_ns, taken[last[has_all]])
    return begins


def _dealt(count: int, worker_count: int, size: int) -> Times:
    """Return each worker's share of `count`, dealt by rank."""
    ranks = np.arange(size)
    shares = np.maximum((count - ranks + worker_count - 1) // worker_count, 0)
    return np.where(ranks < worker_count, shares, 0)


def _requests(rows: PhaseRows, clocks: ClockMap, begins: Times, stops: Times) -> float:
    used = 0.0
    for chunk in rows.chunks(Population.SENT):
        worker = chunk["worker"]
        start = _taken(chunk, clocks)
        end = clocks.to_timing(chunk["end_wall_ns"], worker)
        used += _clipped(start, end, begins[worker], stops[worker])
    return used


class _Held(msgspec.Struct, frozen=True):
    """Holding time of each conversation's slot, and its worker."""

    first: Times
    last: Times
    worker: Times


def _conversations(
    rows: PhaseRows, clocks: ClockMap, longest_pause_ns: int, begun: int = 0
) -> _Held:
    first = np.zeros(0, dtype=np.int64)
    last = np.zeros(0, dtype=np.int64)
    owner = np.zeros(0, dtype=np.int64)
    has_ended = np.zeros(0, dtype=np.int8)
    for chunk in rows.chunks(Population.SENT):
        worker, index = chunk["worker"], chunk["index"].astype(np.int64)
        size = int(index.max()) + 1
        first, last, owner = padded(first, size, 2**62), padded(last, size, 0), padded(owner, size)
        has_ended = padded(has_ended, size)
        np.minimum.at(first, index, _taken(chunk, clocks))
        np.maximum.at(last, index, clocks.to_timing(chunk["end_wall_ns"], worker))
        owner[index] = worker
        is_end = (chunk["flags"] & np.uint16(Flag.LAST_TURN)) != 0
        has_ended[index[is_end | (chunk["outcome"] != Outcome.COMPLETED)]] = True
    sent = last > 0
    first[:begun] = 0
    last[sent & ~has_ended.astype(np.bool_)] += longest_pause_ns
    return _Held(first[sent], last[sent], owner[sent])


def _later_turns(
    rows: PhaseRows, clocks: ClockMap, rank: int | None = None
) -> Iterator[tuple[Times, Times, Times]]:
    """Yield worker, due time and start of turns after the first, for one worker or all."""
    for chunk in rows.chunks(Population.SENT):
        later = chunk["turn"] > 0
        if rank is not None:
            later &= chunk["worker"] == rank
        some = chunk.where(later)
        due = clocks.to_timing(some["due_wall_ns"], some["worker"])
        taken = _taken(some, clocks)
        yield some["worker"], np.minimum(due, taken), taken


def _prefills(rows: PhaseRows, clocks: ClockMap, rank: int) -> tuple[Times, Times, Times]:
    """Return when a worker's requests took their slots, released them, and ended, each in ascending
    order."""
    columns: tuple[list[Times], list[Times], list[Times]] = ([], [], [])
    for chunk in rows.chunks(Population.SENT):
        some = chunk.where(chunk["worker"] == rank)
        worker = some["worker"]
        end = clocks.to_timing(some["end_wall_ns"], worker)
        first_token = clocks.to_timing(some["first_token_wall_ns"], worker)
        given_back = np.where(first_token == 0, end, first_token)
        for column, times in zip(columns, (_taken(some, clocks), given_back, end), strict=True):
            column.append(times)
    starts, first_tokens, ends = (np.sort(np.concatenate(column)) for column in columns)
    return starts, first_tokens, ends


def _takers(
    rows: PhaseRows, clocks: ClockMap, rank: int, held: _Held | None
) -> tuple[tuple[Times, Times], tuple[Times, Times]]:
    """Return when a worker's prefill slots are taken and released, and its users."""
    starts, first_tokens, ends = _prefills(rows, clocks, rank)
    takes = starts
    if held is not None:
        mine = held.worker == rank
        late = [times[1:] for times in _later_turns(rows, clocks, rank)]
        # A user whose turn is late waits too, as if its slot were free in that time.
        takes = np.sort(np.concatenate([held.first[mine], *(taken for _, taken in late)]))
        ends = np.sort(np.concatenate([held.last[mine], *(due for due, _ in late)]))
    return (starts, first_tokens), (takes, ends)


def _unused(
    prefills: tuple[Times, Times],
    conversations: tuple[Times, Times],
    *,
    slots: int,
    users: int,
    begin_ns: int,
    stop_ns: int,
) -> float:
    """Integrate the minimum of free slots and waiting users, in seconds. The two pairs are the
    ascending times at which slots and users were taken and released."""
    if stop_ns <= begin_ns:
        return 0.0
    cuts = prefills[0][_MERGED_STARTS::_MERGED_STARTS]
    cuts = np.concatenate([[begin_ns], cuts[(cuts > begin_ns) & (cuts < stop_ns)], [stop_ns]])
    unused = 0.0
    for start, stop in pairwise(cuts):
        edges = []
        for times in (*prefills, *conversations):
            low, high = np.searchsorted(times, (start, stop), side="right")
            edges.append(times[low:high])
        at = np.concatenate([[start], np.unique(np.concatenate(edges)), [stop]])
        free = np.clip(slots - _held_at(at[:-1], *prefills), 0, slots)
        waiting = np.clip(users - _held_at(at[:-1], *conversations), 0, users)
        unused += float(np.minimum(free, waiting) @ np.diff(at)) / 1e9
    return unused


def _held_at(at: Times, takes: Times, returns: Times) -> Times:
    """Return how many of those taken at `takes` had not been released at each time."""
    taken = np.searchsorted(takes, at, side="right").astype(np.int64)
    return taken - np.searchsorted(returns, at, side="right")


def _taken(chunk: Chunk, clocks: ClockMap) -> NDArray[Any]:
    """Return when each slot was taken."""
    return clocks.to_timing(chunk["start_wall_ns"], chunk["worker"])


def _clipped(start: NDArray[Any], end: NDArray[Any], begin_ns: Times, stop_ns: Times) -> float:
    inside = np.minimum(end, stop_ns) - np.maximum(start, begin_ns)
    return float(np.maximum(inside, 0).sum(dtype=np.float64)) / 1e9


_PIECE = 1 << 16


class ConcurrencyStats(msgspec.Struct, frozen=True):
    """Statistics of a level over a window, weighted by the time at each level."""

    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    std: float


def held_over_time(
    starts: Times, ends: Times, *, begin_ns: int, stop_ns: int
) -> ConcurrencyStats | None:
    """Return statistics of the number of open intervals `[start, end)` within
    `[begin_ns, stop_ns)`. Sorts both arrays in place. None for an empty window."""
    if stop_ns <= begin_ns:
        return None
    starts.sort()
    ends.sort()
    seconds = np.zeros(1, dtype=np.float64)  # time spent at each level
    # Pieces are cut at start times, so each has at most `_PIECE` starts.
    cuts = [begin_ns, *(int(t) for t in starts[_PIECE::_PIECE] if begin_ns < t < stop_ns), stop_ns]
    for left, right in itertools.pairwise(cuts):
        seconds = _add(seconds, _levels(starts, ends, left, right))
    return _stats(seconds)


def _levels(starts: Times, ends: Times, left: int, right: int) -> NDArray[np.float64]:
    """Return the time at each level within [left, right)."""
    s0, s1 = np.searchsorted(starts, [left, right], side="right")
    e0, e1 = np.searchsorted(ends, [left, right], side="right")
    when, steps = changes_in_flight(starts[s0:s1], ends[e0:e1])
    levels = int(s0 - e0) + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(steps)))
    edges = np.concatenate(([left], when, [right]))
    seconds = np.diff(edges) / 1e9
    return np.bincount(np.maximum(levels, 0), weights=seconds).astype(np.float64, copy=False)


def changes_in_flight(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Return the times at which the number in flight changes, in order, and the changes."""
    when = np.concatenate((starts, ends))
    steps = np.ones(len(when), dtype=np.int64)
    steps[len(starts) :] = -1
    # At the same instant, ends precede starts: a slot that is refilled immediately counts once.
    order = np.lexsort((steps, when))
    return when[order], steps[order]


def _add(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    size = max(len(one), len(other))
    return np.pad(one, (0, size - len(one))) + np.pad(other, (0, size - len(other)))


def _stats(seconds: NDArray[np.float64]) -> ConcurrencyStats:
    levels = np.arange(len(seconds), dtype=np.float64)
    total = float(seconds.sum())
    mean = float(seconds @ levels) / total
    spread = math.sqrt(max(0.0, float(seconds @ np.square(levels - mean)) / total))
    reached = np.cumsum(seconds) / total
    held = np.flatnonzero(seconds)

    def level(q: float) -> float:
        return float(min(np.searchsorted(reached, q * (1 - 1e-12)), held[-1]))

    return ConcurrencyStats(
        avg=mean,
        p50=level(0.50),
        p90=level(0.90),
        p95=level(0.95),
        p99=level(0.99),
        min=float(held[0]),
        max=float(held[-1]),
        std=spread,
    )
