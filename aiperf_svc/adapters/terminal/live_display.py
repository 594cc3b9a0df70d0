"""The live display of a run on a terminal."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiperf_svc.adapters.results_api.status import ExperimentStatus, LiveObjective, Status
from aiperf_svc.adapters.terminal.status_text import (
    is_loading,
    main_error,
    on_server,
    position,
    share_done,
    short_names,
    step_line,
    time_left,
)
from aiperf_svc.domain.foreign_text import lines, one_line
from aiperf_svc.domain.json_objects import changes_text
from aiperf_svc.domain.number_text import milliseconds, number, seconds
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.run_states import RunState

STEPS = (
    RunState.CONFIGURING,
    RunState.WARMUP,
    RunState.PROFILING,
    RunState.DRAINING,
    RunState.PROCESSING,
)
"""States that last long enough to be visible."""
WORDS = {
    RunState.PENDING: "starting",
    RunState.CONFIGURING: "preparing",
    RunState.READY: "preparing",
    RunState.WARMUP: "warmup",
    RunState.PROFILING: "measuring",
    RunState.DRAINING: "collecting",
    RunState.PROCESSING: "computing",
}
"""Name of each state on the screen."""
WIDEST = 160
"""Maximum width that is used."""
BAR_WIDTH = 40
INDENT = (0, 0, 0, 2)
GAP = 2
"""Spaces between two numbers."""
MIN_WIDTHS = (20, 17, 17, 0)
"""Widths of the columns of numbers. They fit usual values, so the columns do not jump."""
ROWS = 12
"""Maximum number of trials in the table of an experiment."""


class LiveDisplay:
    """A display that is redrawn at every status and removed at the end."""

    def __init__(self, title: str, topology: Topology, console: Console | None = None) -> None:
        self._title = title
        self._topology = topology
        self._has_warmup = False
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._live = Live(
            self._starting(), console=self._console, auto_refresh=False, transient=True
        )
        self._live.start(refresh=True)

    def show(self, status: Status) -> None:
        self._has_warmup = self._has_warmup or status.state == RunState.WARMUP
        self._live.update(self._render(status), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(Text(lines(text), style="yellow"))

    def close(self) -> None:
        self._live.stop()

    # --- drawing ---------------------------------------------------------------------------------

    def _starting(self) -> RenderableType:
        processes = sum(group.replicas for group in self._topology.groups)
        return Group(self._head(""), Text(f"  starting {processes:,} processes…"))

    def _head(self, elapsed: str) -> RenderableType:
        head = Table.grid(expand=True)
        head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        head.add_column(justify="right", no_wrap=True)
        head.add_row(Text(one_line(self._title), style="bold"), Text(elapsed, style="dim"))
        return head

    def _render(self, status: Status) -> RenderableType:
        width = min(WIDEST, self._console.width)
        rows: list[RenderableType] = [self._head(seconds(status.elapsed_s))]
        if status.experiment is not None:
            rows += _trial(status.experiment, width)
        rows += [self._steps(status)]
        if is_loading(status) and status.steps is not None:
            rows += [_bar(status, width), Text(f"  {one_line(step_line(status.steps))}")]
        elif is_loading(status):
            rows += [_bar(status, width), _numbers(status, width), *_load_lines(status, width)]
            if text := main_error(status):
                rows.append(Text(f"  most errors: {text}", style="red"))
        if status.message or status.reason:
            text = one_line(status.message or status.reason)
            rows.append(Text(f"  {text}", style="yellow"))
        if status.experiment is not None and status.experiment.rows:
            rows.append(_trials(status.experiment))
        frame = Table.grid(expand=False)
        frame.add_column(width=width)
        for row in rows:
            frame.add_row(row)
        return frame

    def _steps(self, status: Status) -> Text:
        """Format the states of the run: past, current and future."""
        now = WORDS.get(RunState(status.state), status.state)
        line, is_over = Text("  "), status.state != RunState.PENDING
        for step in STEPS:
            if step is RunState.WARMUP and not self._has_warmup:
                continue
            word = WORDS[step]
            if word == now:
                label = "stopping" if status.is_cancelling else word
                line.append(f"● {label}", style="bold cyan")
                is_over = False
            else:
                line.append(
                    f"{'✓' if is_over else '○'} {word}", style="green" if is_over else "dim"
                )
            line.append("   ")
        return line


def _trial(experiment: ExperimentStatus, width: int) -> list[RenderableType]:
    """Return the progress of the experiment: the current trial, and the remaining time."""
    left = f"about {seconds(experiment.left_s)} left" if experiment.left_s is not None else ""
    failed = f"{experiment.failed:,} failed" if experiment.failed else ""
    facts = [f"{experiment.ended:,} done", failed, left]
    parameters = Text(one_line(changes_text(experiment.parameters)))
    counts = Text(", ".join(fact for fact in facts if fact), style="dim")
    return _filled([Text(position(experiment), style="bold"), parameters, counts], "  ", width)


def _trials(experiment: ExperimentStatus) -> RenderableType:
    """Return the table of the latest trials."""
    latest = experiment.rows[-ROWS:]
    outcomes = [row.verdict or row.state for row in latest]
    names = short_names(key for row in latest for key in row.parameters)
    table = Table.grid(padding=(0, 2, 0, 0))
    # On a narrow terminal, the middle columns are cut.
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_column()
    table.add_column(no_wrap=True)
    for row, outcome in zip(latest, outcomes, strict=True):
        table.add_row(
            f"{row.number:,}",
            _cut(one_line(changes_text({names[k]: v for k, v in row.parameters.items()}))),
            _cut(one_line(row.text or row.reason)),
            Text(outcome, style="green" if outcome == "valid" else "yellow"),
        )
    return Padding(table, INDENT)


def _cut(text: str) -> Text:
    """Return a text that is cut if it does not fit into its column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar(status: Status, width: int) -> RenderableType:
    share = share_done(status)
    facts = (f"{share:.0%}" if share is not None and share < 1 else "", time_left(status))
    label = ", ".join(fact for fact in facts if fact)
    length = max(1, min(BAR_WIDTH, width - len(label) - 4))
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_column(width=length)
    row.add_column(no_wrap=True)
    bar = ProgressBar(total=1.0, completed=share or 0.0, width=length, complete_style="cyan")
    row.add_row("", bar, label)
    return row


