"""Draws line plots as inline SVG: self-contained, sharp at any size, coloured by the page's style.

The images need no script. If scripts run, `zoom.js` replaces plots that have their numbers on the
page with charts of uPlot, which is part of the page, so all plots over time zoom together. Nothing
is loaded from elsewhere.
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
"""Width of a plot in one column and in both, in the units of its text."""
HEIGHT, TALL = 250, 420
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 10, 30
LABEL_ROOM = (26, 13)
"""Width and height of a label beside a dot; a label without this room is left out."""
DIGITS = 6
"""Significant digits of the numbers for zooming."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line; points with NaN are gaps."""

    name: str
    """Name in the legend; empty if it has none."""
    style: str
    """CSS class: `a` to `g`, and `dashed`."""
    points: Sequence[tuple[float, float]]
    marks: Sequence[str] = ()
    """Text of each point, shown when the mouse is over the point's dot."""
    labels: Sequence[str] = ()
    """Text beside each point, if there is room."""
    intervals: Sequence[tuple[float, float, float]] = ()
    """Vertical bars: position, lower and upper end."""
    has_line: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded span of the x axis."""

    begin: float
    end: float
    label: str
    is_event: bool = False
    """If true, it is coloured, and a narrow one has its label beside it."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A span of the x axis with a text that is shown when the mouse is over it."""

    begin: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Shape:
    """An element of the image: a path with `d`, a text with `anchor`, a rectangle with `width`, or
    else a dot. Positions are formatted numbers."""

    style: str = ""
    """CSS classes."""
    d: str = ""
    x: str = ""
    y: str = ""
    anchor: str = ""
    width: str = ""
    text: str = ""
    """The text, or the tooltip of a rectangle or dot."""


