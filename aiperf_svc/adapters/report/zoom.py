"""Makes the plots over time zoomable together, to see what the server did in the second in which a
tail jumped.

The pictures are SVG and need no script. Where scripts run, `zoom.js` replaces those that have their
numbers beside them by charts of uPlot, which is part of the page. Nothing is loaded.
"""

import math
from collections.abc import Iterable, Sequence
from importlib.resources import files

import msgspec

from aiperf_svc.adapters.report.plots import Band, Series

DIGITS = 6
"""Significant digits of a number."""


def numbers(series: Iterable[Series], bands: Iterable[Band], *, end: float) -> str:
    """Render the numbers of a plot that begins at 0 and ends at `end`, for its figure."""
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
    text = msgspec.json.encode(content).decode().replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def scripts(figures: Sequence[str]) -> str:
    """Render what draws the numbers of the figures; empty if none has numbers."""
    if not any("<script" in figure for figure in figures):
        return ""
    folder = files(__package__)
    uplot = folder / "uplot"
    licence = uplot.joinpath("LICENSE").read_text("utf-8")
    code = [uplot.joinpath("uPlot.iife.min.js"), folder.joinpath("zoom.js")]
    return (
        f"<style>{uplot.joinpath('uPlot.min.css').read_text('utf-8')}</style>\n"
        f"<script>/* uPlot:\n{licence}\n*/\n"
        + "\n".join(file.read_text("utf-8") for file in code)
        + "</script>"
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
