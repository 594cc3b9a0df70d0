"""Bar charts as SVG files: one bar per row, stacked if a row has several parts."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

LEFT, WIDTH, RIGHT = 150, 520, 110
ROW, GAP = 22, 8
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2")


class Bar(NamedTuple):
    """One row."""

    name: str
    parts: Mapping[str, float]
    """Lengths by what they measure, drawn one after another."""
    note: str = ""
    """Text after the bar."""


def bars(title: str, unit: str, rows: Sequence[Bar], *, is_log: bool = False) -> str:
    """Return the chart. With `is_log`, each row must have one part and the axis is logarithmic."""
    names = list(dict.fromkeys(name for row in rows for name in row.parts))
    totals = [sum(row.parts.values()) for row in rows]
    low = 10 ** math.floor(math.log10(max(min(totals), 1e-9))) if is_log else 0.0
    high = max(totals)

    def length(value: float) -> float:
        if not is_log:
            return WIDTH * value / high
        return WIDTH * max(math.log10(value / low), 0.02) / math.log10(high * 1.3 / low)

    legend = len(names) > 1
    top = 58 if legend else 36
    height = top + len(rows) * (ROW + GAP) + 6
    total_width = LEFT + WIDTH + RIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{total_width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-weight="600">{escape(title)}, {escape(unit)}'
        f"{', logarithmic' if is_log else ''}</text>",
    ]
    if legend:
        x = 8.0
        for colour, name in zip(COLOURS, names, strict=False):
            lines.append(f'<rect x="{x:.0f}" y="33" width="12" height="12" fill="{colour}"/>')
            lines.append(f'<text x="{x + 17:.0f}" y="44">{escape(name)}</text>')
            x += 40 + 7.5 * len(name)
    for index, (row, total) in enumerate(zip(rows, totals, strict=True)):
        y = top + index * (ROW + GAP)
        lines.append(
            f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(row.name)}</text>'
        )
        x = float(LEFT)
        for name, value in row.parts.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            wide = length(value)
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW}" fill="{colour}"/>'
            )
            x += wide
        shown = f"{total:,.0f}" if total >= 1_000 else f"{total:.3g}"
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 16}">{escape(f"{shown} {row.note}")}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
