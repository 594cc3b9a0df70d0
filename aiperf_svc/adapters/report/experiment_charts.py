"""Draws the plots of an experiment: metrics against a parameter, throughput against latency with
the front, heat maps of two parameters, and the path of a search."""

import math
from collections.abc import Callable, Sequence

from aiperf_svc.adapters.report import experiment_texts, scales
from aiperf_svc.adapters.report.blocks import Cell, Matrix, Row, name_cell, number_cell
from aiperf_svc.adapters.report.plots import FULL, Axes, Band, Plot, Series, figure
from aiperf_svc.adapters.report.tool_charts import STYLES
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import front
from aiperf_svc.core.experiments.combinations import Combination, Parameter, identity, is_number
from aiperf_svc.core.experiments.search_report import SearchPoint, SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.domain.json_objects import changes_text, parameters_text, value_text
from aiperf_svc.domain.number_text import number

MAX_PLOTS = 6
"""Maximum number of metrics plotted against the parameter."""
MAX_LABELS = 24
"""Maximum number of labelled points in a plot."""
MAX_CELLS = 400
"""Maximum number of cells in a heat map."""


def by_parameter(summary: ExperimentSummary) -> list[Plot]:
    """Plot each headline metric against the parameter with the most values, with a line for each
    combination of the others."""
    able = [each for each in summary.parameters if each.is_number and len(each.values) > 1]
    if not able:
        return []
    x = max(able, key=lambda each: len(each.values))
    lines: dict[bytes, list[Combination]] = {}
    for each in summary.combinations:
        if x.name in each.parameters:
            lines.setdefault(identity(_others(each, x)), []).append(each)
    return [
        plot
        for key in summary.headline[:MAX_PLOTS]
        if (plot := _by_parameter(summary, key, x, list(lines.values())))
    ]


def _others(of: Combination, x: Parameter) -> dict[str, object]:
    return {name: value for name, value in of.parameters.items() if name != x.name}


def _by_parameter(
    summary: ExperimentSummary, key: RowKey, x: Parameter, lines: Sequence[Sequence[Combination]]
) -> Plot | None:
    divisor, unit = experiment_texts.unit_of(summary, key)
    series, shown = [], [[each for each in line if key in each.values] for line in lines]
    known = [line for line in shown if line]
    for line, style in zip(known, STYLES, strict=False):
        others = _others(line[0], x)
        intervals = []
        for each in line:
            value = each.values[key]
            if (half := value.half_width) is not None:
                at = float(each.parameters[x.name])
                low, high = (value.mean - half) / divisor, (value.mean + half) / divisor
                intervals.append((at, low, high))
        series.append(
            Series(
                changes_text(others),
                style,
                [(float(e.parameters[x.name]), e.values[key].mean / divisor) for e in line],
                marks=[_hint(summary, each, key) for each in line],
                intervals=intervals,
            )
        )
    if not series:
        return None
    means = [value for each in series for _, value in each.points]
    ends = [high for each in series for *_, high in each.intervals if high <= 2 * max(means)]
    notes = [unit, f"by {x.name}", "bars: 95% intervals" if ends else ""]
    notes += [f"{len(series)} of {len(known)} lines" if len(known) > len(series) else ""]
    return figure(
        experiment_texts.metric_name(summary, key),
        ", ".join(note for note in notes if note),
        series,
        Axes(scales.listed([float(value) for value in x.values]), scales.fitting([*means, *ends])),
    )


def search_curve(report: SearchReport) -> Plot | None:
    """Plot the points of a search: the share of requests beyond the limit, relative to the allowed
    share, or else the first statistic. The band is the bracket."""
    value, title, note = _curve_values(report)
    known = [point for point in report.points if value(point) is not None]
    if not known:
        return None
    series = []
    for name, style, holds in (
        ("holds", "c", True),
        ("breaks", "e", False),
        ("undecided", "d", None),
    ):
        some = [point for point in known if point.holds is holds]
        points = [(point.value, value(point) or 0.0) for point in some]
        marks = [f"{point.value:g} {report.unit}: {point.text}" for point in some]
        if some:
            series.append(Series(name, style, points, marks=marks, has_line=False))
    x = scales.listed([point.value for point in known])
    if any(point.share_beyond is not None for point in report.points):
        ends = (min(point.value for point in known), max(point.value for point in known))
        series.append(Series("limit", "d dashed", [(end, 1.0) for end in ends]))
    values = [at for each in series for _, at in each.points]
    bands = []
    if report.holds is not None and report.breaks is not None:
        bands.append(Band(report.holds, report.breaks, "bracket"))
    return figure(
        title,
        f"{note}, by {report.parameter}",
        series,
        Axes(x, scales.fitting(values, is_log=scales.is_wide(values))),
        bands=bands,
    )


def _curve_values(
    report: SearchReport,
) -> tuple[Callable[[SearchPoint], float | None], str, str]:
    if any(point.share_beyond is not None for point in report.points):
        note = "divided by the allowed share; above 1, the SLO is missed"
        return (lambda point: point.share_beyond), "Share of requests beyond the limit", note
    names = (name for point in report.points for name in point.statistics)
    name = next(names, "")
    return (lambda point: point.statistics.get(name)), name, "of the longest trial"


