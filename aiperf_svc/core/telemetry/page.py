"""Parses Prometheus text pages, fast enough for many targets each second.

A page repeats the same series with other values. So the part of a line before its last space is
looked up first, and only new lines are parsed. prometheus_client parses each line again, at twenty
times the CPU (docs/decisions/0051-where-http-and-metrics-are-read-by-own-code.md).
"""

import math
import re
from typing import NamedTuple

MAX_SERIES_KNOWN = 100_000
"""Maximum number of lines that a reader remembers, so that a server whose labels never repeat does
not fill the memory."""
SHOWN = 60
"""Maximum characters of a refused line in the message."""

_LINE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:[ \t]*\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}[ \t]*|[ \t]+)'
    r"([^\s{}\"#]+)(?:[ \t]+([^\s{}\"#]+))?(?:[ \t]+#.*)?"
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPE = re.compile(r'\\([\\n"])')
_TYPES = {
    *("counter", "gauge", "histogram", "summary", "untyped"),
    *("gaugehistogram", "unknown", "info", "stateset"),
}
"""Types of the text format and of OpenMetrics."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class PageError(ValueError):
    """The text is not a metrics page."""


class Series(NamedTuple):
    """A name with labels, sorted by label name."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, name: str) -> str:
        """Value of a label; empty if there is none."""
        return next((value for key, value in self.labels if key == name), "")


class Page(NamedTuple):
    values: dict[Series, float]
    """The last value, if a page repeats a series."""
    types: dict[str, str]
    """Type by name of the family, as the page declares it."""
    oldest_ms: int | None
    """Minimum timestamp of the page's samples, ms since 1970; None if they have none."""


class PageReader:
    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def read(self, text: str) -> Page:
        """Return the samples of a page. Raises PageError that quotes the first invalid line, or for
        a page without samples."""
        values: dict[Series, float] = {}
        types: dict[str, str] = {}
        stamps: list[float] = []
        known = self._series
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line:
                continue
            if line[0] == "#":
                _read_comment(line, types, number)
                continue
            key, _, written = line.rpartition(" ")
            series = known.get(key)
            if series is not None and (value := _float(written)) is not None:
                values[series] = value
                continue
            series, value, stamp = self._parse_line(line, number)
            values[series] = value
            if stamp is not None:
                stamps.append(stamp)
        if not values:
            raise PageError("the page has no samples")
        # OpenMetrics, which ends with this line, has timestamps in seconds.
        to_ms = 1000 if text.rstrip().endswith("\n# EOF") else 1
        stamps_ms = (stamp * to_ms for stamp in stamps)
        oldest_ms = min(filter(math.isfinite, stamps_ms), default=None)
        return Page(values, types, None if oldest_ms is None else round(oldest_ms))

    def _parse_line(self, line: str, number: int) -> tuple[Series, float, float | None]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise _refused(line, number)
        name, labels, written, stamp = match.groups()
        series = Series(name, _labels(labels, line, number) if labels else ())
        value = _number(written, line, number)
        if stamp is not None:
            return series, value, _number(stamp, line, number)
        if match.end(3) == len(line) and len(self._series) < MAX_SERIES_KNOWN:
            self._series[line[: match.start(3)].removesuffix(" ")] = series
        return series, value, None


def _read_comment(line: str, types: dict[str, str], number: int) -> None:
    words = line[1:].split(None, 3)
    if not words or words[0] not in ("TYPE", "HELP"):
        return
    name, declared = words[1] if len(words) > 1 else "", " ".join(words[2:])
    if name and not _NAME.fullmatch(name):
        raise _refused(line, number)
    if words[0] == "TYPE":
        if declared not in _TYPES:
            raise _refused(line, number)
        types[name] = declared


def _labels(text: str, line: str, number: int) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _LABEL.match(text, place)
        if match is None or match[1] in found:
            raise _refused(line, number)
        value = match[2]
        found[match[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        place = match.end()
    return tuple(sorted(found.items()))


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str, line: str, number: int) -> float:
    value = _float(text)
    if value is None:
        raise _refused(line, number)
    return value


def _float(text: str) -> float | None:
    # Python allows underscores between digits, the format does not.
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _refused(line: str, number: int) -> PageError:
    shown = line if len(line) <= SHOWN else line[:SHOWN] + "…"
    return PageError(f"line {number} is not a sample: {shown}")
