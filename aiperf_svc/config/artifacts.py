"""Settings of the artifacts: what is written, where, and which services receive a finished run.

Keys of buckets and trackers are not set here: their libraries read them from environment variables
such as `MLFLOW_TRACKING_TOKEN` (or user name and password) and `WANDB_API_KEY`.
"""

import os
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import AfterValidator, Field

from aiperf_svc.config.base import Cidr, Model
from aiperf_svc.config.units import PositiveDurationNs

Name = Annotated[str, Field(min_length=1, max_length=250)]


def _checked_pattern(pattern: str) -> str:
    """Return the pattern. Raises ValueError if it is invalid or leads to another folder."""
    if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
        raise ValueError(f"{pattern!r}: expected a pattern of files below the artifact folder")
    try:
        # Patterns are only checked when used; this folder has no files.
        list(Path(os.devnull).glob(pattern))
    except ValueError as error:
        raise ValueError(f"{pattern!r} is not a file pattern: {error}") from error
    return pattern


FilePattern = Annotated[Name, AfterValidator(_checked_pattern)]

RESULT_FILES = (
    "profile_export_aiperf.json",
    "profile_export_aiperf.csv",
    "results.json",
    "results.csv",
    "verdict.json",
    "config.yaml",
    "report.html",
)
"""Files that are sent by default. Their size does not grow with the number of requests."""


class Tracker(Model):
    """Settings that all trackers have."""

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
    """A project of Weights & Biases; `WANDB_BASE_URL` names a self-hosted server."""

    project: Name
    """Weights & Biases project to which the finished run is sent. WANDB_API_KEY holds the key."""
    entity: Name | None = None
    """Team or user. Default: that of the API key."""
    tags: tuple[Name, ...] = ()
    """Tags of the run."""


_PREFIX_PART = r"(\.{0,2}[^./?#\s]|\.{3})[^/?#\s]*"
"""A part of a prefix: not empty, and neither `.` nor `..`."""


class S3(Model):
    """A bucket of an S3-compatible store, to which the results are also uploaded.

    Keys are not set here: they come from the environment (`AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), on a cluster from the stack's secrets.
    """

    url: Annotated[
        str,
        Field(
            pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
            rf"(/+{_PREFIX_PART}(/{_PREFIX_PART})*)?/*$"
        ),
    ]
    """Bucket to which the results are also uploaded, `s3://bucket/prefix`. Each run gets its own
    folder below it. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold the keys."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+/?$")] | None = None
    """URL of a store other than Amazon's, `https://host:port`. The bucket is part of the path."""
    region: Annotated[str, Field(min_length=1)] = "us-east-1"
    """Region of the bucket."""
    has_session_token: bool = False
    """Whether the keys on a cluster are temporary and have a session token."""
    egress_cidrs: tuple[Cidr, ...] = ()
    """Address ranges of the store. On a cluster, the upload can reach no other address."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """Prefix of every key, without slashes at its ends; may be empty."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")

    @property
    def at_endpoint(self) -> str:
        """` at URL` of a store other than Amazon's, for messages; else empty."""
        return f" at {self.endpoint_url}" if self.endpoint_url else ""


class Webhook(Model):
    """A URL that gets the result of each finished command as JSON.

    `AIPERF_WEBHOOK_SECRET` in the environment is the value of the secret header. A URL that is
    itself a secret comes from `AIPERF_WEBHOOK_URL`.
    """

    url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+(/[^@\s]*)?$")] | None = None
    """URL to which the result is posted. Default: AIPERF_WEBHOOK_URL."""
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = "Authorization"
    """Header with the value of AIPERF_WEBHOOK_SECRET, if that is set."""
    compare_with: Annotated[str, Field(min_length=1)] | None = None
    """Folder of a run, or `s3://BUCKET/RUN`, with which the result is compared. Default: the
    previous run in the bucket of `artifacts.s3`."""


class Artifacts(Model):
    """What is written, and where."""

    dir: Annotated[str, Field(min_length=1)] = "artifacts"
    """Folder for the results."""
    jsonl_limit: Annotated[int, Field(ge=0)] = 1_000_000
    """Maximum number of lines in profile_export.jsonl. records.parquet has all records."""
    http_trace: bool = False
    """Record the time of each read of a response, as `trace_data` in profile_export.jsonl. Each
    read takes memory until the response ends."""
    slice_duration: PositiveDurationNs | None = None
    """Length of the time slices for which results are also written, to
    profile_export_aiperf_timeslices.json and .csv. Only for a benchmark of a server. Default: no
    slices."""
    s3: S3 | None = None
    """Bucket to which the results are also uploaded."""
    mlflow: Mlflow | None = None
    """MLflow tracking server to which the command sends the finished run."""
    webhook: Webhook | None = None
    """URL to which the command posts the result and its comparison with the previous run."""
    wandb: Wandb | None = None
    """Weights & Biases project to which the command sends the finished run."""
