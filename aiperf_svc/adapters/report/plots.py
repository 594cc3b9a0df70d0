"""Draws line plots as inline SVG: self-contained, sharp at any size, coloured by the style of the
page.

The pictures need no script. Where scripts run, `zoom.js` replaces plots that have their numbers
beside them by charts of uPlot, which is part of the page, so that all plots over time zoom
together. Nothing is loaded from elsewhere.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from markupsafe import Markup

from aiperf_svc.adapters.report.blocks import Figure
from aiperf_svc.adapters.report.scales import Scale

HALF, FULL = 560, 1150
"""Width of a plot in one column and in both, in the unit of its text."""
HEIGHT = 250
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 10, 30
FLOOR = HEIGHT - BOTTOM
"""Place of the x axis."""
DIGITS = 6
"""Significant digits of the numbers beside a plot."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line; points with NaN are gaps."""

    name: str
    """Name in the legend; empty: it has none."""
    style: str
    """CSS class: `a` to `g`, and `dashed`."""
    points: Sequence[tuple[float, float]]
    marks: Sequence[str] = ()
    """Text of each point, which then has a dot; it shows when the mouse rests on the dot."""
    intervals: Sequence[tuple[float, float, float]] = ()
    """Vertical bars: place, lower and upper end."""
    has_line: bool = True
    labels: Sequence[str] = ()
    """Text above each point."""


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded span of the x axis."""

    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Hint:
    """A span of the x axis with a text that shows when the mouse rests on it."""

    begin: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Shape:
    """An element of the picture: a path with `d`, a text with `anchor`, a rectangle with `width`,
    or else a dot. Places are formatted numbers."""

    style: str = ""
    """CSS classes."""
    d: str = ""
    x: str = ""
    y: str = ""
    anchor: str = ""
    width: str = ""
    text: str = ""
    """The text, or what shows when the mouse rests on a rectangle or dot."""


@dataclass(frozen=True)
class Plot(Figure):
    """A drawn plot."""

    kind: ClassVar[str] = "plot"
    title: str
    note: str
    width: int
    series: Sequence[Series]
    shapes: Sequence[Shape]
    numbers: Markup
    """What `zoom.js` draws; empty if the plot cannot be zoomed."""

    height: ClassVar[int] = HEIGHT
    rectangle_top: ClassVar[int] = TOP
    rectangle_height: ClassVar[int] = FLOOR - TOP

    @property
    def is_wide(self) -> bool:
        """Whether it takes both columns."""
        return self.width == FULL

    @property
    def has_numbers(self) -> bool:  # type: ignore[override]
        """Whether it can be zoomed."""
        return bool(self.numbers)

    @property
    def label(self) -> str:
        """Text for readers who do not see the picture."""
        return f"{self.title}: {', '.join(each.name for each in self.series if each.name)}"


def figure(
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x: Scale,
    y: Scale,
    width: int = HALF,
    bands: Iterable[Band] = (),
    hints: Iterable[Hint] = (),
    end: float | None = None,
) -> Plot:
    """Draw a plot. One that begins at 0 and ends at `end` can be zoomed."""
    across, bands = _Across(x, width), list(bands)
    shapes = [
        *(shape for band in bands for shape in _band(band, across)),
        *_grid(across, y),
        *(shape for each in series for shape in _intervals(each, across, y)),
        *(shape for each in series if each.has_line for shape in _line(each, across, y)),
        *(_hint(hint, across) for hint in hints),
        *(shape for each in series for shape in _marks(each, across, y)),
    ]
    numbers = Markup() if end is None else zoom_numbers(series, bands, end=end)
    return Plot(title, note, width, series, shapes, numbers)


@dataclass(frozen=True, slots=True)
class _Across:
    """The x axis of a plot of a width."""

    scale: Scale
    width: int

    def __call__(self, value: float) -> float:
        return LEFT + self.scale.place(value) * (self.end - LEFT)

    @property
    def end(self) -> int:
        return self.width - RIGHT


def _up(y: Scale, value: float) -> float:
    return FLOOR - y.place(value) * (FLOOR - TOP)


def _grid(x: _Across, y: Scale) -> Iterator[Shape]:
    for value, label in y.ticks:
        up = _up(y, value)
        yield Shape("grid", d=f"M{LEFT} {up:.1f}H{x.end}")
        yield Shape(x=f"{LEFT - 7}", y=f"{up + 3.5:.1f}", anchor="end", text=label)
    for value, label in x.scale.ticks:
        yield Shape("mark", d=f"M{x(value):.1f} {FLOOR}v4")
        yield Shape(x=f"{x(value):.1f}", y=f"{FLOOR + 17}", anchor="middle", text=label)


def _line(series: Series, x: _Across, y: Scale) -> Iterator[Shape]:
    path: list[str] = []
    is_down = False
    for place, value in series.points:
        if math.isnan(value):
            is_down = False
            continue
        point = f"{x(place):.1f} {_up(y, value):.1f}"
        # A lone point is a line of no length; round ends make it a dot.
        path.append(f"L{point}" if is_down else f"M{point}h0")
        is_down = True
    if path:
        yield Shape(f"line {series.style}", d="".join(path))


def _marks(series: Series, x: _Across, y: Scale) -> Iterator[Shape]:
    for (place, value), text in zip(series.points, series.marks, strict=False):
        style = f"dot {series.style}"
        yield Shape(style, x=f"{x(place):.1f}", y=f"{_up(y, value):.1f}", text=text)
    for (place, value), text in zip(series.points, series.labels, strict=False):
        above = f"{max(_up(y, value) - 8, TOP):.1f}"
        yield Shape(x=f"{x(place):.1f}", y=above, anchor="middle", text=text)


def _intervals(series: Series, x: _Across, y: Scale) -> Iterator[Shape]:
    """Draw the bars, cut at the ends of the axis."""
    path = []
    for place, low, high in series.intervals:
        bottom, top = (min(max(_up(y, value), TOP), FLOOR) for value in (low, high))
        path.append(f"M{x(place):.1f} {bottom:.1f}V{top:.1f}")
        path += [f"m-3 0h6M{x(place):.1f} {bottom:.1f}m-3 0h6"]
    if path:
        yield Shape(f"interval {series.style}", d="".join(path))


def _band(band: Band, x: _Across) -> Iterator[Shape]:
    begin, end = (min(max(x(v), LEFT), x.end) for v in (band.begin, band.end))
    if end - begin < 1:
        return
    yield Shape("band", x=f"{begin:.1f}", width=f"{end - begin:.1f}", text=band.label)
    if end - begin > 40:
        middle = f"{(begin + end) / 2:.1f}"
        yield Shape(x=middle, y=f"{TOP + 11}", anchor="middle", text=band.label)


def _hint(hint: Hint, x: _Across) -> Shape:
    begin, end = x(hint.begin), min(x(hint.end), x.end)
    return Shape("hint", x=f"{begin:.1f}", width=f"{max(end - begin, 0):.1f}", text=hint.text)


def zoom_numbers(series: Iterable[Series], bands: Iterable[Band], *, end: float) -> Markup:
    """Return the numbers of a plot that begins at 0 and ends at `end`, as JSON for `zoom.js`."""
    times: list[list[float]] = []
    lines = []
    for each in series:
        at = [_rounded(place) for place, _ in each.points]
        if at not in times:
            times.append(at)
        values = [None if math.isnan(value) else _rounded(value) for _, value in each.points]
        lines.append(
            {"name": each.name, "style": each.style, "x": times.index(at), "y": values},
        )
    spans = [(band.begin, band.end) for band in bands]
    content = {"end": end, "x": times, "lines": lines, "bands": spans}
    # A text such as a label of a server's page must not end the element.
    return Markup(msgspec.json.encode(content).decode().replace("<", "\\u003c"))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
