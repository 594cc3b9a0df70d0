"""What is written, and where it goes."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model


class S3(Model):
    """A bucket of an S3-compatible store, to which the results are uploaded as well.

    Keys do not belong here: they come from the environment (`AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), on a cluster from the stack's secrets.
    """

    url: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#\s]*)?$")]
    """`s3://bucket/prefix`. Each run gets a folder of its own below it."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+/?$")] | None = None
    """Of a store that is not Amazon's: `https://host:port`; the bucket goes in the path."""
    region: Annotated[str, Field(min_length=1)] = "us-east-1"
    has_session_token: bool = False
    """On a cluster: the keys are temporary ones, which come with a session token."""
    egress_cidrs: tuple[str, ...] = ()
    """On a cluster: address ranges of the store; the upload reaches nothing else."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """What every key begins with, without slashes at its ends; may be empty."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")


class Artifacts(Model):
    """What is written, and where."""

    dir: Annotated[str, Field(min_length=1)] = "artifacts"
    jsonl_limit: Annotated[int, Field(ge=0)] = 1_000_000
    """Most lines of profile_export.jsonl; the records themselves are all in records.parquet."""
    s3: S3 | None = None
    """Where the results are uploaded too."""
