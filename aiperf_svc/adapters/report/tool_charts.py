"""Draws the plots of a workload from the series, tables and metrics of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.blocks import Cell, Figure, Matrix, Row, name_cell
from aiperf_svc.adapters.report.plots import Axes, Hint, Series, figure
from aiperf_svc.adapters.report.plots import Plot as Drawn
from aiperf_svc.core.results.tool_result import StepSeries, StepTable, ToolResult
from aiperf_svc.domain.number_text import number, readable_unit, significant, size_text
from aiperf_svc.workloads.steps import Plot

STYLES = ("a", "b", "c", "d", "e", "a dashed", "b dashed", "c dashed", "d dashed", "e dashed")
"""Styles of lines, which limit the number of lines in a plot."""
FULL_HEAT = 0.5
"""Distance to the best pair, as a share, at which a matrix cell has its full colour."""
HINTS = 120
"""Maximum number of x positions with a tooltip of their values."""

Points = list[tuple[float, float]]
Line = tuple[str, Points]


def draw(result: ToolResult, plots: Sequence[Plot]) -> list[Figure]:
    """Draw each plot for which the run has data."""
    drawn: list[Figure | None] = []
    for plot in plots:
        match plot.kind:
            case "series":
                drawn.append(_over_time(plot, result))
            case "table":
                drawn.append(_by_parameter(plot, result))
            case "matrix":
                drawn.append(_matrix(plot, result))
    return [each for each in drawn if each]


def place_text(step: str, repetition: int, result: ToolResult) -> str:
    """Return the parameters that distinguish a step from the others; empty for one step."""
    measured = [each for each in result.steps if each.is_measured]
    parts = [step] if len({each.name for each in measured}) > 1 else []
    if len({each.repetition for each in measured}) > 1:
        parts.append(f"#{repetition}")
    return " ".join(parts)


def _over_time(plot: Plot, result: ToolResult) -> Drawn | None:
    found = [each for each in result.series if each.series.name == plot.name]
    lines = [(_label(each, plot, result), _points(each)) for each in found]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None
    end = max(x for _, points in lines for x, _ in points)
    return _lines(plot, lines, found[0].series.unit, scales.elapsed(end or 1.0), "s")


def _label(each: StepSeries, plot: Plot, result: ToolResult) -> str:
    parts = [place_text(each.step, each.repetition, result), each.series.label]
    return " ".join(part for part in parts if part) or plot.name.replace("_", " ")


def _points(each: StepSeries) -> Points:
    pairs = zip(each.series.times_s, each.series.values, strict=True)
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _by_parameter(plot: Plot, result: ToolResult) -> Drawn | None:
    lines: list[Line] = []
    x_unit = unit = ""
    for each in result.tables:
        if each.table.name != plot.name:
            continue
        units = {column.name: column.unit for column in each.table.columns}
        for y in plot.y:
            if plot.x in units and y in units:
                x_unit, unit = units[plot.x], units[y]
                lines.append((_column_label(each, y, plot, result), _column(each, plot.x, y)))
    lines = [line for line in lines if line[1]]
    if not lines:
        return None
    values = [x for _, points in lines for x, _ in points]
    if x_unit == "%":
        lines = [(name, [(x / 100, y) for x, y in points]) for name, points in lines]
        scale = scales.nines(min(max(values) / 100, 1 - 1e-6))
    elif not plot.x_is_log:
        scale = scales.linear(max(values) or 1.0)
    else:
        lowest = _least(values)
        # Zero, such as an empty message, is drawn at the left end of a logarithmic axis.
        lines = [(name, [(max(x, lowest / 2), y) for x, y in points]) for name, points in lines]
        low, high = (lowest / 2 if min(values) <= 0 else lowest), max(*values, lowest)
        scale = scales.binary(low, high) if x_unit == "bytes" else scales.logarithmic(low, high)
    return _lines(plot, lines, unit, scale, x_unit, x_name=plot.x)


def _column_label(each: StepTable, y: str, plot: Plot, result: ToolResult) -> str:
    place = place_text(each.step, each.repetition, result)
    parts = [place] if place else []
    if len(plot.y) > 1 or not place:
        parts.append(y.replace("_", " "))
    return " ".join(parts)


def _column(each: StepTable, x: str, y: str) -> Points:
    names = [column.name for column in each.table.columns]
    at_x, at_y = names.index(x), names.index(y)
    pairs = [(row[at_x], row[at_y]) for row in each.table.rows]
    return sorted((a, b) for a, b in pairs if a is not None and b is not None)


def _least(values: Iterable[float]) -> float:
    return min((value for value in values if value > 0), default=1.0)


def _lines(
    plot: Plot, lines: list[Line], unit: str, x: scales.Scale, x_unit: str, *, x_name: str = ""
) -> Drawn:
    high = max(y for _, points in lines for _, y in points)
    divisor, shown_unit = readable_unit(unit, high)
    shown = [(name, [(a, b / divisor) for a, b in points]) for name, points in lines[: len(STYLES)]]
    values = [b for _, points in shown for _, b in points]
    if plot.y_is_log:
        lowest = _least(values)
        shown = [(name, [(a, max(b, lowest)) for a, b in points]) for name, points in shown]
        y = scales.logarithmic(lowest, max(*values, lowest))
    else:
        y = scales.fitting(values)
    notes = [shown_unit, f"by {x_name.replace('_', ' ')}" if x_name else ""]
    notes += ["logarithmic" if plot.y_is_log else ""]
    notes += [f"{len(shown)} of {len(lines)} lines" if len(lines) > len(shown) else ""]
    return figure(
        plot.title,
        ", ".join(note for note in notes if note),
        [Series(name, style, points) for (name, points), style in zip(shown, STYLES, strict=False)],
        Axes(x, y),
        hints=_hints(shown, x_unit),
    )


def _hints(lines: list[Line], x_unit: str) -> list[Hint]:
    """Return the values at each position of the x axis, as spans up to halfway to its
    neighbours."""
    places = sorted({x for _, points in lines for x, _ in points})
    if not 1 < len(places) <= HINTS:
        return []
    by_line = [(name, dict(points)) for name, points in lines]
    found = []
    for at, place in enumerate(places):
        before, after = places[max(at - 1, 0)], places[min(at + 1, len(places) - 1)]
        values = [
            f"{name} {significant(points[place])}" for name, points in by_line if place in points
        ]
        where = _place_text(place, x_unit)
        found.append(
            Hint((before + place) / 2, (place + after) / 2, f"{where}: {', '.join(values)}")
        )
    return found


def _place_text(place: float, x_unit: str) -> str:
    if x_unit == "bytes":
        return size_text(place)
    # Columns of this unit are percentiles, drawn as shares.
    return f"p{place * 100:.6g}" if x_unit == "%" else f"{place:,.6g} {x_unit}"


def _matrix(plot: Plot, result: ToolResult) -> Matrix | None:
    metric = next((m for m in result.metrics if m.info.tag == plot.name), None)
    pairs = metric.by_pair() if metric is not None else {}
    if metric is None or len(pairs) < 2:
        return None
    per, unit = metric.unit
    note = f"{unit}, average over repetitions; from row to column" if unit else "from row to column"
    names = sorted({source for source, _ in pairs}), sorted({target for _, target in pairs})
    return pair_matrix(plot.title, note, pairs, names, better=metric.info.better, per=per)


def pair_matrix(
    title: str,
    note: str,
    values: Mapping[tuple[str, str], float],
    names: tuple[Sequence[str], Sequence[str]],
    *,
    better: str,
    per: float,
) -> Matrix:
    """Return values divided by `per`, by pair of names, from row to column. The distance to the
    best pair determines the intensity of the red, so noise stays pale."""
    best = (min if better == "lower" else max)(values.values())

    def cell(source: str, target: str) -> Cell:
        value = values.get((source, target))
        if value is None:
            return Cell("–" if source != target else "")
        worse = min(abs(value - best) / abs(best) / FULL_HEAT, 1.0) if best else 0.0
        return Cell(number(value, per=per), "heat", heat=f"{worse * 60:.0f}")

    rows, columns = names
    cells = [Row([name_cell(one), *(cell(one, other) for other in columns)]) for one in rows]
    return Matrix(title, note, columns, cells)