@dataclass(frozen=True)
class Plot(Figure):
    title: str
    note: str
    width: int
    series: Sequence[Series]
    shapes: Sequence[Shape]
    numbers: Markup
    """The data for `zoom.js`; empty if the plot cannot be zoomed."""
    height: int = HEIGHT

    rectangle_top: ClassVar[int] = TOP

    @property
    def rectangle_height(self) -> int:
        """Height of the area between the axes."""
        return self.height - BOTTOM - TOP

    @property
    def is_wide(self) -> bool:
        """Whether it spans both columns."""
        return self.width == FULL

    @property
    def has_numbers(self) -> bool:  # type: ignore[override]
        return bool(self.numbers)

    @property
    def label(self) -> str:
        """Text for readers who cannot see the image."""
        names = ", ".join(each.name for each in self.series if each.name)
        title = ", ".join(filter(None, (self.title, self.note)))
        return f"{title}: {names}" if names else title


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a plot, and the area between them."""

    x: Scale
    y: Scale
    width: int = HALF
    height: int = HEIGHT
    titles: tuple[str, str] = ("", "")
    """Titles of x and y, inside the image."""
    length: float | None = None
    """Length of an x axis that starts at 0; only a plot with this length can be zoomed."""

    def across(self, value: float) -> float:
        """Position of a value on the x axis."""
        return LEFT + self.x.place(value) * (self.end - LEFT)

    def up(self, value: float) -> float:
        """Position of a value on the y axis."""
        return self.floor - self.y.place(value) * (self.floor - TOP)

    @property
    def end(self) -> int:
        return self.width - RIGHT

    @property
    def floor(self) -> int:
        """Position of the x axis."""
        return self.height - BOTTOM


def figure(
    title: str,
    note: str,
    series: Sequence[Series],
    axes: Axes,
    *,
    bands: Sequence[Band] = (),
    hints: Iterable[Hint] = (),
) -> Plot:
    shapes = [
        *(shape for band in bands for shape in _band(band, axes)),
        *_grid(axes),
        *_titles(axes),
        *(shape for each in series for shape in _intervals(each, axes)),
        *(shape for each in series if each.has_line for shape in _line(each, axes)),
        *(_hint(hint, axes) for hint in hints),
        *(shape for each in series for shape in _marks(each, axes)),
        *_labels(series, axes),
    ]
    end = axes.length
    numbers = Markup() if end is None else zoom_numbers(series, bands, end=end)
    return Plot(title, note, axes.width, series, shapes, numbers, axes.height)


def _grid(axes: Axes) -> Iterator[Shape]:
    for value, label in axes.y.ticks:
        up = axes.up(value)
        yield Shape("grid", d=f"M{LEFT} {up:.1f}H{axes.end}")
        yield Shape(x=f"{LEFT - 7}", y=f"{up + 3.5:.1f}", anchor="end", text=label)
    for value, label in axes.x.ticks:
        across = f"{axes.across(value):.1f}"
        yield Shape("mark", d=f"M{across} {axes.floor}v4")
        yield Shape(x=across, y=f"{axes.floor + 17}", anchor="middle", text=label)


def _titles(axes: Axes) -> Iterator[Shape]:
    of_x, of_y = axes.titles
    if of_x:
        yield Shape(x=f"{axes.end}", y=f"{axes.floor - 7}", anchor="end", text=of_x)
    if of_y:
        yield Shape(x=f"{LEFT + 6}", y=f"{TOP + 14}", anchor="start", text=of_y)


def _line(series: Series, axes: Axes) -> Iterator[Shape]:
    path: list[str] = []
    is_down = False
    for place, value in series.points:
        if math.isnan(value):
            is_down = False
            continue
        point = f"{axes.across(place):.1f} {axes.up(value):.1f}"
        # A lone point is a line of no length; round ends make it a dot.
        path.append(f"L{point}" if is_down else f"M{point}h0")
        is_down = True
    if path:
        yield Shape(f"line {series.style}", d="".join(path))


def _marks(series: Series, axes: Axes) -> Iterator[Shape]:
    for (place, value), text in zip(series.points, series.marks, strict=False):
        style, across, up = f"dot {series.style}", axes.across(place), axes.up(value)
        yield Shape(style, x=f"{across:.1f}", y=f"{up:.1f}", text=text)


def _labels(series: Iterable[Series], axes: Axes) -> Iterator[Shape]:
    """Write labels to the upper right of their dots if there is room, inside the image."""
    width, height = LABEL_ROOM
    taken: list[tuple[float, float]] = []
    for each in series:
        for (place, value), text in zip(each.points, each.labels, strict=False):
            across = min(axes.across(place) + 6, axes.end + RIGHT - width)
            up = max(axes.up(value) - 6, height)
            if any(abs(across - x) < width and abs(up - y) < height for x, y in taken):
                continue
            taken.append((across, up))
            yield Shape(x=f"{across:.1f}", y=f"{up:.1f}", anchor="start", text=text)


def _intervals(series: Series, axes: Axes) -> Iterator[Shape]:
    """Draw the bars, cut at the ends of the axis."""
    path = []
    for place, low, high in series.intervals:
        across = axes.across(place)
        bottom, top = (min(max(axes.up(value), TOP), axes.floor) for value in (low, high))
        path.append(f"M{across:.1f} {bottom:.1f}V{top:.1f}")
        path += [f"m-3 0h6M{across:.1f} {bottom:.1f}m-3 0h6"]
    if path:
        yield Shape(f"interval {series.style}", d="".join(path))


def _band(band: Band, axes: Axes) -> Iterator[Shape]:
    begin, end = (min(max(axes.across(v), LEFT), axes.end) for v in (band.begin, band.end))
    if end - begin < 1:
        return
    style = "band event" if band.is_event else "band"
    yield Shape(style, x=f"{begin:.1f}", width=f"{end - begin:.1f}", text=band.label)
    if end - begin > 40:
        middle = f"{(begin + end) / 2:.1f}"
        yield Shape(x=middle, y=f"{TOP + 11}", anchor="middle", text=band.label)
    elif band.is_event:
        yield Shape(x=f"{end + 4:.1f}", y=f"{TOP + 11}", anchor="start", text=band.label)


def _hint(hint: Hint, axes: Axes) -> Shape:
    begin, end = axes.across(hint.begin), min(axes.across(hint.end), axes.end)
    return Shape("hint", x=f"{begin:.1f}", width=f"{max(end - begin, 0):.1f}", text=hint.text)


def zoom_numbers(series: Iterable[Series], bands: Iterable[Band], *, end: float) -> Markup:
    """Return the numbers of a plot from 0 to `end`, as JSON for `zoom.js`."""
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
    spans = [(band.begin, band.end, band.label if band.is_event else "") for band in bands]
    content = {"end": end, "x": times, "lines": lines, "bands": spans}
    # A text such as a label of a server's metrics page must not end the element.
    return Markup(msgspec.json.encode(content).decode().replace("<", "\\u003c"))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
