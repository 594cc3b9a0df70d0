"""Services that keep finished runs for comparison, and how a run is filed in them.

Keys are not set here: their own libraries take them from the environment (`MLFLOW_TRACKING_TOKEN`
or user name and password; `WANDB_API_KEY`).
"""

import os
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import AfterValidator, Field

from aiperf_svc.config.base import Model

Name = Annotated[str, Field(min_length=1, max_length=250)]


def _below(pattern: str) -> str:
    """The pattern, if it is one and leads to no other folder."""
    if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
        raise ValueError(f"{pattern!r}: expected a pattern of files below the artifact folder")
    try:
        # A pattern is checked when it is used; this folder has no files.
        list(Path(os.devnull).glob(pattern))
    except ValueError as error:
        raise ValueError(f"{pattern!r} is no pattern of files: {error}") from error
    return pattern


FilePattern = Annotated[Name, AfterValidator(_below)]

RESULT_FILES = (
    "profile_export_aiperf.json",
    "profile_export_aiperf.csv",
    "results.json",
    "results.csv",
    "verdict.json",
    "config.yaml",
    "report.html",
)
"""Files that are sent with a run unless others are named: those of a size that does not grow with
the number of requests."""


class Tracker(Model):
    """What all such services have."""

    run_name: Name | None = None
    """Name of the run. Default: the name of its folder."""
    files: tuple[FilePattern, ...] = RESULT_FILES
    """Files of the artifact folder to send, as patterns such as `*.parquet`. Default: the small
    result files."""


class Mlflow(Tracker):
    """A tracking server of MLflow."""

    tracking_uri: Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*:[^@\s]*$")]
    """MLflow tracking server to which the finished run is sent: `http://host:5000`, or `file:` or
    `sqlite:` and a path. MLFLOW_TRACKING_TOKEN holds the key."""
    experiment: Name = "aiperf"
    """MLflow experiment of the run."""
    tags: dict[Name, str] = Field(default_factory=dict)
    """Tags of the run."""
    parent_run_id: Name | None = None
    """Run that becomes the parent of this one."""


class Wandb(Tracker):
    """A project of Weights & Biases; `WANDB_BASE_URL` names a server of one's own."""

    project: Name
    """Weights & Biases project to which the finished run is sent. WANDB_API_KEY holds the key."""
    entity: Name | None = None
    """Team or user. Default: that of the key."""
    tags: tuple[Name, ...] = ()
    """Tags of the run."""
