"""Shows runs on standard error: one run that uses the whole terminal, or several at the same time,
with lines that start with their names.

A display is redrawn when the results API reports news. A display with its own timer would take CPU
time from the load on a small machine.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.terminal import output
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.adapters.terminal.status_text import plain_line, trial_line
from aiperf_svc.plan.topology import Topology

if TYPE_CHECKING:
    from aiperf_svc.adapters.terminal.live_display import LiveTable

Ui = Literal["auto", "rich", "plain", "none"]
"""`auto`: rich on a terminal, else plain."""
PLAIN_S = 2.0
"""Seconds between two lines of the plain display in the same state."""


class Display(Protocol):
    """Shows a run until it is closed."""

    def show(self, status: Status) -> None:
        """Show the current state of the run."""
        ...

    def note(self, text: str) -> None:
        """Print an event, which stays on the screen."""
        ...

    def close(self) -> None:
        """Make room for later output."""
        ...


class Silent:
    """Shows only events."""

    def __init__(self, say: Say = output.say) -> None:
        self._say = say

    def show(self, status: Status) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Print one line."""
        self._say(text)

    def close(self) -> None:
        """Do nothing."""


class Plain(Silent):
    """Prints a line at every new state and every two seconds."""

    def __init__(self, say: Say = output.say) -> None:
        super().__init__(say)
        self._shown_mono_s = -PLAIN_S
        self._state = ""
        self._ended = 0

    def show(self, status: Status) -> None:
        """Print a line, unless the last one is too recent. Each finished trial gets a line."""
        experiment = status.experiment
        if experiment is not None and experiment.ended > self._ended:
            for row in experiment.rows[-(experiment.ended - self._ended) :]:
                self._say(trial_line(row))
            self._ended = experiment.ended
        now = time.monotonic()
        if status.state != self._state or now - self._shown_mono_s >= PLAIN_S:
            self._shown_mono_s, self._state = now, status.state
            self._say(plain_line(status))


class Screen:
    """The terminal, for a single run."""

    def __init__(self, ui: Ui) -> None:
        self._ui = _chosen(ui)

    def say(self, text: str) -> None:
        """Print a text for the user on standard error."""
        output.say(text)

    def begin(self, stage: str) -> None:
        """Show that a stage has started: nothing, because each stage prints its own progress."""

    def preview(self, text: str) -> None:
        """Show what the run will create."""
        output.say(text)

    def display(self, title: str, topology: Topology) -> Display:
        """Return the display of the run, until it is closed."""
        if self._ui != "rich":
            return Plain(self.say) if self._ui == "plain" else Silent(self.say)
        from aiperf_svc.adapters.terminal.live_display import LiveDisplay

        return LiveDisplay(title, topology)

    def end(self, outcome: str) -> None:
        """Show the outcome: nothing, because it is printed at the end of the command."""


class MemberScreen(Screen):
    """The screen of one of several runs: lines with its name, and its row of the table."""

    def __init__(self, name: str, width: int, ui: Ui, table: "LiveTable | None") -> None:
        """`width` is the length of the longest name."""
        super().__init__(ui)
        self._name, self._prefix, self._table = name, f"{name:<{width}}  ", table
        self._stage = ""

    def say(self, text: str) -> None:
        """Print a text with the name before each line."""
        prefixed = "\n".join(self._prefix + line for line in text.split("\n"))
        (self._table.say if self._table is not None else output.say)(prefixed)

    def begin(self, stage: str) -> None:
        self._stage = stage
        self._set(stage)

    def preview(self, text: str) -> None:
        """Show nothing: what all runs create is shown before the first of them starts."""

    def show(self, status: Status) -> None:
        """Show the state of the run in the row."""
        self._set(self._stage, plain_line(status).strip())

    def display(self, title: str, topology: Topology) -> Display:
        return super().display(title, topology) if self._table is None else _RowDisplay(self)

    def end(self, outcome: str) -> None:
        """Print the outcome, and show it in the row."""
        self._set("finished", outcome)
        self.say(f"ended: {outcome}")

    def _set(self, stage: str, text: str = "") -> None:
        if self._table is not None:
            self._table.set(self._name, stage, text)


class _RowDisplay(Silent):
    """Shows a run in its row of the table."""

    def __init__(self, screen: MemberScreen) -> None:
        super().__init__(screen.say)
        self._screen = screen

    def show(self, status: Status) -> None:
        self._screen.show(status)


@contextmanager
def open_screens(ui: Ui, names: Sequence[str]) -> Iterator[Mapping[str, Screen]]:
    """Open the screens of simultaneous runs, by name."""
    width = max(map(len, names))
    if _chosen(ui) != "rich":
        yield {name: MemberScreen(name, width, ui, None) for name in names}
        return
    from aiperf_svc.adapters.terminal.live_display import LiveTable

    with LiveTable(names) as table:
        yield {name: MemberScreen(name, width, ui, table) for name in names}


def _chosen(ui: Ui) -> Ui:
    if ui != "auto":
        return ui
    return "rich" if sys.stderr.isatty() else "plain"