def search_path(summary: ExperimentSummary, report: SearchReport) -> Plot | None:
    """Plot the value of each trial of a search, in the order of execution."""
    tried = [(row.number, row.outcome.trial.parameters) for row in summary.rows]
    found = [
        (number, float(parameters[report.parameter]))
        for number, parameters in tried
        if is_number(parameters.get(report.parameter))
    ]
    if len(found) < 2:
        return None
    values = [value for _, value in found]
    is_log = scales.is_wide(values)
    marks = [f"trial {number}: {value:g} {report.unit}" for number, value in found]
    return figure(
        "Path of the search",
        f"{report.parameter}{', logarithmic' if is_log else ''}, by trial",
        [Series("trial", "a", [(float(number), value) for number, value in found], marks=marks)],
        Axes(
            scales.listed([float(number) for number, _ in found]),
            scales.fitting(values, is_log=is_log),
        ),
    )


def throughput_against_latency(summary: ExperimentSummary) -> Plot | None:
    """Plot every combination by its throughput and latency, and the front as a line."""
    found = front(summary)
    if found is None or len(found.points) < 2:
        return None
    up, down = found.throughput, found.latency
    (per_up, unit_up), (per_down, unit_down) = (
        experiment_texts.unit_of(summary, key) for key in (up, down)
    )

    def points(some: Sequence[Combination]) -> list[tuple[float, float]]:
        return [(e.values[up].mean / per_up, e.values[down].mean / per_down) for e in some]

    def hints(some: Sequence[Combination]) -> list[str]:
        return [f"{_hint(summary, e, up)}; {_hint(summary, e, down)}" for e in some]

    def labels(some: Sequence[Combination]) -> list[str]:
        if len(summary.parameters) != 1 or len(found.points) > MAX_LABELS:
            return []
        return [value_text(value) for e in some for value in e.parameters.values()]

    rest = [each for each in found.points if not any(each is one for one in found.optimal)]
    everything = points(found.points)
    latencies = [latency for _, latency in everything]
    is_log = scales.is_wide(latencies)
    series = [
        Series(
            "Pareto front",
            "a",
            points(found.optimal),
            marks=hints(found.optimal),
            labels=labels(found.optimal),
        ),
        Series("others", "d", points(rest), marks=hints(rest), has_line=False, labels=labels(rest)),
    ]
    name = summary.parameters[0].name if labels(found.points) else ""
    name_up, name_down = (experiment_texts.metric_name(summary, key) for key in (up, down))
    return figure(
        f"{name_down} against {name_up}",
        f"{unit_down}{', logarithmic' if is_log else ''}, against {unit_up}"
        + (f"; labels: {name}" if name else ""),
        [each for each in series if each.points],
        Axes(
            scales.linear(max(x for x, _ in everything) or 1.0),
            scales.fitting(latencies, is_log=is_log),
            width=FULL,
        ),
    )


def heat_maps(summary: ExperimentSummary) -> list[Matrix]:
    """Draw throughput and latency against two parameters; empty for other numbers of them."""
    if len(summary.parameters) != 2:
        return []
    across, down = sorted(summary.parameters, key=lambda each: -len(each.values))
    cells = len(across.values) * len(down.values)
    found = front(summary)
    keys = summary.headline[:2] if found is None else (found.throughput, found.latency)
    if min(len(across.values), len(down.values)) < 2 or cells > MAX_CELLS:
        return []
    return [_heat_map(summary, key, across, down) for key in keys]


def _heat_map(
    summary: ExperimentSummary, key: RowKey, across: Parameter, down: Parameter
) -> Matrix:
    divisor, unit = experiment_texts.unit_of(summary, key)
    means = {
        identity(each.parameters): each.values[key].mean
        for each in summary.combinations
        if key in each.values
    }
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    is_log = bool(means) and scales.is_wide(list(means.values()))

    def share(value: float) -> float:
        if high == low:
            return 0.0
        if is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def cell(x: object, y: object) -> Cell:
        mean = means.get(identity({across.name: x, down.name: y}))
        if mean is None:
            return number_cell(None)
        return Cell(number(mean / divisor), "heat plain", heat=f"{share(mean) * 70:.0f}")

    rows = [
        Row([name_cell(value_text(y)), *(cell(x, y) for x in across.values)]) for y in down.values
    ]
    note = ", ".join(filter(None, (unit, f"{down.name} by {across.name}")))
    note += "; logarithmic colours" if is_log else ""
    head = [value_text(value) for value in across.values]
    return Matrix(experiment_texts.metric_name(summary, key), note, head, rows)


def _hint(summary: ExperimentSummary, of: Combination, key: RowKey) -> str:
    divisor, unit = experiment_texts.unit_of(summary, key)
    shown = experiment_texts.mean_with_unit(of.values[key], divisor, unit)
    name = experiment_texts.metric_name(summary, key)
    return f"{parameters_text(of.parameters)}: {name} {shown} (n={of.values[key].n})"
