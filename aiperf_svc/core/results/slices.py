"""The results of a run by time slices, from its records: the server's behaviour in the first ten
seconds, in the next ten, and so on; and the results of its steady part.

A request belongs to the slice in which it was started, as in AIPerf, so a slice shows how the
server handled the requests of that time. A request without a connection belongs to the slice of its
due time.

The config's rule finds the steady part. By shares of time, the window is the sending time without a
part at its beginning and its end. By concurrency, it is the longest span in which the number in
flight never fell below a share of its peak for longer than the refill of a slot.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.load_shapes import SteadyState
from aiperf_svc.core.results.distributions import distributions_of_part
from aiperf_svc.core.results.inference_result import SteadyStats
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.scalars import measured_scalars, scalars
from aiperf_svc.core.results.slo import good_requests
from aiperf_svc.core.results.summary import FinishedRun, metric_stats
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.concurrency import changes_in_flight
from aiperf_svc.core.stats.load_window import LoadWindow, load_window
from aiperf_svc.core.stats.totals import add_up
from aiperf_svc.domain.metric_catalog import CATALOG, Kind
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Outcome, Phase

Times = NDArray[np.int64]
_REFILL_NS = 10_000_000
"""Maximum time below the share that does not interrupt the span. Within it, users send their next
requests after responses that end together."""


def steady_window(
    rule: SteadyState, window: LoadWindow, starts: Times, ends: Times
) -> tuple[int, int]:
    """Return the begin and the end of the steady part. `starts` and `ends` are those of all sent
    requests, in any order."""
    if rule.concurrency is not None:
        return _busiest_span(rule.concurrency, starts, ends)
    length = window.sent_until_ns - window.begin_ns
    begin = window.begin_ns + round(length * rule.skip_start)
    return begin, window.sent_until_ns - round(length * rule.skip_end)


def _busiest_span(share: float, starts: Times, ends: Times) -> tuple[int, int]:
    if not len(starts):
        return 0, 0
    times, steps = changes_in_flight(starts, ends)
    level = np.cumsum(steps)
    is_busy = np.concatenate(([False], level >= share * level.max(), [False]))
    edges = np.flatnonzero(np.diff(is_busy.astype(np.int8)))
    begins, last = times[edges[::2]], times[np.minimum(edges[1::2], len(times) - 1)]
    is_break = begins[1:] - last[:-1] > _REFILL_NS
    begins = np.concatenate((begins[:1], begins[1:][is_break]))
    last = np.concatenate((last[:-1][is_break], last[-1:]))
    longest = int(np.argmax(last - begins))
    return int(begins[longest]), int(last[longest])


MAX_SLICES = 10_000
"""The width is doubled until a run has at most this many slices."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The requests started within a part of the run."""

    index: int
    """Number of the slice from the start of the load. Slices without requests are skipped."""
    start_wall_ns: int
    end_wall_ns: int
    is_complete: bool
    """False for the last slice, if sending stopped before its end. Its rates then cover its part of
    the load, as those of the run cover the whole load."""
    metrics: dict[str, MetricStats]


def slices(
    columns: Columns, context: FinishedRun, *, width_ns: int, has_unsent: bool = False
) -> Iterator[Slice]:
    """Yield the slices of the profiling phase, in order of time. `has_unsent`: some due requests
    were never sent. Uses memory for two numbers per request and for the records of one
    slice."""
    clocks = ClockMap((w.rank, w.clocks) for w in context.workers)
    totals = add_up(PhaseRows(columns), clocks)
    if totals.requests == totals.unsent:
        return
    window = load_window(context.profiling, totals, has_failed=bool(context.failure))
    begin_ns = window.begin_ns
    # By the clock, some requests start just outside the load; they belong to its first and last
    # slice. Separate slices would be nearly empty, with arbitrarily high rates.
    sending_ns = window.sent_until_ns if window.stop_ns else totals.last_tried + 1
    # If the credits ran out, a part that ended with the last start could be arbitrarily short.
    last_ns = sending_ns if window.stop_ns else max(sending_ns, window.end_ns)
    while (last_ns - begin_ns) > MAX_SLICES * width_ns:
        width_ns *= 2
    rows, numbers = _numbered(columns, clocks, (begin_ns, last_ns), width_ns)
    found, first = np.unique(numbers, return_index=True)
    for index, place, end in zip(found.tolist(), first, [*first[1:], len(rows)], strict=True):
        start_ns = begin_ns + index * width_ns
        end_ns = min(start_ns + width_ns, last_ns)
        chosen = np.sort(rows[place:end])
        some = {name: np.asarray(column)[chosen] for name, column in columns.items()}
        part = PhaseRows(some)
        measured = _measured(part, clocks, end_ns - start_ns, {}, has_unsent=has_unsent)
        yield Slice(
            index=index,
            start_wall_ns=start_ns,
            end_wall_ns=end_ns,
            is_complete=start_ns + width_ns <= sending_ns,
            metrics={
                tag: found
                for tag, found in measured.items()
                if CATALOG[tag].kind is not Kind.SCALAR or CATALOG[tag].in_slices
            },
        )


