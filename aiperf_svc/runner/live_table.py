"""The live table of several parts on a terminal."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aiperf_svc.domain.foreign_text import lines, one_line
from aiperf_svc.runner.stages import Stage

WAITING, ENDED = "waiting", Stage.FINISHED.value
ROWS = 16
"""Most rows. Of more parts, those that have finished and those that wait are counted."""


class LiveTable:
    """Redrawn at every change, removed at the end."""

    def __init__(self, names: Sequence[str], console: Console | None = None) -> None:
        self._rows = dict.fromkeys(names, (WAITING, ""))
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._live = Live(self._drawn(), console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a text above the table, which stays."""
        self._console.print(Text(lines(text)))

    def set(self, name: str, state: str, text: str) -> None:
        """Change the row of one part."""
        self._rows[name] = (state, text)
        self._live.update(self._drawn(), refresh=True)

    def _drawn(self) -> Table:
        shown = self._rows
        if len(shown) > ROWS:
            shown = {n: row for n, row in shown.items() if row[0] not in (WAITING, ENDED)}
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for name, (state, text) in list(shown.items())[:ROWS]:
            style = "dim" if state in (WAITING, ENDED) else "bold cyan"
            table.add_row(
                Text(one_line(name), style="bold"), Text(state, style=style), one_line(text)
            )
        if len(shown) < len(self._rows):
            states = [state for state, _ in self._rows.values()]
            counts = f"{states.count(WAITING):,} waiting, {states.count(ENDED):,} finished"
            table.add_row("", "", Text(counts, style="dim"))
        return table
