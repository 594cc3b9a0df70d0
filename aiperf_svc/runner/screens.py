"""Where the parts of a session show themselves: the whole terminal for one part at a time; for
several at once, lines that begin with the part's name, and a table of their stages."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.plan.topology import Topology
from aiperf_svc.runner.display import Display, Plain, Silent, make_display, plain_line, print_line
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stages import Stage


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
        print_line(text)

    def begin(self, stage: Stage) -> None:
        """Show nothing: each stage prints what it does."""

    def preview(self, text: str) -> None:
        """Print it."""
        print_line(text)

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
            print_line(prefixed)
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
    from aiperf_svc.runner.live_table import LiveTable

    with LiveTable(names) as table:
        yield Board(kind, names, table)
