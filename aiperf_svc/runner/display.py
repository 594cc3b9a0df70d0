"""Displays on standard error during a run.

Shown is what the results API says, when it says it: a display that drew by itself would take time
from the load on a small machine.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.terminal import output
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.adapters.terminal.status_text import plain_line, trial_line
from aiperf_svc.plan.topology import Topology
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stages import Stage

PLAIN_S = 2.0
"""Seconds between two lines of the plain display within one state."""


class Display(Protocol):
    """Shows a run until it is closed."""

    def show(self, status: Status) -> None:
        """The run as it is now."""
        ...

    def note(self, text: str) -> None:
        """Something that happened; it stays on the screen."""
        ...

    def close(self) -> None:
        """Make room for what comes next."""
        ...


class Silent:
    """Shows what happened only."""

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
    """A line at every new state and every two seconds."""

    def __init__(self, say: Say = output.say) -> None:
        super().__init__(say)
        self._shown_mono_s = -PLAIN_S
        self._state = ""
        self._ended = 0

    def show(self, status: Status) -> None:
        """A line, unless the last one is too young. Each trial that has ended has a line."""
        experiment = status.experiment
        if experiment is not None and experiment.ended > self._ended:
            for row in experiment.rows[-(experiment.ended - self._ended) :]:
                self._say(trial_line(row))
            self._ended = experiment.ended
        now = time.monotonic()
        if status.state != self._state or now - self._shown_mono_s >= PLAIN_S:
            self._shown_mono_s, self._state = now, status.state
            self._say(plain_line(status))


def make_display(options: RunOptions, title: str, topology: Topology) -> Display:
    """The display that the user asked for."""
    kind = options.ui
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    if kind == "none":
        return Silent()
    if kind == "plain":
        return Plain()
    from aiperf_svc.adapters.terminal.live_display import LiveDisplay

    return LiveDisplay(title, topology)


class Screen(Protocol):
    """Shows one part to the user."""

    def say(self, text: str) -> None:
        """Print a text for people."""
        ...

    def begin(self, stage: Stage) -> None:
        """Show that a stage has begun."""
        ...

    def preview(self, text: str) -> None:
        """Show what the part will create."""
        ...

    def display(self, title: str, topology: Topology) -> Display:
        """Return the display of the run, until it is closed."""
        ...

    def end(self, outcome: RunOutcome) -> None:
        """Show the outcome."""
        ...


class WholeScreen:
    """The terminal, for a part that has it for itself."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def say(self, text: str) -> None:
        """Print a text for people on standard error."""
        output.say(text)

    def begin(self, stage: Stage) -> None:
        """Show nothing: each stage prints what it does."""

    def preview(self, text: str) -> None:
        """Print it."""
        output.say(text)

    def display(self, title: str, topology: Topology) -> Display:
        """Return the display that the user asked for."""
        return make_display(self._options, title, topology)

    def end(self, outcome: RunOutcome) -> None:
        """Show nothing: the outcome is printed at the end of the session."""


class Table(Protocol):
    """A table with a row for each part, which is drawn below the lines."""

    def say(self, text: str) -> None:
        """Print a text above the table."""
        ...

    def set(self, name: str, state: str, text: str) -> None:
        """Change the row of one part."""
        ...


class Board:
    """Gives each part its place on the terminal."""

    def __init__(self, kind: str, names: Sequence[str], table: Table | None = None) -> None:
        self._kind, self._table = kind, table
        self._width = max(map(len, names))

    def screen(self, name: str) -> "MemberScreen":
        """Return the screen of one part."""
        return MemberScreen(name, self)

    def say(self, name: str, text: str) -> None:
        """Print a text with the name of its part before each line."""
        prefix = f"{name:<{self._width}}  "
        prefixed = "\n".join(prefix + line for line in text.split("\n"))
        if self._table is None:
            output.say(prefixed)
        else:
            self._table.say(prefixed)

    def set(self, name: str, state: str, text: str = "") -> None:
        """Show the stage of a part."""
        if self._table is not None:
            self._table.set(name, state, text)

    def display(self, screen: "MemberScreen") -> Display:
        """Return the display of the run of one part."""
        if self._table is not None:
            return _RowDisplay(screen)
        return Silent(screen.say) if self._kind == "none" else Plain(screen.say)


class MemberScreen:
    """The screen of one part among others."""

    def __init__(self, name: str, board: Board) -> None:
        self._name, self._board = name, board
        self._stage = ""

    def say(self, text: str) -> None:
        """Print a text for people, with the part's name."""
        self._board.say(self._name, text)

    def begin(self, stage: Stage) -> None:
        """Show that a stage has begun."""
        self._stage = stage.value
        self._board.set(self._name, self._stage)

    def preview(self, text: str) -> None:
        """Show nothing: what all parts create is shown before the first of them begins."""

    def show(self, status: Status) -> None:
        """Show how far the run is."""
        self._board.set(self._name, self._stage, plain_line(status).strip())

    def display(self, title: str, topology: Topology) -> Display:
        """Return the display of the run."""
        return self._board.display(self)

    def end(self, outcome: RunOutcome) -> None:
        """Show the outcome."""
        verdict = outcome.results.verdict if outcome.results is not None else None
        words = [outcome.state, f"verdict {verdict}" if verdict else "", outcome.reason]
        text = ", ".join(word for word in words if word)
        self._board.set(self._name, Stage.FINISHED.value, text)
        self.say(f"ended: {text}")


class _RowDisplay:
    """Shows a run in the part's row of the table."""

    def __init__(self, screen: MemberScreen) -> None:
        self._screen = screen

    def show(self, status: Status) -> None:
        """Change the row."""
        self._screen.show(status)

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._screen.say(text)

    def close(self) -> None:
        """Leave the row to the next stage."""


@contextmanager
def make_board(options: RunOptions, names: Sequence[str]) -> Iterator[Board]:
    """Open the board that the user asked for."""
    kind = options.ui
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    if kind != "rich":
        yield Board(kind, names)
        return
    from aiperf_svc.adapters.terminal.live_display import LiveTable

    with LiveTable(names) as table:
        yield Board(kind, names, table)