def _filled(parts: Sequence[Text], between: str, width: int) -> list[RenderableType]:
    """Return lines with as many of the parts as fit; lines break between parts."""
    lines: list[list[Text]] = []
    room = 0
    for part in parts:
        if not lines or part.cell_len + len(between) > room:
            lines.append([])
            room = width - INDENT[3] + len(between)
        lines[-1].append(part)
        room -= part.cell_len + len(between)
    found = [Text(between).join(line) for line in lines]
    for line in found:
        line.no_wrap, line.overflow = True, "ellipsis"
    return [Padding(line, INDENT) for line in found]


def _load_lines(status: Status, width: int) -> list[RenderableType]:
    """Return the optional lines of a load: output tokens, server's counts, objectives."""
    tokens, server = status.output_tokens_per_s, on_server(status)
    facts = [] if tokens is None else [("output ", f"{tokens:,.0f} tokens/s")]
    facts += [("server ", server)] if server else []
    shown = [Text.assemble((name, "dim"), value) for name, value in facts]
    objectives = [_objective(each) for each in status.objectives]
    return [*_filled(shown, "  ", width), *_filled(objectives, "   ", width)]


def _objective(each: LiveObjective) -> Text:
    """Return an objective with its value over the latest requests: `✓ TTFT p95 21.5 ms ≤ 60 ms`."""
    mark = ("✓ ", "green") if each.is_within else ("✗ ", "bold red")
    sign = "≤" if each.bound == "max" else "≥"
    name = {"time_to_first_token": "TTFT", "request_latency": "latency"}.get(
        each.metric, each.metric
    )
    value, limit = number(each.value), number(each.limit)
    return Text.assemble(
        mark, (f"{name} {each.stat} ", "dim"), f"{value} {sign} {limit} {each.unit}"
    )


