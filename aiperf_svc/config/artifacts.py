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
    """`s3://bucket/prefix`. Each run gets a folder of its own below it."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+/?$")] | None = None
    """URL of a store other than Amazon's: `https://host:port`. The bucket goes into the path."""
    region: Annotated[str, Field(min_length=1)] = "us-east-1"
    has_session_token: bool = False
    """True if the keys on a cluster are temporary, with a session token."""
    egress_cidrs: tuple[str, ...] = ()
    """Address ranges of the store on a cluster; the upload can reach nothing else."""

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
    jsonl_limit: Annotated[int, Field(ge=0)] = 1_000_000
    """Most lines of profile_export.jsonl; the records themselves are all in records.parquet."""
    http_trace: bool = False
    """Keep when each read of a response came, as `trace_data` in the lines of
    profile_export.jsonl. Takes memory for each read until the response ends."""
    slice_duration: PositiveDurationNs | None = None
    """Length of the slices of time whose results profile_export_aiperf_timeslices.json and .csv
    have; None: these files are not written. Only for a benchmark of a server."""
    s3: S3 | None = None
    """Bucket to which the results are also uploaded."""
    mlflow: Mlflow | None = None
    """Tracking server in which the command files the finished run."""
    wandb: Wandb | None = None
    """Project of Weights & Biases in which the command files it."""
