"""A comparison as one self-contained page, with the distributions of both sides."""

from collections.abc import Sequence
from html import escape

import numpy as np

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.adapters.report import layout, scales
from aiperf_svc.adapters.report.plots import Series, figure
from aiperf_svc.core.compare.comparison import Comparison, Word
from aiperf_svc.core.compare.groups import Comparisons, Group
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.readable import readable_unit

_CLASSES = {Word.WORSE: "invalid", Word.BETTER: "valid", Word.CHANGED: "degraded"}
_HIGHEST = 0.9999
"""Last share of a plotted distribution: beyond, single requests decide."""
_FEW = 50


def render(found: Comparisons, groups: Sequence[Group]) -> bytes:
    """Render the page, with the runs of each combination and their curves."""
    runs = {each.name: each for each in groups}
    kind = found.groups[0].kind
    parts = [layout.header("Comparison", [kind, wording.conclusion(found)])]
    for each in found.groups:
        parts += [f"<h2>{escape(each.name)}</h2>" if len(found.groups) > 1 else ""]
        parts += _sections(each, runs[each.name].base, runs[each.name].new)
    parts += [f'<p class="note">{escape(text)}</p>' for text in wording.skipped(found)]
    return layout.document("Comparison", parts)


def _sections(
    comparison: Comparison, base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]
) -> list[str]:
    return [
        _sides(comparison),
        "<h2>Differences in config and surroundings</h2>",
        _differences(comparison),
        "<h2>Metrics</h2>",
        _rows(comparison),
        _shifts(comparison),
        layout.plots(_plots(base, new)),
    ]


def _sides(comparison: Comparison) -> str:
    lines = []
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        for text in (wording.runs(side), *wording.left_out(side)):
            lines.append(f'<p class="note">{name}: {escape(text)}</p>')
    return "".join(lines)


def _differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return f'<p class="note">{wording.same_config(comparison)}</p>'
    rows = [
        f'<tr><th>{escape(key)}</th><td class="wide">{escape(base)}</td>'
        f'<td class="wide">{escape(new)}</td></tr>'
        for key, base, new in map(wording.differing, comparison.differences)
    ]
    return layout.table('<th>Key</th><th class="text">base</th><th class="text">new</th>', rows)


def _rows(comparison: Comparison) -> str:
    rows = []
    for row in comparison.rows:
        *cells, word = wording.cells(row)
        style = _CLASSES.get(row.word, "")
        rows.append(
            f'<tr class="{style}"><th>{escape(wording.name(row))}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f'<td class="state">{escape(word)}</td></tr>'
        )
    head = "".join(f"<th>{head}</th>" for head in ("Metric", *wording.HEADS))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in comparison.notes)
    return layout.table(head, rows) + notes


def _shifts(comparison: Comparison) -> str:
    if not comparison.shifts:
        return ""
    stats = list(comparison.shifts[0].shifts)
    rows = []
    for each in comparison.shifts:
        shown = (wording.percent(each.shifts[s]) if s in each.shifts else "–" for s in stats)
        cells = "".join(f"<td>{cell}</td>" for cell in shown)
        rows.append(f"<tr><th>{escape(each.info.name)}</th>{cells}</tr>")
    head = "".join(f"<th>{text}</th>" for text in ("Metric", *map(wording.stat_name, stats)))
    return f"<h2>How far each percentile moved</h2>{layout.table(head, rows)}"


def _plots(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> list[str]:
    sides = [[run for run in side if run.is_usable] for side in (base, new)]
    tags = [tag for tag in sides[0][0].curves if any(tag in run.curves for run in sides[1])]
    return [_plot(sides[0][0].metrics[tag], tag, sides) for tag in tags]


def _plot(info: MetricInfo, tag: str, sides: Sequence[Sequence[MeasuredRun]]) -> str:
    """Plot a line for each run, in the colour of its side; only the first of a side is named."""
    curves = [[run.curves[tag] for run in side if tag in run.curves] for side in sides]
    everything = np.concatenate([values for side in curves for _, values in side])
    low, high = float(everything.min()), float(everything.max())
    divisor, unit = readable_unit(info.unit, high)
    # The largest of n values stands for the share 1 - 1/n.
    highest = min(_HIGHEST, 1 - 1 / max(len(np.unique(everything)), 10))
    series = []
    for name, style, side in zip(("base", "new"), ("a", "b"), curves, strict=True):
        for place, (shares, values) in enumerate(side):
            inside = shares <= highest
            # The last of a few values has a place of its own; of many it would be a step.
            inside[-1] |= len(shares) < _FEW
            points = zip(shares[inside].tolist(), (values[inside] / divisor).tolist(), strict=True)
            shown = [(min(q, highest), value) for q, value in points]
            series.append(Series(name if not place else "", style, shown))
    y = scales.linear(high / divisor or 1.0)
    if low > 0:
        y = scales.logarithmic(low / divisor, high / divisor)
    return figure(info.name, f"{unit}, by percentile", series, x=scales.nines(highest), y=y)
