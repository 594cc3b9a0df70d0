"""Stores the series of one source over a run: the times of the reads, and each changed value."""

import re
from array import array
from collections.abc import Iterable
from enum import Enum
from math import isinf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.telemetry.changes import ChangeFinder, NewSeries
from aiperf_svc.core.telemetry.families import RANK_LABELS, gpu_field_of, is_blank, portables_of
from aiperf_svc.core.telemetry.page import Page, Series

MAX_POINTS = 2_000_000
"""Maximum number of values kept per source: 24 MB. A server with 300 changing series reaches this
in nearly two hours at one page per second."""
HELD_NS = 10_000_000_000
"""Maximum time for which the gauges of a source's last page count, unless its pages are less
frequent. A dead server runs no requests, but a saturated one may not respond for some seconds."""
_SERVERS = ("instance", "server")
"""Labels that distinguish the servers of a page from a Prometheus federation or a router."""
_TIMES_SPENT = re.compile(r"(?!process_|python_|http_).*(?:seconds|duration).*_(?:sum|total|us)")
"""Times that servers spend on requests, without the time to read a page, which always differs."""

Times = NDArray[np.int64]
Values = NDArray[np.float64]


class Mark(Enum):
    """Part of a series that identifies its page's server."""

    CREATED = "created"
    """When it began to count, in microseconds."""
    START = "start"
    """When its process began, in hundredths of a second. Replicas may begin together."""
    SPENT = "spent"
    """The time that it has spent on its requests."""


class Curve(NamedTuple):
    """A series over time: its value on each page, NaN if it is missing."""

    wall_ns: Times
    values: Values


