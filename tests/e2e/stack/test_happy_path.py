"""A committed stack file is brought up, measured and removed with the plain Pulumi CLI."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Stack, restarts

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

WARMUP, CONCURRENCY = 16, 8


def with_hooks(benchmark: dict[str, Any]) -> None:
    """Call the mock server's hooks before the first phase and after the last."""
    benchmark["endpoint"]["hooks"] = [
        {"before": "load", "method": "GET", "path": "/health"},
        {"after": "profiling", "method": "GET", "path": "/v1/models"},
    ]


def test_stack_starts_measures_and_leaves_nothing(
    cluster: Cluster, make_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    stack = make_stack()
    stack.shortcuts = ()
    stack.change(with_hooks)
    stack.init()
    preview = stack.pulumi("preview", "-s", stack.name)
    assert f"aiperf-{stack.name}" in preview
    assert "to create" in preview
    assert cluster.of_stack(stack.name) == []
    stack.up()
    outputs = stack.outputs()
    namespace = outputs["namespace"]
    (made,) = cluster.objects("namespaces", "-l", f"aiperf.dev/stack={stack.name}")
    assert made["metadata"]["name"] == namespace
    uid = made["metadata"]["uid"]
    assert uid in cluster.namespace_uids()
    # The leak check must find everything now, so that finding nothing later proves something.
    kinds = {each.split("/")[1] for each in cluster.of_stack(stack.name)}
    assert kinds >= {
        "Namespace", "ConfigMap", "Secret", "ServiceAccount", "Role", "RoleBinding",
        "NetworkPolicy", "PodDisruptionBudget", "Service", "EndpointSlice", "Deployment",
        "ReplicaSet", "Pod",
    }  # fmt: skip

    results = tmp_path / "results"
    status, summary = stack.measure(outputs, results)
    assert (status.state, status.artifact_error) == ("done", "")
    assert (status.workers, status.workers_lost) == (1, 0)

    ours = summary["aiperf_svc"]
    accounts = ours["accounts"]
    profiled = summary["request_count"]["avg"]
    assert accounts["violations"] == []
    assert accounts["records_lost"] == accounts["errored"] == accounts["lost"] == 0
    assert accounts["completed"] == profiled > CONCURRENCY
    assert accounts["requests_sent"] == accounts["records"]
    assert len((results / "profile_export.jsonl").read_text().splitlines()) == profiled
    assert ours["lost_services"] == []
    # The server's own metrics, which the policies let the records manager read.
    (source,) = ours["system"]["sources"]
    assert source["problem"] == ""
    running = ours["system"]["metrics"]["server_running_requests"]
    # A short load has few pages. The first and the last may lie outside of it.
    assert 0 < running <= CONCURRENCY
    files = {path.name for path in results.iterdir()}
    assert files >= {"server_metrics_export.jsonl", "telemetry.parquet", "metrics.om"}
    calls = [(call["text"].rpartition(" ")[2], call["problem"]) for call in ours["hooks"]]
    assert calls == [("warmup", ""), ("profiling", "")], "policies let the requests pass"
    assert 0 < summary["network_rtt"]["min"] <= summary["time_to_first_token"]["max"]

    pods = stack.pods(namespace)
    assert len(pods) == outputs["pods"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert restarts(pods) == {}

    stack.destroy()
    assert cluster.left_of(stack.name) == []
    assert uid not in cluster.namespace_uids()
