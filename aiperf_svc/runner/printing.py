"""Prints the end of a run: tables for people, or one JSON object for programs."""

import sys
from io import StringIO

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome

WIDTH = 100
"""Width of the tables if the terminal does not report one."""


def print_outcome(outcome: RunOutcome, options: RunOptions) -> None:
    """Tables to standard output; with `--json` they go to standard error."""
    from rich.console import Console

    from aiperf_svc.runner.tables import print_results

    stream = sys.stderr if options.json else sys.stdout
    if stream.isatty():
        print_results(outcome, Console(file=stream, highlight=False, markup=False))
    else:
        text = StringIO()
        print_results(outcome, Console(file=text, width=WIDTH, highlight=False, markup=False))
        # The lines of a table are padded to its width.
        stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
        stream.flush()
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
