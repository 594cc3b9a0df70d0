"""The state of a stack outside the cluster contains no secrets in plain text. It is in a versioned
bucket, as a team would share it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from aiperf_svc.protocol.services import Service
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import PASSPHRASE, Config, Stack, shrink
from tests.support.stack.secrecy import found_in, objects_and_logs, secrets_of

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

BUCKET = "state"
API_KEY = "sk-of-the-target-0123456789"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@dataclass
class Bucket:
    """An S3-compatible bucket on this machine."""

    port: int

    @property
    def backend(self) -> str:
        """Return the backend URL for Pulumi."""
        return (
            f"s3://{BUCKET}?endpoint=127.0.0.1:{self.port}"
            "&disableSSL=true&s3ForcePathStyle=true&region=us-east-1"
        )

    def client(self) -> Any:
        """Return a boto3 client."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=ACCOUNT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ACCOUNT["AWS_SECRET_ACCESS_KEY"],
        )

    def contents(self) -> dict[str, bytes]:
        """Return every version of every object ever written."""
        s3 = self.client()
        return {
            f"{each['Key']} {each['VersionId']}": s3.get_object(
                Bucket=BUCKET, Key=each["Key"], VersionId=each["VersionId"]
            )["Body"].read()
            for page in s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
            for each in page.get("Versions", ())
        }


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        found = Bucket(server.get_host_and_port()[1])
        found.client().create_bucket(Bucket=BUCKET)
        found.client().put_bucket_versioning(
            Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}
        )
        yield found
    finally:
        server.stop()


def with_api_key(benchmark: Config) -> None:
    benchmark["endpoint"]["api_key_env"] = "SERVICE_API_KEY"


def test_state_objects_and_artifacts_show_no_secret(
    cluster: Cluster, make_stack: Callable[[], Stack], bucket: Bucket, tmp_path: Path
) -> None:
    stack = make_stack()
    stack.environ |= {**ACCOUNT, "PULUMI_BACKEND_URL": bucket.backend}
    stack.change(shrink)
    stack.change(with_api_key)
    stack.init()
    stack.pulumi("config", "set", "--secret", "aiperf:targetApiKey", API_KEY, "-s", stack.name)
    stack.up()
    outputs = stack.outputs()
    namespace = outputs["namespace"]
    secrets = secrets_of(cluster, namespace, stack.name)
    assert {API_KEY, outputs["resultsToken"]} <= secrets
    # A CURVE key pair for each service, two tokens (results and metrics), and the target's key.
    assert len(secrets) == 2 * len(Service) + 3

    results = tmp_path / "results"
    status, _ = stack.measure(outputs, results)
    assert (status.state, status.reason) == ("done", "")
    shown = {f"artifact {p.name}": p.read_bytes() for p in results.rglob("*") if p.is_file()}
    shown |= objects_and_logs(cluster, namespace)
    assert len(shown) > 20
    assert found_in(shown, secrets) == []

    stack.destroy()
    kept = bucket.contents()
    # The states of `up` and `destroy`, their histories and backups.
    assert len(kept) > 5
    assert any(outputs["runId"].encode() in content for content in kept.values())
    kept |= {str(path): path.read_bytes() for path in (stack.file, stack.folder / "Pulumi.yaml")}
    assert found_in(kept, secrets | {PASSPHRASE}) == []
