"""Settings of the artifacts: what is written, and where."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model
from aiperf_svc.config.trackers import Mlflow, Wandb
from aiperf_svc.config.units import PositiveDurationNs


class S3(Model):
    """A bucket of an S3-compatible store, to which the results are also uploaded.

    Keys are not set here: they come from the environment (`AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), on a cluster from the stack's secrets.
    """

    url: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#\s]*)?$")]
    """Bucket to which the results are also uploaded, `s3://bucket/prefix`. Each run gets its own
    folder below it. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold the keys."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+/?$")] | None = None
    """URL of a store other than Amazon's, `https://host:port`. The bucket goes into the path."""
    region: Annotated[str, Field(min_length=1)] = "us-east-1"
    """Region of the bucket."""
    has_session_token: bool = False
    """True if the keys on a cluster are temporary, with a session token."""
    egress_cidrs: tuple[str, ...] = ()
    """Address ranges of the store. On a cluster, the upload can reach no other address."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """Prefix of every key, without slashes at its ends; may be empty."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")


class Artifacts(Model):
    """What is written, and where."""

    dir: Annotated[str, Field(min_length=1)] = "artifacts"
    """Folder for the results."""
    jsonl_limit: Annotated[int, Field(ge=0)] = 1_000_000
    """Most lines of profile_export.jsonl. All records are in records.parquet."""
    http_trace: bool = False
    """Record the time of each read of a response, as `trace_data` in profile_export.jsonl. This
    takes memory for each read until the response ends."""
    slice_duration: PositiveDurationNs | None = None
    """Length of the time slices whose results are also written, to
    profile_export_aiperf_timeslices.json and .csv. Only for a benchmark of a server. Default: no
    slices."""
    s3: S3 | None = None
    """Bucket to which the results are also uploaded."""
    mlflow: Mlflow | None = None
    """MLflow tracking server to which the command sends the finished run."""
    wandb: Wandb | None = None
    """Weights & Biases project to which the command sends the finished run."""
