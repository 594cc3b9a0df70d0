"""Words and questions on the terminal, outside of a run's display."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from aiperf_svc.domain.foreign_text import lines


def say(text: str) -> None:
    """A text for people, on standard error."""
    print(lines(text), file=sys.stderr, flush=True)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """While this lasts nothing fails because nobody reads standard error any more: a terminal
    that is gone must not keep a stack from being removed."""
    before = sys.stderr
    sys.stderr = cast(TextIO, _Patient(before))
    try:
        yield
    finally:
        sys.stderr = before


def can_ask() -> bool:
    """Whether a user at a terminal can confirm."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: str) -> bool:
    """Whether the user confirms. Can be cancelled, unlike `input` in a thread."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    has_input = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, has_input.set)
    try:
        await has_input.wait()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        loop.remove_reader(sys.stdin)


class _Patient:
    """A text stream whose reader may leave."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._unhear()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._unhear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _unhear(self) -> None:
        # What the stream still holds has to go somewhere, or the interpreter's end fails too.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()
