"""Results are also uploaded to a bucket whose keys are only in a Secret."""

import hashlib
import json
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.bucket import BUCKET, KEYS, Store
from tests.support.running_command import FINISHED
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import PASSPHRASE, Config
from tests.support.stack.secrecy import files_in, found_in, objects_and_logs, secrets_of

pytestmark = pytest.mark.cluster


def test_stack_uploads_results_and_shows_no_key(
    cluster: Cluster, make_runner: Callable[[], Runner], store: Store
) -> None:
    runner = make_runner()

    def with_bucket(benchmark: Config) -> None:
        benchmark["artifacts"] = {"s3": {"url": f"s3://{BUCKET}/runs", "endpoint_url": store.url}}

    runner.change(with_bucket)
    runner.environ |= KEYS
    ended = runner.run("--keep", "--json")
    printed = json.loads(ended.out)
    assert ended.code in FINISHED, ended.errors
    assert printed["artifact_error"] is None

    (artifacts,) = runner.artifacts.glob("*")
    prefix = printed["uploaded_to"].removeprefix(f"s3://{BUCKET}/") + "/"
    assert prefix.startswith("runs/")
    uploaded = {key.removeprefix(prefix): data for key, data in store.objects().items()}
    manifest = json.loads(uploaded["manifest.json"])
    for file in manifest["files"]:
        assert hashlib.sha256(uploaded[file["name"]]).hexdigest() == file["sha256"]
    assert uploaded["records.parquet"] == (artifacts / "records.parquet").read_bytes()

    keys = set(KEYS.values())
    assert keys <= secrets_of(cluster, printed["namespace"], runner.name)
    shown = objects_and_logs(cluster, printed["namespace"])
    assert len(shown) > 20
    shown |= files_in(runner.folder)
    shown |= {f"uploaded {name}": data for name, data in uploaded.items()}
    shown |= {"output": ended.out.encode(), "errors": ended.errors.encode()}
    assert found_in(shown, keys | {PASSPHRASE}) == []

    assert runner.gc().code == ExitCode.OK
    assert cluster.left_of(runner.name) == []
    assert found_in(files_in(runner.folder), keys) == []


@pytest.mark.parametrize("fan_out", ["stacks", "jobs"])
def test_trials_of_two_shapes_share_a_bucket_folder(
    cluster: Cluster, make_runner: Callable[[], Runner], store: Store, fan_out: str
) -> None:
    runner = make_runner()

    def in_two_shapes(benchmark: Config) -> None:
        benchmark["artifacts"] = {"s3": {"url": f"s3://{BUCKET}/runs", "endpoint_url": store.url}}
        benchmark["load"]["duration"] = "2s"
        rows = [["--ttft", each] for each in ("5ms", "9ms")]
        benchmark["experiment"] = {"product": {"deployment.target.args": rows}, "fan_out": fan_out}
        benchmark["deployment"]["ttl"] = "2h"

    runner.change(in_two_shapes)
    runner.environ |= KEYS
    before = set(store.objects())
    ended = runner.run("--json")
    assert ended.code in FINISHED, ended.errors
    printed = json.loads(ended.out)
    assert (printed["artifact_error"], printed["left"]) == (None, [])
    place = printed["uploaded_to"].removeprefix(f"s3://{BUCKET}/") + "/"
    objects = store.objects()
    assert all(key.startswith(place) for key in objects.keys() - before)
    listed = json.loads(objects[f"{place}manifest.json"])["files"]
    assert all(
        hashlib.sha256(objects[place + file["name"]]).hexdigest() == file["sha256"]
        for file in listed
    )
    assert json.loads(objects[f"{place}experiment.json"]) == printed["results"]
    names = {file["name"] for file in listed}
    assert {f"trials/{t['folder']}/records.parquet" for t in printed["results"]["trials"]} <= names
    assert cluster.left_of(runner.name) == []


def test_upload_without_keys_is_refused_before_creation(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(lambda benchmark: benchmark.update(artifacts={"s3": {"url": "s3://results"}}))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        runner.environ.pop(name, None)
    ended = runner.run()
    assert ended.code == ExitCode.BAD_CONFIG
    assert "AWS_SECRET_ACCESS_KEY" in ended.errors
    assert cluster.of_stack(runner.name) == []
