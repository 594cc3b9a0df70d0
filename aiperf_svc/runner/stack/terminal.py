"""Messages and questions on the terminal, outside of a run's display."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from aiperf_svc.runner.display import print_line


def say(text: str) -> None:
    """Print a text for people on standard error."""
    print_line(text)


@contextmanager
def ignore_closed_stderr() -> Iterator[None]:
    """Ignore write errors on standard error while the context is open. A terminal that is gone must
    not keep a stack from being removed."""
    before = sys.stderr
    sys.stderr = cast(TextIO, _IgnoringErrors(before))
    try:
        yield
    finally:
        sys.stderr = before


def can_ask() -> bool:
    """Return whether a user at a terminal can confirm."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: str) -> bool:
    """Ask the user and return whether they confirm. Can be cancelled, unlike `input` in a
    thread."""
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
        # Buffered text must go somewhere, or the flush at the interpreter's exit fails too.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()
