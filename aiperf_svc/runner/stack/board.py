"""The screens of several stacks in one terminal: each line begins with the name of its stack, and a
table says where each of them is."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.display import Display, Plain, Silent, plain_line
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stack import terminal
from aiperf_svc.runner.stack.stages import Stage


class Table(Protocol):
    """A table with a row for each stack, which is drawn below the lines."""

    def say(self, text: str) -> None:
        """Print a text above the table."""
        ...

    def set(self, name: str, state: str, text: str) -> None:
        """Change the row of one stack."""
        ...


class Board:
    """Gives each stack its part of the terminal."""

    def __init__(self, kind: str, names: Sequence[str], table: Table | None = None) -> None:
        self._kind, self._table = kind, table
        self._width = max(map(len, names))

    def screen(self, name: str) -> "MemberScreen":
        """Return the screen of one stack."""
        return MemberScreen(name, self)

    def say(self, name: str, text: str) -> None:
        """Print a text with the name of its stack before each line."""
        prefix = f"{name:<{self._width}}  "
        said = "\n".join(prefix + line for line in text.split("\n"))
        if self._table is None:
            terminal.say(said)
        else:
            self._table.say(said)

    def set(self, name: str, state: str, text: str = "") -> None:
        """Take in where a stack is."""
        if self._table is not None:
            self._table.set(name, state, text)

    def display(self, screen: "MemberScreen") -> Display:
        """Return the display of one stack's run."""
        if self._table is not None:
            return _RowDisplay(screen)
        return Silent(screen.say) if self._kind == "none" else Plain(screen.say)


class MemberScreen:
    """The screen of one stack among others."""

    def __init__(self, name: str, board: Board) -> None:
        self._name, self._board = name, board
        self._stage = ""

    def say(self, text: str) -> None:
        """Print a text for people, with the stack's name."""
        self._board.say(self._name, text)

    def begin(self, stage: Stage) -> None:
        """Show that a stage has begun."""
        self._stage = stage.value
        self._board.set(self._name, self._stage)

    def preview(self, text: str) -> None:
        """Show nothing: what the stacks create is shown for all of them before the first begins."""

    def show(self, status: Status) -> None:
        """Show how far the run is."""
        self._board.set(self._name, self._stage, plain_line(status).strip())

    def display(self, plan: StackPlan) -> Display:
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
    """Shows a run in the stack's row of the table."""

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
    from aiperf_svc.runner.stack.live_board import LiveTable

    with LiveTable(names) as table:
        yield Board(kind, names, table)
