"""Words and questions on the terminal, outside of a run's display."""

import asyncio
import sys


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: str) -> bool:
    """Whether the answer is yes. Can be cancelled, unlike `input` in a thread."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, answered.set)
    try:
        await answered.wait()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        loop.remove_reader(sys.stdin)