def steady_part(
    columns: Columns,
    clocks: ClockMap,
    window: LoadWindow,
    rule: SteadyState,
    goodput: Mapping[str, float | str],
    *,
    has_unsent: bool = False,
) -> SteadyStats:
    """Return the results of the steady part of a run: of the requests started in it, or due in it
    without a connection, with rates over its length. `goodput` are the limits of good requests;
    `has_unsent`: some due requests were never sent."""
    every = np.flatnonzero(
        (np.asarray(columns["phase"]) == Phase.PROFILING)
        & (np.asarray(columns["outcome"]) != Outcome.UNSENT)
    )
    starts, dues, ends = (
        clocks.to_timing(np.asarray(columns[name])[every], np.asarray(columns["worker"])[every])
        for name in ("start_wall_ns", "due_wall_ns", "end_wall_ns")
    )
    is_sent = starts != 0
    begin_ns, end_ns = steady_window(rule, window, starts[is_sent], ends[is_sent])
    begun = np.where(is_sent, starts, dues)
    is_inside = (begun >= begin_ns) & (begun < end_ns)
    # Nearly all rows may be steady, so they are not copied.
    is_steady = np.zeros(len(columns["phase"]), dtype=bool)
    is_steady[every[is_inside]] = True
    part = PhaseRows(columns, only=is_steady)
    metrics = {}
    if is_inside.any():
        length_ns = max(0, end_ns - begin_ns)
        metrics = _measured(part, clocks, length_ns, goodput, has_unsent=has_unsent)
    return SteadyStats(
        rule=rule.text,
        begin_s=(begin_ns - window.begin_ns) / 1e9,
        end_s=(end_ns - window.begin_ns) / 1e9,
        metrics=metrics,
    )


def _measured(
    part: PhaseRows,
    clocks: ClockMap,
    length_ns: int,
    goodput: Mapping[str, float | str],
    *,
    has_unsent: bool,
) -> dict[str, MetricStats]:
    """Return the metrics of these rows, with rates over a length."""
    measured = measured_scalars(
        add_up(part, clocks), None, requested_rate=None, window_ns=length_ns
    )
    numbers = scalars(part, measured | good_requests(part, goodput))
    return metric_stats(distributions_of_part(part, has_unsent=has_unsent), numbers)


def _numbered(
    columns: Columns, clocks: ClockMap, window_ns: tuple[int, int], width_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the phase's attempted requests, ordered by slice, and the slices. The
    window has the begin of the first slice and the end of the last one."""
    is_tried = np.asarray(columns["outcome"]) != Outcome.UNSENT
    rows = np.flatnonzero(is_tried & (np.asarray(columns["phase"]) == Phase.PROFILING))
    started = np.asarray(columns["start_wall_ns"])[rows]
    begun = np.where(started != 0, started, np.asarray(columns["due_wall_ns"])[rows])
    start = clocks.to_timing(begun, np.asarray(columns["worker"])[rows])
    begin_ns, last_ns = window_ns
    numbers = np.clip(start - begin_ns, 0, max(0, last_ns - 1 - begin_ns)) // width_ns
    order = np.argsort(numbers, kind="stable")
    return rows[order], numbers[order]
