"""A comparison as one self-contained page, with the distributions of both sides."""

from collections.abc import Sequence

import numpy as np

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.blocks import (
    Block,
    Cell,
    Header,
    Heading,
    Note,
    Plots,
    Row,
    Table,
    document,
    name_cell,
    section,
    sentence,
    table,
    text_table,
)
from aiperf_svc.adapters.report.curve_chart import NamedCurve, curve_plot
from aiperf_svc.adapters.report.plots import FULL, HALF, Axes, Plot, Series, figure
from aiperf_svc.core.compare.comparison import Comparison
from aiperf_svc.core.compare.groups import Comparisons, Group, group_of
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.domain.number_text import readable_unit

_MAX_SHARE = 0.9999
"""Upper end of a plotted distribution: beyond this share, it depends on single requests."""
_FEW_VALUES = 50


def render(found: Comparisons, groups: Sequence[Group], curves: Sequence[NamedCurve] = ()) -> bytes:
    """Render the page with each combination's runs and distributions, and with the curves."""
    blocks: list[Block] = [Header("Comparison", [found.groups[0].kind, wording.conclusion(found)])]
    if (plot := curve_plot(curves)) is not None:
        blocks.append(Plots([plot], "Throughput and speed"))
    for each in found.groups:
        if len(found.groups) > 1:
            blocks.append(Heading(each.name))
        own = group_of(each, groups)
        blocks += _sections(each, own.base, own.new)
    blocks += map(Note, wording.skipped(found))
    return document("Comparison", blocks)


def _sections(
    comparison: Comparison, base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]
) -> list[Block]:
    stats, shifts = wording.shifts(comparison)
    return [
        *(Note(sentence(f"{name}: {text}")) for name, text in wording.sides(comparison)),
        Heading("Differences in config and environment"),
        _differences(comparison),
        Heading("Metrics"),
        _rows(comparison),
        *(Note(sentence(note)) for note in comparison.notes),
        *section("Shift of each percentile", text_table(("Metric", *stats), shifts)),
        Plots(_plots(base, new)),
    ]


def _differences(comparison: Comparison) -> Block:
    if not comparison.differences:
        return Note(wording.same_config(comparison))
    rows = [
        Row([name_cell(key), Cell(base, "wide"), Cell(new, "wide")])
        for key, base, new in map(wording.differing, comparison.differences)
    ]
    return table(("Key", Cell("base", "text"), Cell("new", "text")), rows)


def _rows(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.rows:
        *cells, word = wording.cells(row)
        shown = [name_cell(wording.name(row)), *map(Cell, cells), Cell(word, "state")]
        rows.append(Row(shown, wording.TONES.get(row.word, "")))
    return table(("Metric", *wording.HEADS[:-2], "Evidence", "Result"), rows)


def _plots(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> list[Plot]:
    sides = [[run for run in side if run.is_usable] for side in (base, new)]
    tags = [tag for tag in sides[0][0].curves if any(tag in run.curves for run in sides[1])]
    widths = [HALF] * len(tags)
    if len(tags) % 2:
        # The first plot spans both columns, which avoids a gap.
        widths[0] = FULL
    return [
        _plot(sides[0][0].metrics[tag], tag, sides, width)
        for tag, width in zip(tags, widths, strict=True)
    ]


def _plot(info: MetricInfo, tag: str, sides: Sequence[Sequence[MeasuredRun]], width: int) -> Plot:
    """Plot a line for each run, in its side's colour; only the first run of a side has a label."""
    curves = [[run.curves[tag] for run in side if tag in run.curves] for side in sides]
    everything = np.concatenate([values for side in curves for _, values in side])
    low, high = float(everything.min()), float(everything.max())
    divisor, unit = readable_unit(info.unit, high)
    # The largest of n values has the share 1 - 1/n.
    highest = min(_MAX_SHARE, 1 - 1 / max(len(np.unique(everything)), 10))
    series = []
    for name, style, side in zip(("base", "new"), ("a", "b"), curves, strict=True):
        for index, (shares, values) in enumerate(side):
            inside = shares <= highest
            # With few values, draw up to the last one; with many, it would be a step.
            inside[-1] |= len(shares) < _FEW_VALUES
            points = zip(shares[inside].tolist(), (values[inside] / divisor).tolist(), strict=True)
            shown = [(min(q, highest), value) for q, value in points]
            series.append(Series(name if not index else "", style, shown))
    y = scales.linear(high / divisor or 1.0)
    if low > 0:
        y = scales.logarithmic(low / divisor, high / divisor)
    x = scales.nines(highest)
    note = f"{unit}, by percentile" if unit else "by percentile"
    return figure(info.name, note, series, Axes(x, y, width=width))
