"""Sends a finished run to each tracker in its config. The libraries are optional: a run without a
tracker does not import them."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from aiperf_svc.adapters.exports.result_files import find_results
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.adapters.trackers.finished_run import FinishedFolder, read_finished
from aiperf_svc.adapters.trackers.wandb_runs import KEY_VARIABLE, MODE_VARIABLE, lacks_key
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import EnvironmentProblem

NAME: Final = "trackers.json"

AGAIN = "`aiperf-svc track FOLDER` sends what is missing"


def problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the problems of a config's trackers, as pairs of a key and a text."""
    found = []
    for name in ("mlflow", "wandb"):
        if getattr(artifacts, name) is not None and find_spec(name) is None:
            text = f"needs the package {name!r}: pip install 'aiperf-svc[{name}]'"
            found.append((f"artifacts.{name}", text))
    if artifacts.wandb is not None and lacks_key(environ):
        text = f"{KEY_VARIABLE}: not set in the environment; set it, or {MODE_VARIABLE}=offline"
        found.append(("artifacts.wandb", text))
    return found


def send(folder: Path, artifacts: Artifacts) -> list[str]:
    """Send a run, or each trial of an experiment that has results, to the trackers that do not have
    it; return the locations. Raises EnvironmentProblem with the trackers that failed; the others
    have the run."""
    sent: list[str] = []
    # Keep the libraries' output out of the results.
    with redirect_stdout(sys.stderr):
        for each in _runs(folder):
            failed = [
                f"{name}: {message}"
                for name, message in problems(artifacts, {KEY_VARIABLE: "checked when it is used"})
            ]
            if not failed:
                finished, record = read_finished(each), SentRecord(each)
                for into, send_to in _trackers(artifacts):
                    where = record.find(into, finished.run_id)
                    if where is not None:
                        sent.append(f"{where} (sent earlier, by {record.path})")
                        continue
                    try:
                        where = send_to(finished)
                        record.add(into, finished.run_id, where)
                        sent.append(where)
                    except EnvironmentProblem as error:
                        failed.append(str(error))
            if failed:
                raise EnvironmentProblem(f"not sent to {'; '.join(failed)}; {AGAIN}")
    return sent


def _trackers(artifacts: Artifacts) -> Iterator[tuple[str, Callable[[FinishedFolder], str]]]:
    """Yield the name of each tracker and project, and a function that sends a run to it."""
    if (mlflow := artifacts.mlflow) is not None:
        from aiperf_svc.adapters.trackers import mlflow_runs

        into = f"MLflow {mlflow.experiment!r} at {mlflow.tracking_uri}"
        yield into, partial(mlflow_runs.send, into=mlflow)
    if (wandb := artifacts.wandb) is not None:
        from aiperf_svc.adapters.trackers import wandb_runs

        mode = os.environ.get(MODE_VARIABLE, "online")
        into = f"Weights & Biases {wandb.entity or ''}/{wandb.project}, {mode}"
        yield into, partial(wandb_runs.send, into=wandb)


def _runs(folder: Path) -> list[Path]:
    if find_results(folder):
        return [folder]
    trials = sorted((folder / TRIALS).glob("*"))
    return [each for each in trials if find_results(each)]


class Sent(msgspec.Struct, frozen=True):
    """A run that a tracker has received completely."""

    into: str
    """The tracker, and the project or experiment there."""
    run_id: str
    """Id of the run that was measured."""
    where: str
    """Location of the run in the tracker, as printed."""


class SentRecord:
    """The record of one run's folder."""

    def __init__(self, folder: Path) -> None:
        """Raises EnvironmentProblem if the record cannot be read."""
        self.path = folder / NAME
        try:
            self._sent = msgspec.json.decode(self.path.read_bytes(), type=list[Sent])
        except FileNotFoundError:
            self._sent = []
        except (OSError, msgspec.DecodeError) as error:
            raise EnvironmentProblem(
                f"{self.path}: cannot be read: {error}; without it everything is sent again"
            ) from error

    def find(self, into: str, run_id: str) -> str | None:
        """Return the location of the run in a tracker; None if the tracker does not have it."""
        found = (each.where for each in self._sent if (each.into, each.run_id) == (into, run_id))
        return next(found, None)

    def add(self, into: str, run_id: str, where: str) -> None:
        """Record that a tracker has the run. Raises EnvironmentProblem if that fails."""
        self._sent.append(Sent(into, run_id, where))
        write_file(self.path, lambda: msgspec.json.format(msgspec.json.encode(self._sent)))
