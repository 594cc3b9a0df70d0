"""Texts, tables, charts and questions on the terminal, outside of the display of a run."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import lines

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]
"""Prints a text for the user."""
WIDTH = 100
"""Width of tables without a terminal."""
_BAR_GLYPHS = " ▁▂▃▄▅▆▇█"
_T = TypeVar("_T")


def say(text: str) -> None:
    """Print a text for the user on standard error."""
    print(lines(text), file=sys.stderr, flush=True)


@contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Ignore write errors on standard error while the context is open. A closed terminal must not
    prevent the removal of a stack."""
    before = sys.stderr
    sys.stderr = cast("TextIO", _IgnoringErrors(before))
    try:
        yield
    finally:
        sys.stderr = before


def can_ask() -> bool:
    """Return whether a user at a terminal can confirm."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: str) -> bool:
    """Ask the user and return whether they confirm. Can be cancelled, unlike `input`."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    has_input = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, has_input.set)
    try:
        await has_input.wait()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        loop.remove_reader(sys.stdin)


class _IgnoringErrors:
    """Text stream that ignores write errors once its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self) -> None:
        # Redirect buffered text, or the flush at the interpreter's exit fails too.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()


@contextmanager
def console_on(stream: TextIO, *, width: int = WIDTH) -> Iterator["Console"]:
    """Yield a console on a stream. Output that does not go to a terminal has this width, and is
    written at the end without the padding of table rows."""
    from rich.console import Console

    if stream.isatty():
        yield Console(file=stream, highlight=False, markup=False)
        return
    text = StringIO()
    yield Console(file=text, width=width, highlight=False, markup=False)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
    stream.flush()


def print_failure(error: BaseException, reason: str) -> None:
    """Print the JSON object of a command that an error or the user has ended before its results."""
    is_stopped = isinstance(error, KeyboardInterrupt)
    code = getattr(error, "exit_code", ExitCode.INTERRUPTED if is_stopped else ExitCode.ERROR)
    print_json(
        {
            "run_id": getattr(error, "run_id", ""),
            "exit_code": int(code),
            "state": "cancelled" if is_stopped else "failed",
            "reason": reason,
            "results": None,
        }
    )


def print_json(content: object) -> None:
    """Print one JSON value on standard output."""
    print(msgspec.json.format(msgspec.json.encode(content)).decode(), flush=True)


def print_found(
    found: _T, show: Callable[[_T, "Console"], None], *, as_json: bool, width: int = WIDTH
) -> None:
    """Print the result of a command, as JSON or with `show` as text."""
    if as_json:
        print_json(found)
        return
    with console_on(sys.stdout, width=width) as console:
        show(found, console)


def joined(values: Sequence[float], width: int) -> list[float]:
    """Return columns that fit into `width`: neighbours are merged into their mean."""
    columns = list(values)
    while len(columns) > width:
        pairs = zip_longest(columns[::2], columns[1::2], fillvalue=0.0)
        columns = [(one + other) / 2 for one, other in pairs]
    return columns


def bar_chart(columns: Sequence[float], *, height: int) -> list[str]:
    """Return the lines of a chart, from the top."""
    top = max(columns, default=0.0)
    if not top:
        return []
    filled = [round(each / top * height * 8) for each in columns]
    # Show every nonzero value.
    filled = [max(part, int(each > 0)) for part, each in zip(filled, columns, strict=True)]
    return [
        "".join(_BAR_GLYPHS[min(8, max(0, part - 8 * row))] for part in filled).rstrip()
        for row in reversed(range(height))
    ]
