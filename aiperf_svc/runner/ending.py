"""The end of a command that runs a benchmark: output, trackers, exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import NAME, Manifest, build_manifest
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, error_text
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunEnd, RunOutcome


def send_to_trackers(outcome: RunOutcome, artifacts: Artifacts) -> RunOutcome:
    """Send the run to its trackers. Returns the outcome, with an error if one of them failed."""
    has_tracker = artifacts.mlflow is not None or artifacts.wandb is not None
    if not has_tracker or outcome.artifacts is None or outcome.results is None:
        return outcome
    from aiperf_svc.adapters.trackers.sending import AGAIN, send

    try:
        for text in send(outcome.artifacts, artifacts):
            print(f"note: {text}", file=sys.stderr)
    except EnvironmentProblem as error:
        problem = str(error)
    except KeyboardInterrupt:
        problem = f"not sent to all trackers: stopped by the user; {AGAIN}"
        outcome = replace(outcome, was_interrupted=True)
    except Exception as error:
        # An error of a tracker's library must not prevent the output of the results.
        problem = f"not sent to all trackers: {error_text(error)}; {AGAIN}"
    else:
        return outcome
    texts = (outcome.artifact_error, problem)
    return replace(outcome, artifact_error="; ".join(text for text in texts if text))


def call_webhook(
    outcome: RunOutcome, artifacts: Artifacts, *, name: str = "", member: str = ""
) -> None:
    """Post the outcome to the configured webhook. `name` names a run without results. `member` is
    the target or cluster if several were measured at the same time. A failure is printed and does
    not change the exit code, because the results exist."""
    if artifacts.webhook is None:
        return
    # The webhook reads earlier runs from a bucket, with libraries that other runs do not need.
    from aiperf_svc.adapters.trackers.webhook import End, deliver, delivery

    results = outcome.results
    stack = outcome.more.get("stack")
    end = End(
        name=results.name if results is not None else name,
        stack=str(stack) if stack else None,
        run_id=outcome.run_id,
        state=outcome.state,
        exit_code=int(outcome.exit_code),
        reason=outcome.why,
        results=results,
        folder=outcome.artifacts,
        uploaded_to=outcome.uploaded_to,
        member=member,
    )
    try:
        host = deliver(delivery(end, artifacts), artifacts.webhook)
    except EnvironmentProblem as error:
        print(f"warning: the webhook was not called: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("warning: the webhook was not called: stopped by the user", file=sys.stderr)
    else:
        print(f"note: the result was posted to {host}", file=sys.stderr)


@contextmanager
def post_errors(config: Config, run_id: str = "") -> Iterator[None]:
    """Call the webhook for an error that prevents the run, because nobody reads the output of a
    scheduled command. The error gets the id of the run, for `--json`."""
    try:
        yield
    except AiperfError as error:
        error.run_id = run_id
        end = RunEnd(error=error, run_id=run_id)
        call_webhook(end.outcome(), config.artifacts, name=config.name)
        raise


def refresh_manifest(folder: Path) -> None:
    """Update the manifest of a folder, if it has one, with the files changed since."""
    path = folder / NAME
    # The records manager has already reported errors of this folder.
    with suppress(OSError, EnvironmentProblem):
        known = msgspec.json.decode(path.read_bytes(), type=Manifest)
        manifest = build_manifest(folder, known.run_id, known=known)
        write_file(path, lambda: json_file(manifest))


def finish(outcome: RunOutcome, artifacts: Artifacts, options: RunOptions) -> ExitCode:
    """Update the manifest, send the run to its trackers, print it, and call the webhook. Returns
    the exit code. Call this after all processes of the run have ended."""
    if outcome.artifacts is not None:
        refresh_manifest(outcome.artifacts)
    outcome = send_to_trackers(outcome, artifacts)
    # Rich is slow to import.
    from aiperf_svc.runner import printing

    printing.print_outcome(outcome, options)
    call_webhook(outcome, artifacts)
    write_junit(outcome.artifacts, outcome.exit_code, outcome.why, options)
    return outcome.exit_code


def write_junit(folder: Path | None, code: ExitCode, reason: str, options: RunOptions) -> None:
    """Write the results as test cases to the file of `--junit`, if any. Raises AiperfError."""
    if options.junit is not None:
        from aiperf_svc.adapters.storage import junit_file

        junit_file.write_runs(options.junit, folder, code, reason)
