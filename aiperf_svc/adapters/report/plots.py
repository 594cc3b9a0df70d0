"""Draws line plots as inline SVG: self-contained, sharp at any size, coloured by the page's
style."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from aiperf_svc.adapters.report.scales import Scale

HALF, FULL = 560, 1150
"""Width of a plot in one column and in both, in the unit of its text."""
HEIGHT = 250
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 10, 30


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
    numbers: str = "",
) -> str:
    """Draw a titled plot with its legend. `numbers` are those of `zoom`, as HTML."""
    legend = "".join(
        f'<span class="key"><svg width="22" height="8" aria-hidden="true">'
        f"{_key(s)}</svg>{escape(s.name)}</span>"
        for s in series
        if s.name
    )
    across = _Across(x, width)
    parts = [
        *(_band(band, across) for band in bands),
        _grid(across, y),
        *(_intervals(s, across, y) for s in series),
        *(_line(s, across, y) for s in series if s.has_line),
        *(_hint(hint, across) for hint in hints),
        *(_marks(s, across, y) for s in series),
    ]
    label = f"{title}: {', '.join(s.name for s in series if s.name)}"
    wide = ' class="wide"' if width == FULL else ""
    return (
        f"<figure{wide}><figcaption><b>{escape(title)}</b> <span>{escape(note)}</span></figcaption>"
        f'<div class="legend">{legend}</div>'
        f'<svg class="plot" viewBox="0 0 {width} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>{numbers}</figure>'
    )


def _key(series: Series) -> str:
    if not series.has_line:
        return f'<circle class="dot {series.style}" cx="11" cy="4" r="3.5"/>'
    return f'<path class="line {series.style}" d="M1 4H21"/>'


@dataclass(frozen=True, slots=True)
class _Across:
    """The x axis of a plot so wide."""

    scale: Scale
    width: int

    def __call__(self, value: float) -> float:
        return LEFT + self.scale.place(value) * (self.end - LEFT)

    @property
    def end(self) -> int:
        return self.width - RIGHT


def _up(y: Scale, value: float) -> float:
    return HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: _Across, y: Scale) -> str:
    rows = "".join(
        f'<path class="grid" d="M{LEFT} {_up(y, value):.1f}H{x.end}"/>'
        f'<text class="tick" x="{LEFT - 7}" y="{_up(y, value) + 3.5:.1f}" '
        f'text-anchor="end">{escape(label)}</text>'
        for value, label in y.ticks
    )
    columns = "".join(
        f'<path class="mark" d="M{x(value):.1f} {HEIGHT - BOTTOM}v4"/>'
        f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 17}" '
        f'text-anchor="middle">{escape(label)}</text>'
        for value, label in x.scale.ticks
    )
    return rows + columns


def _line(series: Series, x: _Across, y: Scale) -> str:
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
    return f'<path class="line {series.style}" d="{"".join(path)}"/>' if path else ""


def _marks(series: Series, x: _Across, y: Scale) -> str:
    return "".join(
        f'<circle class="dot {series.style}" cx="{x(place):.1f}" cy="{_up(y, value):.1f}" r="3.5">'
        f"<title>{escape(text)}</title></circle>"
        for (place, value), text in zip(series.points, series.marks, strict=False)
    )


def _intervals(series: Series, x: _Across, y: Scale) -> str:
    """Draw the bars, cut at the ends of the axis."""
    path = []
    for place, low, high in series.intervals:
        bottom, top = (min(max(_up(y, value), TOP), HEIGHT - BOTTOM) for value in (low, high))
        path.append(f"M{x(place):.1f} {bottom:.1f}V{top:.1f}")
        path += [f"m-3 0h6M{x(place):.1f} {bottom:.1f}m-3 0h6"]
    return f'<path class="interval {series.style}" d="{"".join(path)}"/>' if path else ""


def _band(band: Band, x: _Across) -> str:
    begin, end = (min(max(x(v), LEFT), x.end) for v in (band.begin, band.end))
    if end - begin < 1:
        return ""
    text = (
        f'<text class="tick" x="{(begin + end) / 2:.1f}" y="{TOP + 11}" '
        f'text-anchor="middle">{escape(band.label)}</text>'
        if end - begin > 40
        else ""
    )
    return (
        f'<rect class="band" x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(band.label)}</title></rect>{text}'
    )


def _hint(hint: Hint, x: _Across) -> str:
    begin, end = x(hint.begin), min(x(hint.end), x.end)
    return (
        f'<rect class="hint" x="{begin:.1f}" y="{TOP}" width="{max(end - begin, 0):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(hint.text)}</title></rect>'
    )