class SourceLog:
    """All data read from one source."""

    def __init__(
        self, url: str, *, is_gpu: bool = False, is_guess: bool = False, pool: str = ""
    ) -> None:
        self.url = url
        self.pool = pool
        """Pool of a release whose pod has the page; empty if none."""
        self.is_gpu = is_gpu
        self.is_guess = is_guess
        """True if the user did not configure it: the target's own page, which may not exist, or an
        exporter that may have none of the target's GPUs."""
        self.facts: dict[str, str] = {}
        """The server's description of itself."""
        self.series: list[NewSeries] = []
        self.left_out = 0
        """Number of series beyond the limits."""
        self.is_full = False
        """True if values were dropped because there were too many."""
        self.failures = 0
        self.failure = ""
        """Text of the last failure."""
        self.clock_offset_s = 0.0
        """Largest known difference between the source's clock and ours."""
        self.portable: dict[str, list[int]] = {}
        """Numbers of the series of each portable quantity."""
        self.has_several_servers = False
        """Whether labels of its portable series distinguish servers."""
        self.spent = array("q")
        """A hash of all times that the page's server had spent on requests, for each page on which
        any of them changed."""
        self.spent_since_ns = array("q")
        """When each of these pages was read."""
        self._marks: dict[Mark, list[int]] = {mark: [] for mark in Mark}
        """Numbers of the series that identify the page's server."""
        self._spent_numbers: set[int] = set()
        """Part of these that are times spent on requests."""
        self._of_gpus: set[int] = set()
        """Numbers of the series that are fields of GPUs."""
        self._gpu_places = array("q")
        """Numbers of the pages on which a value of any GPU changed."""
        self._served: set[Series] = set()
        """Portable series without rank labels; series of other ranks are copies."""
        self._finder = ChangeFinder()
        self._wall_ns = array("q")
        self._latency_ns = array("q")
        self._changed: list[array[int]] = []
        """Maps a series to the numbers of the pages on which its value changed."""
        self._values: list[array[float]] = []
        self._count = 0
        self._has_changes = array("b")

    def add(
        self, page: Page, *, wall_ns: int, latency_ns: int, clock_offset_s: float = 0.0
    ) -> None:
        """Add a page. `clock_offset_s` is the difference between the source's clock and ours."""
        if self.is_gpu or any(map(isinf, page.values.values())):
            known = {series: v for series, v in page.values.items() if not is_blank(series, v)}
            page = page._replace(values=known)
        changes = self._finder.take(page)
        place = len(self._wall_ns)
        self._wall_ns.append(wall_ns)
        self._latency_ns.append(latency_ns)
        self._has_changes.append(bool(changes.numbers))
        for new in changes.new:
            if not self._is_copy(new.series):
                for portable in portables_of(new.series):
                    self.portable.setdefault(portable.name, []).append(len(self.series))
                    self.has_several_servers |= names_a_server(new.series)
            if (mark := mark_of(new.series)) is not None:
                self._marks[mark].append(len(self.series))
                if mark is Mark.SPENT:
                    self._spent_numbers.add(len(self.series))
            if gpu_field_of(new.series) is not None:
                self._of_gpus.add(len(self.series))
            self.series.append(new)
            self._changed.append(array("i"))
            self._values.append(array("d"))
        self.left_out = changes.left_out
        if page.oldest_ms is not None:
            age_s = wall_ns / 1e9 - page.oldest_ms / 1e3
            clock_offset_s = max(clock_offset_s, age_s, key=abs)
        self.clock_offset_s = max(self.clock_offset_s, clock_offset_s, key=abs)
        if self._count + len(changes.numbers) > MAX_POINTS:
            self.is_full = True
            return
        self._count += len(changes.numbers)
        for number, value in zip(changes.numbers, changes.values, strict=True):
            self._changed[number].append(place)
            self._values[number].append(value)
        if not self._of_gpus.isdisjoint(changes.numbers):
            self._gpu_places.append(place)
        if not self._spent_numbers.isdisjoint(changes.numbers):
            self._note_spent(wall_ns)

    def _note_spent(self, wall_ns: int) -> None:
        """Record the times spent on requests if any of them is new. Zeros do not distinguish
        servers."""
        marks = self.marks(Mark.SPENT)
        values = {series: value for series, value in marks.items() if value == value}
        if not any(values.values()):
            return
        spent = hash(frozenset(values.items()))
        if not self.spent or spent != self.spent[-1]:
            self.spent.append(spent)
            self.spent_since_ns.append(wall_ns)

    def _is_copy(self, series: Series) -> bool:
        """Return whether another rank has reported this series."""
        labels = tuple(pair for pair in series.labels if pair[0] not in RANK_LABELS)
        if len(labels) == len(series.labels):
            return False
        whole = Series(series.name, labels)
        is_known = whole in self._served
        self._served.add(whole)
        return is_known

    def fail(self, text: str) -> None:
        """Record that a page could not be read."""
        self.failures += 1
        self.failure = text

    @property
    def has_pages(self) -> bool:
        """True if at least one page was read."""
        return bool(self._wall_ns)

    @property
    def has_gpus(self) -> bool:
        """True if any page has GPU fields."""
        return bool(self._of_gpus)

    @property
    def wall_ns(self) -> Times:
        """Times at which pages were read."""
        return np.array(self._wall_ns, dtype=np.int64)

    @property
    def latency_ns(self) -> Times:
        """Response time of the source for each page."""
        return np.array(self._latency_ns, dtype=np.int64)

    @property
    def updates(self) -> Times:
        """Times of the pages on which any value differs from the previous page."""
        updates: Times = self.wall_ns[np.array(self._has_changes, dtype=bool)]
        return updates

    def curve(self, *numbers: int) -> Curve:
        """Return a series over all pages; of several series, the last one on each page."""
        whole = np.full(len(self._wall_ns), np.nan)
        for number in numbers:
            places = np.array(self._changed[number], dtype=np.int64)
            if len(places):
                lengths = np.diff(places, append=len(whole))
                values = np.repeat(np.array(self._values[number]), lengths)
                np.copyto(whole[places[0] :], values, where=~np.isnan(values))
        return Curve(self.wall_ns, whole)

    def sampled(self, *numbers: int, with_gaps: bool = False) -> Curve:
        """Return a GPU's series on the pages on which a value of any GPU changed. An exporter that
        samples its GPUs rarely repeats old values in between. With gaps, pages without the series
        are NaN."""
        curve = self.curve(*numbers)
        places = np.array(self._gpu_places, dtype=np.int64)
        if not with_gaps:
            places = places[~np.isnan(curve.values[places])]
        return Curve(curve.wall_ns[places], curve.values[places])

    def changes(self, number: int) -> Curve:
        """Return a series only on the pages on which it changed."""
        places = np.array(self._changed[number], dtype=np.int64)
        return Curve(self.wall_ns[places], np.array(self._values[number]))

    def marks(self, mark: Mark) -> dict[Series, float]:
        """Return the newest values of the series that identify the page's server."""
        return {self.series[number].series: self.last(number) for number in self._marks[mark]}

    def last(self, number: int) -> float:
        """Return the newest value of a series."""
        return self._values[number][-1] if self._values[number] else float("nan")


