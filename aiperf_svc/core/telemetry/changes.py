"""Finds the changes of a page relative to the previous one of the same source.

Most values of a page repeat, so only changes are sent and stored.

Labels of a counter may change between pages, such as a pod name or a version. Then one series
disappears, and another one of the same name appears with a value that is no smaller. It continues
the first series. As a separate series it would count from zero, and everything counted before would
seem to have happened during the load.
"""

import math
from collections import defaultdict
from typing import NamedTuple

from aiperf_svc.core.telemetry.families import Kind, family_type, is_known, portables_of
from aiperf_svc.core.telemetry.page import Page, Series

MAX_SERIES = 5_000
"""Maximum number of series kept per source. A page of vLLM has about 300."""
MAX_OTHER_SERIES = 2_000
"""Maximum number of these that are neither portable nor a GPU's."""


COUNTERS = ("counter", "histogram")
"""Types of families whose values never decrease."""


class NewSeries(NamedTuple):
    """A series that no earlier page has. Numbers count from 0 in the order of appearance."""

    series: Series
    family: str
    type: str


class Changes(NamedTuple):
    """The differences between a page and the previous one."""

    new: list[NewSeries]
    numbers: list[int]
    """Numbers of the changed series, including new ones."""
    values: list[float]
    """Their values; NaN for a series that has disappeared."""
    left_out: int
    """Number of series beyond the limits."""


class ChangeFinder:
    """Compares the pages of one source."""

    def __init__(self) -> None:
        self._numbers: dict[Series, int] = {}
        self._last: dict[Series, float] = {}
        self._left_out: set[Series] = set()
        self._others = 0
        self._relabelled: dict[Series, Series] = {}
        """Maps a series to the one that it continues."""

    def take(self, page: Page) -> Changes:
        new: list[NewSeries] = []
        numbers: list[int] = []
        values: list[float] = []
        last = self._last
        page = page._replace(values=self._with_first_labels(page))
        for series, value in page.values.items():
            before = last.get(series)
            if before is None:
                if not self._has_room(series):
                    continue
                new.append(NewSeries(series, *family_type(series, page.types)))
            elif value == before or (math.isnan(value) and math.isnan(before)):
                continue
            last[series] = value
            numbers.append(self._numbers[series])
            values.append(value)
        if len(page.values) < len(last) + len(self._left_out):
            for series, value in last.items():
                if series not in page.values and not math.isnan(value):
                    last[series] = math.nan
                    numbers.append(self._numbers[series])
                    values.append(math.nan)
        return Changes(new, numbers, values, len(self._left_out))

    def _with_first_labels(self, page: Page) -> dict[Series, float]:
        """Return the values of a page, with the first labels of each series."""
        values, relabelled, last = page.values, self._relabelled, self._last
        if last and any(each not in last and each not in relabelled for each in values):
            self._find_relabelled(page)
        if not relabelled:
            return values
        found = {}
        for series, value in values.items():
            first = relabelled.get(series, series)
            if first is not series and first in values:
                del relabelled[series]  # Both exist, so they are two series.
                first = series
            found[first] = value
        return found

    def _find_relabelled(self, page: Page) -> None:
        """Find the new counters that continue a counter that disappeared."""
        values, relabelled, last = page.values, self._relabelled, self._last
        present = {relabelled.get(series, series) for series in values}
        disappeared: defaultdict[str, list[Series]] = defaultdict(list)
        for series, value in last.items():
            if series not in present and not math.isnan(value):
                disappeared[series.name].append(series)
        if not disappeared:
            return
        for series, value in values.items():
            candidates = disappeared.get(series.name)
            if not candidates or series in last or series in relabelled:
                continue
            if not _only_grows(series, page.types):
                continue
            alike = [each for each in candidates if last[each] <= value]
            if alike:
                labels = set(series.labels)
                first = max(alike, key=lambda each: len(labels.intersection(each.labels)))
                candidates.remove(first)
                relabelled[series] = first

    def _has_room(self, series: Series) -> bool:
        """Assign a number to a series if it can be kept."""
        if series in self._left_out:
            return False
        is_other = not is_known(series)
        if len(self._numbers) >= MAX_SERIES or (is_other and self._others >= MAX_OTHER_SERIES):
            if len(self._left_out) < MAX_SERIES:
                self._left_out.add(series)
            return False
        self._numbers[series] = len(self._numbers)
        self._others += is_other
        return True


def _only_grows(series: Series, types: dict[str, str]) -> bool:
    """Return whether a series is a counter, or a part of a histogram."""
    kind = family_type(series, types)[1]
    if kind != "unknown":
        return kind in COUNTERS
    portables = portables_of(series)
    return bool(portables) and all(each.kind is not Kind.GAUGE for each in portables)
