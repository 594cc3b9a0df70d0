"""A bucket on moto's S3 server."""

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.artifacts import S3

BUCKET = "benchmarks"
KEY_ID, KEY, TOKEN = "AKIA-THE-KEYS-ID", "the-secret-key", "the-session-token"
KEYS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": KEY}
ENVIRON = {**KEYS, "AWS_SESSION_TOKEN": TOKEN}


@dataclass(frozen=True)
class Store:
    url: str
    client: Any

    def s3(self, prefix: str = "runs", **fields: Any) -> S3:
        return S3(url=f"s3://{BUCKET}/{prefix}", endpoint_url=self.url, **fields)

    def names(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ())
        return [each["Key"] for each in listed]

    def objects(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in self.names()}

    def read(self, name: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content

    def put(self, folder: Path, prefix: str) -> None:
        """Upload the files of a folder under a prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder)}"
                self.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())

    @contextmanager
    def empty_bucket(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Create the bucket, set its keys in the environment, and delete the bucket afterwards."""
        for name, value in ENVIRON.items():
            monkeypatch.setenv(name, value)
        self.client.create_bucket(Bucket=BUCKET)
        try:
            yield
        finally:
            if names := self.names():
                objects = [{"Key": name} for name in names]
                self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
            self.client.delete_bucket(Bucket=BUCKET)


@contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[Store]:
    """Serve buckets at a local address."""
    # Imported here because every pytest process imports all test modules.
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": KEY}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    # All servers of a process share their buckets, even those of earlier tests.
    urllib.request.urlopen(f"{url}/moto-api/reset", data=b"").close()
    try:
        yield Store(url, client)
    finally:
        client.close()
        moto.stop()