def held_until_ns(wall_ns: Times) -> int:
    """Return the time until which the gauges of a source's last page count, given the times of its
    pages, at least one."""
    gap_ns = float(np.median(np.diff(wall_ns[-10:]))) if len(wall_ns) > 1 else 0.0
    return int(wall_ns[-1]) + max(HELD_NS, round(3 * gap_ns))


def within(curve: Curve, begin_ns: int, end_ns: int) -> Values:
    """Return the values of the pages that were read from `begin_ns` to `end_ns`."""
    return curve.values[(curve.wall_ns >= begin_ns) & (curve.wall_ns <= end_ns)]


def missed_ns(log: SourceLog, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return how long counters had no page at the begin and at the end of a load. Their growth in
    that time is unknown. The log must have a page."""
    times = log.wall_ns
    return max(0, int(times[0]) - begin_ns), max(0, end_ns - int(times[-1]))


def grown(curve: Curve, begin_ns: int, end_ns: int) -> float | None:
    """Return the growth of a counter from the last page before `begin_ns` to the first one after
    `end_ns`, so everything in between is counted. Returns None if no page after the first has
    it."""
    first = max(0, int(np.searchsorted(curve.wall_ns, begin_ns, side="right")) - 1)
    last = int(np.searchsorted(curve.wall_ns, end_ns, side="left"))
    before, after = curve.values[: first + 1], curve.values[first + 1 : last + 1]
    earlier, later = before[~np.isnan(before)], after[~np.isnan(after)]
    if not len(later):
        return None
    # A labelled counter that appears during the run counts from zero.
    start = float(earlier[-1]) if len(earlier) else 0.0
    return float(later[-1]) - start


def restarts(curves: Iterable[Curve]) -> int:
    """Return how often counters decreased because their server was restarted."""
    resets = 0
    for curve in curves:
        values = curve.values[~np.isnan(curve.values)]
        resets = max(resets, int((np.diff(values) < 0).sum()))
    return resets


def returns(curves: Iterable[Curve]) -> int:
    """Return how often a counter disappeared from the pages and returned."""
    breaks = 0
    for curve in curves:
        is_there = ~np.isnan(curve.values)
        begins = np.flatnonzero(np.diff(is_there.astype(np.int8)) > 0)
        breaks = max(breaks, len(begins) - (not is_there[:1].all()))
    return breaks


def mark_of(series: Series) -> Mark | None:
    """Return the part of a series that identifies its server; None for most series."""
    name = series.name
    if name.endswith("_created"):
        return Mark.CREATED
    if name == "process_start_time_seconds":
        return Mark.START
    return Mark.SPENT if _TIMES_SPENT.fullmatch(name) else None


def names_a_server(series: Series) -> bool:
    """Return whether a series belongs to one of several servers of its page."""
    return any(series.label(name) for name in _SERVERS)
