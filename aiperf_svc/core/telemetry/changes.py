"""Finds what is new on a page since the last one of the same source.

Most values of a page repeat, so only changes travel and are kept: what has not changed is what it
was.
"""

import math
from typing import NamedTuple

from aiperf_svc.core.telemetry.families import family_type, is_known
from aiperf_svc.core.telemetry.page import Page, Series

MAX_SERIES = 5_000
"""Series of a source that are kept. A page of vLLM has about 300."""
MAX_OTHER_SERIES = 2_000
"""Those of them that are neither portable nor a GPU's."""


class NewSeries(NamedTuple):
    """A series that no page had before; its number counts from 0 in the order of appearance."""

    series: Series
    family: str
    type: str


class Changes(NamedTuple):
    """What a page says that the page before did not."""

    new: list[NewSeries]
    numbers: list[int]
    """Numbers of the series that changed, the new ones included."""
    values: list[float]
    """Their values; NaN for one that is no longer on the page."""
    left_out: int
    """Series of the page that are beyond the limits."""


class ChangeFinder:
    """Compares the pages of one source."""

    def __init__(self) -> None:
        self._numbers: dict[Series, int] = {}
        self._last: dict[Series, float] = {}
        self._left_out: set[Series] = set()
        self._others = 0

    def take(self, page: Page) -> Changes:
        """Return the changes of this page."""
        new: list[NewSeries] = []
        numbers: list[int] = []
        values: list[float] = []
        last = self._last
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

    def _has_room(self, series: Series) -> bool:
        """Give a series its number if it can be kept."""
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
