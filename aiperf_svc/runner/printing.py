"""Prints the end of a run: tables for people, or one JSON object for programs."""

import sys

import msgspec

from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome

WIDTH = 100
"""Width of the tables if the terminal does not report one."""


def print_outcome(outcome: RunOutcome, options: RunOptions) -> None:
    """Tables to standard output; with `--json` they go to standard error."""
    from rich.console import Console

    from aiperf_svc.runner.tables import print_results

    stream = sys.stderr if options.json else sys.stdout
    width = None if stream.isatty() else WIDTH
    print_results(outcome, Console(file=stream, width=width, highlight=False, markup=False))
    if options.json:
        print_json(outcome.as_json())


def print_failure(run_id: str, error: AiperfError) -> None:
    """The JSON object of a run that could not be finished."""
    print_json(
        {
            "run_id": run_id,
            "exit_code": int(error.exit_code),
            "state": "failed",
            "reason": str(error),
            "results": None,
        }
    )


def print_json(content: dict[str, object]) -> None:
    """Print one JSON object on standard output."""
    print(msgspec.json.format(msgspec.json.encode(content)).decode(), flush=True)