def _numbers(status: Status, width: int) -> RenderableType:
    """Return the counts and times of the load, in columns."""
    total = f" of {status.requested_requests:,}" if status.requested_requests else ""
    errors = Text(f"{status.errored:,}", style="bold red" if status.errored else "")
    workers = f"{status.workers:,}"
    if status.workers_lost:
        workers += f" ({status.workers_lost:,} lost)"
    is_streaming = status.ttft_p50_ms is not None
    columns: tuple[tuple[tuple[str, str | Text], tuple[str, str | Text]], ...] = (
        (
            ("requests", f"{status.completed:,}{total}"),
            ("latency p50", milliseconds(status.latency_p50_ms)),
        ),
        (
            ("rate", f"{status.requests_per_s:,.1f} /s" if status.requests_per_s else "–"),
            ("TTFT p50", milliseconds(status.ttft_p50_ms) if is_streaming else "–"),
        ),
        (
            ("errors", errors),
            ("TTFT p99", milliseconds(status.ttft_p99_ms) if is_streaming else "–"),
        ),
        (
            ("in flight", f"{status.in_flight:,}"),
            ("workers", Text(workers, style="bold red" if status.workers_lost else "")),
        ),
    )
    above, below = (
        [Text.assemble((f"{name} ", "dim"), value) for name, value in row]
        for row in zip(*columns, strict=True)
    )
    lengths = [max(a.cell_len, b.cell_len) for a, b in zip(above, below, strict=True)]
    wide = map(max, lengths, MIN_WIDTHS)
    if sum(wide) + GAP * len(lengths) <= width:
        return _grid([above, below])
    return _grid([above[:3], [above[3], *below[1:3]], [below[0], below[3]]])


def _grid(rows: Sequence[Sequence[Text]]) -> RenderableType:
    table = Table.grid(padding=(0, GAP, 0, 0))
    for min_width in MIN_WIDTHS[: len(rows[0])]:
        table.add_column(no_wrap=True, min_width=min_width)
    for row in rows:
        table.add_row(*row)
    return Padding(table, INDENT)


WAITING, FINISHED = "waiting", "finished"
MEMBER_ROWS = 16
"""Maximum number of rows. With more parts, finished and waiting parts are only counted."""


class LiveTable:
    """A table that is redrawn at every change and removed at the end."""

    def __init__(self, names: Sequence[str], console: Console | None = None) -> None:
        self._rows = dict.fromkeys(names, (WAITING, ""))
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._live = Live(self._render(), console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a text above the table, where it stays."""
        self._console.print(Text(lines(text)))

    def set(self, name: str, state: str, text: str) -> None:
        """Change the row of one part."""
        self._rows[name] = (state, text)
        self._live.update(self._render(), refresh=True)

    def _render(self) -> Table:
        shown = self._rows
        if len(shown) > MEMBER_ROWS:
            shown = {n: row for n, row in shown.items() if row[0] not in (WAITING, FINISHED)}
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for name, (state, text) in list(shown.items())[:MEMBER_ROWS]:
            style = "dim" if state in (WAITING, FINISHED) else "bold cyan"
            table.add_row(
                Text(one_line(name), style="bold"), Text(state, style=style), one_line(text)
            )
        if len(shown) < len(self._rows):
            states = [state for state, _ in self._rows.values()]
            counts = f"{states.count(WAITING):,} waiting, {states.count(FINISHED):,} finished"
            table.add_row("", "", Text(counts, style="dim"))
        return table
