"""Sends a finished run to the trackers that its config names, before it is printed."""

import sys
from dataclasses import replace

from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.outcome import RunOutcome


def sent(outcome: RunOutcome, artifacts: Artifacts) -> RunOutcome:
    """Return the outcome, with an error if a tracker did not take the run."""
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
        # The results, which are printed next, are worth more than what another's library raises.
        problem = f"not sent to all trackers: unexpected {type(error).__name__}: {error}; {AGAIN}"
    else:
        return outcome
    texts = (outcome.artifact_error, problem)
    return replace(outcome, artifact_error="; ".join(text for text in texts if text))
