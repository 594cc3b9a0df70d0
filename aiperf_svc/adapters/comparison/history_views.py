"""Renders a history as text for a terminal, as a page, and as CSV for change-point tools."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.blocks import (
    Block,
    Cell,
    Details,
    Header,
    Heading,
    Note,
    Plots,
    Row,
    Table,
    document,
    name_cell,
    table,
)
from aiperf_svc.adapters.report.plots import FULL, Axes, Plot, Series, figure
from aiperf_svc.core.compare.history import Change, History
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.foreign_text import csv_cell, one_line
from aiperf_svc.domain.number_text import count, readable_unit, significant

ROWS = 12
"""Height of the plot in a terminal, in lines."""
MIN_COLUMNS = 20
_DATES = 8
"""Maximum number of dates on the page's axis."""


def title(found: History) -> str:
    """Name the metric with its unit: `Time to First Token p99 (ms)`."""
    return wording.titled(found.info, found.metric.stat, _unit(found)[1])


def change_text(found: History, change: Change) -> str:
    """Describe a change: `worse: +12%, from 20 to 22.4 (p=0.0005), since <folder> of <time>`."""
    divisor, _ = _unit(found)
    before, after = (significant(value / divisor) for value in (change.before, change.after))
    run = found.runs[change.place]
    keys = ", ".join(map(one_line, run.changed_keys))
    return (
        f"{change.word}: {wording.percent(change.delta)}, from {before} to {after} "
        f"(p={change.p:.4f}), since {one_line(run.folder)} of {when(run.start_wall_ns)}"
        + (f"; with it {keys} changed" if keys else "")
    )


def when(wall_ns: int) -> str:
    """Format a time: `2026-11-22 14:05`, in UTC."""
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


def text_plot(found: History, width: int) -> list[str]:
    """Draw runs as dots (means if they exceed the columns), levels as lines, changes as bars."""
    divisor, _ = _unit(found)
    values = [run.value / divisor for run in found.runs]
    levels = [level / divisor for level in found.levels]
    low, high = min(values), max(values)
    labels = [significant(value) for value in (high, (high + low) / 2, low)]
    room = max(map(len, labels))
    columns = max(MIN_COLUMNS, width - room - 3)
    each = max(1, -(-len(values) // columns))
    dots, lines = (
        [fmean(some[at : at + each]) for at in range(0, len(some), each)]
        for some in (values, levels)
    )
    bars = {change.place // each for change in found.changes}

    def row(value: float) -> int:
        return round((high - value) / (high - low) * (ROWS - 1)) if high > low else ROWS // 2

    canvas = [["│" if at in bars else " " for at in range(len(dots))] for _ in range(ROWS)]
    for at, level in enumerate(lines):
        canvas[row(level)][at] = "─"
    for at, value in enumerate(dots):
        canvas[row(value)][at] = "•"
    marks = {0: labels[0], ROWS // 2: labels[1], ROWS - 1: labels[2]}
    return [f"{marks.get(at, ''):>{room}} ┤{''.join(line)}" for at, line in enumerate(canvas)]


def render_csv(runs: Sequence[MeasuredRun]) -> bytes:
    """Render a row for each usable run and a column for each value, with the time as
    `2026-11-22T14:05:00+00:00`, for Apache Otava and similar tools."""
    used = sorted((run for run in runs if run.is_usable), key=lambda run: run.start_wall_ns)
    keys = dict.fromkeys(key for run in used for key in run.values)
    lines: list[Sequence[object]] = []
    names = (f"{key.tag}_{key.stat}" if key.stat else key.tag for key in keys)
    lines.append(("time", "run_id", "version", "verdict", "folder", *names))
    for run in used:
        time = datetime.fromtimestamp(run.start_wall_ns // 10**9, UTC).isoformat()
        texts = (run.run_id, run.facts.get("version", ""), run.verdict, run.folder)
        values = (run.values[key].value if key in run.values else "" for key in keys)
        lines.append((time, *map(csv_cell, texts), *values))
    return csv_file(lines)


def left_out(found: History) -> list[str]:
    """Return a line for each run that was left out, with the reason."""
    lines = []
    for run in found.left_out:
        why = one_line(run.verdict)
        if why.startswith((Severity.VALID, Severity.DEGRADED)):
            why = f"it has no value of {found.metric}"
        elif why.startswith(Severity.INVALID):
            why = f"its verdict is {why}"
        lines.append(f"left out: {one_line(run.folder)}: {why}")
    return lines


def render_page(found: History) -> bytes:
    """Render the page: the plot, the changes, the runs."""
    blocks = [
        Header("History", [found.kind, title(found), count(len(found.runs), "run")]),
        Plots([_figure(found)]),
        Heading("Changes"),
        _changes(found),
        *map(Note, left_out(found)),
        Details("Runs", [_runs(found)]),
    ]
    return document("History", blocks)


def _figure(found: History) -> Plot:
    divisor, unit = _unit(found)
    values = [run.value / divisor for run in found.runs]
    hints = [
        f"{one_line(run.folder)}, {when(run.start_wall_ns)}: {significant(run.value / divisor)}"
        for run in found.runs
    ]
    edges = [0, *(change.place for change in found.changes), len(values)]
    series = [
        Series("run", "a", list(enumerate(values)), marks=hints, has_line=False),
        *(
            Series(
                "" if begin else "mean",
                "d",
                [(begin, found.levels[begin] / divisor), (end - 1, found.levels[begin] / divisor)],
            )
            for begin, end in pairwise(edges)
        ),
    ]
    y = scales.fitting(values)
    top = y.ticks[-1][0]
    series += [
        Series(
            "" if at else "change",
            "e dashed",
            [(change.place - 0.5, y.ticks[0][0]), (change.place - 0.5, top)],
        )
        for at, change in enumerate(found.changes)
    ]
    step = -(-len(values) // _DATES)
    dates = {
        place: when(found.runs[place].start_wall_ns)[:10] for place in range(0, len(values), step)
    }
    return figure(
        title(found), unit, series, Axes(scales.numbered(len(values), dates), y, width=FULL)
    )


def _changes(found: History) -> Block:
    if not found.changes:
        return Note("No change was found.")
    rows = [
        Row(
            [Cell(change.word, "state"), Cell(change_text(found, change), "wide")],
            wording.TONES.get(change.word, ""),
        )
        for change in found.changes
    ]
    return table(("", Cell("Change", "text")), rows)


def _runs(found: History) -> Table:
    divisor, _ = _unit(found)
    rows = [
        Row(
            [
                name_cell(when(run.start_wall_ns)),
                Cell(significant(run.value / divisor)),
                Cell(run.verdict),
                Cell(one_line(run.folder), "wide"),
                Cell(one_line(", ".join(run.changed_keys)), "wide"),
            ]
        )
        for run in found.runs
    ]
    last = (Cell("Folder", "text"), Cell("Changed keys", "text"))
    return table(("Start (UTC)", title(found), "Verdict", *last), rows)


def _unit(found: History) -> tuple[float, str]:
    return readable_unit(found.info.unit, max(abs(run.value) for run in found.runs))
