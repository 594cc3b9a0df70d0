"""Prints the end of a run: tables for people, or one JSON object for programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, TextIO

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome

if TYPE_CHECKING:
    # Rich takes long to import.
    from rich.console import Console

WIDTH = 100
"""Width of the tables where there is no terminal."""


@contextmanager
def console_on(stream: TextIO, *, width: int = WIDTH) -> Iterator["Console"]:
    """Yield a console on a stream. What is not for a terminal has this width, and is written at the
    end without the spaces that pad the lines of tables."""
    from rich.console import Console

    if stream.isatty():
        yield Console(file=stream, highlight=False, markup=False)
        return
    text = StringIO()
    yield Console(file=text, width=width, highlight=False, markup=False)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
    stream.flush()


def print_outcome(outcome: RunOutcome, options: RunOptions) -> None:
    """Tables to standard output; with `--json` they go to standard error."""
    from aiperf_svc.runner.tables import print_results

    with console_on(sys.stderr if options.json else sys.stdout) as console:
        print_results(outcome, console)
    if options.json:
        print_json(outcome.as_json())


def print_failure(error: BaseException, reason: str) -> None:
    """The JSON object of a command that an error, or the user, has ended before its results."""
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


def print_json(content: dict[str, object]) -> None:
    """Print one JSON object on standard output."""
    print(msgspec.json.format(msgspec.json.encode(content)).decode(), flush=True)
