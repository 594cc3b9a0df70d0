"""Events of a run on two nodes. Each is applied to the stack's own target, verified and undone."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.teardown.event_undo import UNDO
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import STACK_LABEL
from tests.support.running_command import FINISHED, wait_for
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, shrink

pytestmark = [pytest.mark.cluster, pytest.mark.two_nodes]

REPLICAS, RATE = 2, 10
EVENTS: list[dict[str, Any]] = [
    {"at": "12s", "do": "delete-pod"},
    {"at": "24s", "do": "evict"},
    {"at": "36s", "do": "restart"},
    {"at": "50s", "do": "scale", "replicas": 3, "duration": "3s"},
    {"at": "66s", "do": "kill", "pick": "all"},
    {"at": "80s", "do": "stall", "duration": "4s", "pick": "all"},
    {"at": "96s", "do": "cut", "duration": "8s"},
    {"at": "118s", "do": "cpu", "cores": 1, "duration": "3s"},
    {"at": "132s", "do": "drain", "duration": "3s"},
]
PROOFS = {
    "delete-pod": "replaced by ",
    "evict": "replaced by ",
    "restart": "replaced by ",
    "scale": "3 pods exist; 2 again afterwards",
    "kill": "restartCount is higher",
    "stall": "state T in /proc/PID/stat; continued afterwards",
    "cut": "connections from a worker are dropped; accepted afterwards",
    "cpu": "busy loops used ",
    "drain": "uncordoned afterwards",
}
WAIT_S = 120.0


def disturbed(benchmark: Config, events: list[dict[str, Any]], duration: str) -> None:
    benchmark["load"] = {"request_rate": RATE, "duration": duration, "grace_period": "5s"}
    benchmark["events"] = events
    target = benchmark["deployment"]["target"]
    target |= {"replicas": REPLICAS, "rollout": "RollingUpdate"}
    # Fewer tokens make it rare that a request is cut off after its first token.
    target["args"] = ["--ttft", "50ms", "--itl", "5ms", "--tokens", "16"]


def unschedulable(cluster: Cluster) -> list[str]:
    """Return the names of the cordoned nodes."""
    return [
        node["metadata"]["name"]
        for node in cluster.objects("nodes")
        if node["spec"].get("unschedulable")
    ]


def test_each_event_is_verified_and_undone(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(shrink)
    runner.change(lambda benchmark: disturbed(benchmark, EVENTS, "150s"))
    ended = runner.run()
    own = runner.summary()["aiperf_svc"]
    found = {event["do"]: event for event in own["events"]}
    problems = {do: event["problem"] for do, event in found.items() if not event["is_verified"]}
    assert problems == {}, ended.errors
    for do, proof in PROOFS.items():
        assert proof in found[do]["evidence"], found[do]
    assert "events" not in {reason["check"] for reason in own["reasons"]}
    # All processes of the target were stopped. Open connections survive a cut.
    assert found["stall"]["longest_gap_s"] >= 4
    assert found["kill"]["lost"]
    assert unschedulable(cluster) == []
    assert ended.code in FINISHED, ended.errors


def has_netem() -> bool:
    """Return whether this machine's kernel, which runs all nodes, has the module sch_netem."""
    add = "ip link add a type veth peer name b && tc qdisc add dev a root netem delay 1ms"
    argv = ("unshare", "-n", "sh", "-c", add)
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


PACKETS: list[dict[str, Any]] = [
    {"at": "12s", "do": "delay", "latency": "300ms", "duration": "5s", "pick": "all"},
    {"at": "32s", "do": "loss", "loss": "20%", "duration": "5s", "pick": "all"},
]


def test_packets_are_disturbed_or_the_kernel_is_named(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    if not cluster.is_ours:
        pytest.skip("the kernels of the cluster of E2E_CONTEXT are unknown")
    runner = make_runner()
    runner.change(shrink)
    runner.change(lambda benchmark: disturbed(benchmark, PACKETS, "60s"))
    ended = runner.run()
    if not has_netem():
        assert ended.code == ExitCode.ERROR, ended.errors
        assert "has no module sch_netem; load it there (modprobe sch_netem)" in ended.errors
        assert "profiling: " not in ended.errors
    else:
        assert ended.code in FINISHED, ended.errors
        delay, loss = runner.summary()["aiperf_svc"]["events"]
        assert (delay["problem"], loss["problem"]) == ("", "")
        assert delay["latency_recovery_s"] >= 4
    assert cluster.left_of(runner.name) == []


@pytest.mark.parametrize("is_gone", [False, True], ids=["stack is there", "stack is gone"])
def test_gc_uncordons_the_node_of_a_killed_runner(
    is_gone: bool, cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(shrink)
    drain = [{"at": "12s", "do": "drain", "duration": "2m"}]
    runner.change(lambda benchmark: disturbed(benchmark, drain, "150s"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        wait_for(lambda: bool(unschedulable(cluster)))
        command.kill()
    if is_gone:
        # The deadline pod removes it, which has no permission to change nodes.
        label = ("-l", f"{STACK_LABEL}={runner.name}")
        cluster.kubectl("delete", "namespace", *label, timeout_s=WAIT_S)
        assert unschedulable(cluster)
    ended = runner.call("gc", runner.name, "--yes")
    assert ended.code == ExitCode.OK, ended.errors
    assert "an event was not undone: node " in ended.errors
    assert unschedulable(cluster) == []
    left = cluster.objects("namespaces")
    assert not any(UNDO in str(n["metadata"].get("annotations")) for n in left)
