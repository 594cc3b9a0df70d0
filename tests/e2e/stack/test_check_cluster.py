"""`check-cluster` on a real cluster: its findings are correct and nothing remains."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.preflight.checklist import preflight
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.plans import to_plan
from tests.support.stack import node_pods
from tests.support.stack.gpu_exporter import exporter_pod
from tests.support.stack.real_cluster import FAKE_NODE, Cluster
from tests.support.stack.real_runner import Runner

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

FAKE_NODES = 2
CHECK_LABEL = "aiperf.dev/stack"
SKEW_S = 90
XID = 79


def found_by(runner: Runner, *flags: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the exit code, the checks by name, and the whole printed object."""
    ended = runner.call("check-cluster", "--json", *flags)
    assert ended.out, ended.errors
    printed = json.loads(ended.out)
    assert printed["exit_code"] == ended.code
    return ended.code, {each["name"]: each for each in printed["checks"]}, printed


def namespaces_of_checks(cluster: Cluster) -> list[str]:
    found = cluster.objects("namespaces", "-l", CHECK_LABEL)
    names = (each["metadata"]["name"] for each in found)
    return [name for name in names if name.startswith("aiperf-check-")]


def test_a_sound_cluster_passes_and_keeps_nothing(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    before = cluster.namespace_uids()
    code, checks, printed = found_by(make_runner(), "--strict")
    assert code == ExitCode.OK, checks
    assert {each["state"] for each in checks.values()} == {"ok"}
    nodes = len(cluster.nodes())
    assert checks["nodes"]["detail"] == f"{nodes} of {nodes} are ready"
    # All nodes share one clock with the API server.
    assert checks["clocks"]["detail"].startswith(f"{nodes} of {nodes} nodes agree")
    assert checks["network policies"]["detail"].startswith("enforced: ")
    assert checks["GPUs"]["detail"] == "no ready node has any"
    assert (printed["gpus"], printed["left"], printed["not_checked"]) == ([], [], [])
    # One of an earlier test may still have been terminating before.
    assert cluster.namespace_uids() <= before


@pytest.mark.usefixtures("fake_nodes")
def test_gpus_exporters_and_wrong_clocks_are_found(
    cluster: Cluster, base_image: str, owners_namespace: str, make_runner: Callable[[], Runner]
) -> None:
    node_pods.start(cluster, owners_namespace, [exporter_pod(image=base_image, xid=XID)])
    # The second fake node has lost its device plugin. A third node has a clock that is ahead and
    # never reports again.
    plugin = json.dumps({"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
    cluster.kubectl("patch", "node", "fake-1", "--subresource=status", "--patch", plugin)
    report_late(cluster, "fake-skewed")
    try:
        code, checks, printed = found_by(make_runner())
        before_a_stack = preflight_with_gpus(cluster, base_image)
    finally:
        cluster.kubectl("delete", "node", "fake-skewed")
    assert code == ExitCode.ERROR, checks
    assert checks["clocks"]["state"] == "warning"
    assert f"fake-skewed is {SKEW_S} s ahead of" in checks["clocks"]["detail"]
    assert printed["gpus"] == [
        {
            "resource": "nvidia.com/gpu",
            "product": "",
            "nodes": FAKE_NODES,
            "capacity": 16,
            "allocatable": 8,
            "free": 8,
        }
    ]
    plugin_check = checks["device plugin"]
    assert plugin_check["state"] == "warning"
    assert plugin_check["detail"].endswith("fake-1 (0 of 8 nvidia.com/gpu)")
    exporters = checks["GPU exporters"]
    assert exporters["state"] == "warning"
    assert "a pod reads them: 1 GPUs; none on fake-0, fake-1" in exporters["detail"]
    assert checks["Xid errors"]["state"] == "failed"
    assert f"(Xid {XID})" in checks["Xid errors"]["detail"]
    assert namespaces_of_checks(cluster) == []
    # The preflight of a stack that requests GPUs gives the same result.
    assert before_a_stack["device plugin"] == plugin_check["detail"]
    assert before_a_stack["GPU exporters"].endswith("none on fake-0, fake-1")


def preflight_with_gpus(cluster: Cluster, image: str) -> dict[str, str]:
    """Return the preflight results by check of a stack whose target requests GPUs."""
    placement = {"node_selector": {FAKE_NODE: "true"}, "tolerations": [{"key": FAKE_NODE}]}
    target = {"kind": "custom", "image": image, "gpu": {"count": 8}, "placement": placement}
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://target", "model": "m"},
            "load": {"concurrency": 10, "requests": 10},
            "deployment": {"target": target},
        }
    )
    plan = to_plan(config, stack="asks-for-gpus", version="0.1.0", image=image)

    async def checked() -> dict[str, str]:
        where = {"kubeconfig": cluster.environ["KUBECONFIG"], "context": cluster.context}
        async with connect(**where) as connected:
            return {each.name: each.detail for each in await preflight(connected, plan)}

    return asyncio.run(checked())


def report_late(cluster: Cluster, name: str) -> None:
    """Create a node that reports once, like a kubelet, with a wrong clock."""
    labels = {"kubernetes.io/os": "linux"}
    taints = [{"key": FAKE_NODE, "effect": "NoSchedule"}]
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
        }
    )
    now = datetime.now(UTC).replace(microsecond=0)
    then = (now + timedelta(seconds=SKEW_S)).isoformat().replace("+00:00", "Z")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Test",
        "message": "",
        "lastHeartbeatTime": then,
        "lastTransitionTime": then,
    }
    patch = json.dumps({"status": {"conditions": [ready]}})
    cluster.kubectl("patch", "node", name, "--subresource=status", "--patch", patch)


def test_ctrl_c_and_gc_remove_probe_objects(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    with runner.start("check-cluster") as command:
        command.wait_for("check the network")
        command.send(signal.SIGINT)
        assert command.end().code == ExitCode.INTERRUPTED
    assert namespaces_of_checks(cluster) == []
    with runner.start("check-cluster") as command:
        command.wait_for("check the network")
        command.kill()
    (left,) = namespaces_of_checks(cluster)
    name = left.removeprefix("aiperf-")
    removed = runner.call("gc", name, "--yes")
    assert removed.code == ExitCode.OK, removed.errors
    assert cluster.left_of(name) == []
