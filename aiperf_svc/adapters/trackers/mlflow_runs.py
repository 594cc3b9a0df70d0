"""Logs a finished run to MLflow with its own client."""

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiperf_svc.adapters.trackers.finished_run import FinishedFolder
from aiperf_svc.config.artifacts import Mlflow
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARAMS_AT_ONCE: Final = 100
METRICS_AT_ONCE: Final = 1_000
"""Limits of one request to MLflow."""
MAX_NAME_LENGTH: Final = 250
MAX_VALUE_LENGTH: Final = 6_000
"""Maximum length of a parameter in MLflow."""
_NOT_IN_NAMES: Final = re.compile(r"[^\w.\- ]")
"""Characters that MLflow refuses in the name of a parameter. Request bodies have keys such as
`$schema`."""
_SETTINGS: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Defaults of the library's environment variables. They are short, because the results wait."""


def send(finished: FinishedFolder, into: Mlflow) -> str:
    """Create a run with all data; return its location. Raises EnvironmentProblem."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=into.tracking_uri)
        experiment = client.get_experiment_by_name(into.experiment)
        experiment_id = (
            client.create_experiment(into.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        tags = {**finished.tags, **into.tags}
        if into.parent_run_id is not None:
            tags["mlflow.parentRunId"] = into.parent_run_id
        made = client.create_run(experiment_id, run_name=into.run_name or finished.name, tags=tags)
        run_id = str(made.info.run_id)
        is_whole = False
        try:
            _fill(client, run_id, finished, into)
            is_whole = True
        finally:
            if not is_whole:
                # MLflow shows a run without an end as running.
                with suppress(MlflowException, OSError):
                    client.set_terminated(run_id, "FAILED")
        client.set_terminated(run_id, "KILLED" if finished.was_cancelled else "FINISHED")
    except (MlflowException, OSError) as error:
        text = one_line(str(error))
        raise EnvironmentProblem(f"MLflow at {into.tracking_uri}: {text}") from error
    return f"MLflow run {run_id} in {into.experiment!r} at {into.tracking_uri}"


def _fill(client: "MlflowClient", run_id: str, finished: FinishedFolder, into: Mlflow) -> None:
    """Send the settings, metrics and files of a run. Raises MlflowException, OSError."""
    from mlflow.entities import Metric, Param

    named = {
        _NOT_IN_NAMES.sub("_", key)[:MAX_NAME_LENGTH]: value[:MAX_VALUE_LENGTH]
        for key, value in finished.params.items()
    }
    params = [Param(key, value) for key, value in named.items()]
    for first in range(0, len(params), PARAMS_AT_ONCE):
        client.log_batch(run_id, params=params[first : first + PARAMS_AT_ONCE])
    metrics = [Metric(key, value, finished.ended_ms, 0) for key, value in finished.metrics.items()]
    for first in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[first : first + METRICS_AT_ONCE])
    for path in finished.files(into.files):
        # Files of several steps and ranks have the same names.
        below = path.parent.relative_to(finished.folder).as_posix()
        client.log_artifact(run_id, str(path), None if below == "." else below)
