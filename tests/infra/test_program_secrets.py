"""Secrets of a stack: which pods read them, and that nothing else contains them. Keys of a stack
file that would expose a secret are rejected, as are keys that the program cannot support."""

import json
from typing import Any

import pulumi
import pytest

from aiperf_svc.protocol.services import Service
from tests.support.recording import (
    STACK,
    Recording,
    benchmark,
    component_of,
    config_file,
    environment_of,
    pod_templates,
    record,
)

TARGET_KEY, PAGES_KEY = "sk-of-the-target", "sk-of-the-pages"
UPLOAD_ID, UPLOAD_KEY = "AKIA-of-the-bucket", "sk-of-the-bucket"


@pytest.fixture(scope="module")
def keyed() -> Recording:
    """Return a stack with all keys that a benchmark can have."""
    deployed = _behind_a_key()
    deployed["artifacts"] = {"s3": {"url": "s3://bucket/runs"}}
    deployed["telemetry"] = {"server_metrics": ["https://x.example"], "key_env": "MY_PAGES"}
    secrets = {
        "aiperf:targetApiKey": TARGET_KEY,
        "aiperf:pagesKey": PAGES_KEY,
        "aiperf:s3AccessKeyId": UPLOAD_ID,
        "aiperf:s3SecretAccessKey": UPLOAD_KEY,
    }
    return record(STACK, {"aiperf:benchmark": deployed}, secrets=secrets)


def _behind_a_key() -> dict[str, Any]:
    deployed = benchmark(target={"kind": "none"})
    deployed["endpoint"] = {"url": "https://x.example", "model": "m", "api_key_env": "MY_KEY"}
    return deployed


def test_keys_of_services_are_secret_and_made_once(keyed: Recording) -> None:
    made = keyed.registration("Secret", "keys")
    assert made.secret_inputs == {"data"}
    assert made.ignored == ("data",)
    keys = {f"{service}.{half}" for service in Service for half in ("public", "secret")}
    assert set(made.inputs["data"]) == keys | {"token", "metrics-token"}


@pytest.mark.parametrize("name", ["target", "upload", "pages"])
def test_keys_of_a_benchmark_are_secret(name: str, keyed: Recording) -> None:
    assert keyed.registration("Secret", name).secret_inputs == {"data"}


@pytest.mark.parametrize("key", [TARGET_KEY, PAGES_KEY, UPLOAD_ID, UPLOAD_KEY])
def test_no_key_is_in_clear_text(key: str, keyed: Recording) -> None:
    for one in keyed.resources.values():
        assert key not in json.dumps(one.inputs)


def _readers(recording: Recording, secret: str) -> list[tuple[str, str]]:
    """Return the components that get a value of a Secret, and the names of their variables."""
    return [
        (component_of(template), name)
        for template in pod_templates(recording)
        for name, env in environment_of(template).items()
        if env.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == f"{secret}-{STACK}"
    ]


def test_only_workers_read_the_targets_key(keyed: Recording) -> None:
    assert _readers(keyed, "target") == [("worker", "AIPERF_TARGET_API_KEY")]
    assert "api_key_env: AIPERF_TARGET_API_KEY" in config_file(keyed)


def test_only_records_manager_reads_upload_keys(keyed: Recording) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert _readers(keyed, "upload") == [("records-manager", name) for name in names]


def test_only_records_manager_reads_the_pages_key(keyed: Recording) -> None:
    assert _readers(keyed, "pages") == [("records-manager", "AIPERF_PAGES_KEY")]
    assert "key_env: AIPERF_PAGES_KEY" in config_file(keyed)


def test_a_missing_key_of_the_target_is_named() -> None:
    with pytest.raises(pulumi.ConfigMissingError, match="aiperf:targetApiKey"):
        record(STACK, {"aiperf:benchmark": _behind_a_key()})


def test_a_secret_inside_the_benchmark_is_refused() -> None:
    text = json.dumps(benchmark())
    with pytest.raises(pulumi.RunError, match="aiperf:targetApiKey"):
        record(STACK, {}, secrets={"aiperf:benchmark": text})


def test_a_kubeconfigs_content_is_refused() -> None:
    config = {"aiperf:benchmark": benchmark(), "aiperf:kubeconfig": "apiVersion: v1\nkind: Config"}
    with pytest.raises(pulumi.RunError, match="expected its path"):
        record(STACK, config)


def test_a_file_for_several_clusters_is_refused() -> None:
    clusters = [{"context": "eu"}, {"context": "us"}]
    config = {"aiperf:benchmark": benchmark(), "aiperf:clusters": clusters}
    with pytest.raises(pulumi.RunError, match="`aiperf-svc run` makes a stack in each"):
        record(STACK, config)


def test_bad_benchmark_names_its_key() -> None:
    config = {"aiperf:benchmark": benchmark() | {"laod": {}}}
    with pytest.raises(pulumi.RunError, match=r"aiperf:benchmark.*laod"):
        record(STACK, config)
