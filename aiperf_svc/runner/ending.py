"""The end of a command that runs a benchmark: output, trackers, exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import manifests, printing, trackers
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome


@contextmanager
def errors_of(run_id: str) -> Iterator[None]:
    """Let an error that ends the block name its run, for `--json`."""
    try:
        yield
    except AiperfError as error:
        error.run_id = run_id
        raise


def finish(outcome: RunOutcome, artifacts: Artifacts, options: RunOptions) -> ExitCode:
    """Bring the manifest up to date, send the run to its trackers, and print it; return the exit
    code. All processes of the run have ended."""
    if outcome.artifacts is not None:
        manifests.refresh(outcome.artifacts)
    outcome = trackers.sent(outcome, artifacts)
    printing.print_outcome(outcome, options)
    return outcome.exit_code
