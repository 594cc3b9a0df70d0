"""What is printed when a run has ended: tables for people, or one JSON object for programs."""

import sys

import msgspec

from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import Outcome


def print_outcome(outcome: Outcome, options: RunOptions) -> None:
    """Results to standard output; with `--json` those for people go to standard error."""
    from rich.console import Console

    from aiperf_svc.runner.tables import render

    if options.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(outcome.as_json())) + b"\n")
        sys.stdout.flush()
    render(outcome, Console(stderr=options.json, highlight=False))


def print_failure(run_id: str, error: AiperfError) -> None:
    """The JSON object of a run that could not be finished."""
    content = {
        "run_id": run_id,
        "exit_code": int(error.exit_code),
        "state": "failed",
        "reason": str(error),
        "results": None,
    }
    sys.stdout.buffer.write(msgspec.json.encode(content) + b"\n")
    sys.stdout.flush()
