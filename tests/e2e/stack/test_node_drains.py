"""A node drain waits for the start and the load of a run, and no longer."""

import json
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import attempt
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, Stack, is_under_load, shrink

pytestmark = pytest.mark.cluster

READY_S, LOAD_S, GRACE_S, WARMUP_S = 20, 15, 2, 5
HOLD_S = 2 * READY_S + LOAD_S + WARMUP_S + 2 * GRACE_S
"""Longest time from the creation of the budget to its deletion."""
CAP_S = 90
"""Longer than a stack takes to start."""
TOO_MANY_REQUESTS = "Cannot evict pod as it would violate the pod's disruption budget"


def run_briefly(benchmark: Config) -> None:
    """Start and load end long before the stack removes itself."""
    deployment = benchmark["deployment"]
    deployment |= {"ttl": "10m", "ready_timeout": f"{READY_S}s"}
    deployment["target"]["ready_timeout"] = f"{READY_S}s"
    grace = f"{GRACE_S}s"
    benchmark["load"] |= {"duration": f"{LOAD_S}s", "grace_period": grace}
    benchmark["load"]["warmup"] = {"duration": f"{WARMUP_S}s", "grace_period": grace}


def other_load(benchmark: Config) -> None:
    benchmark["load"]["concurrency"] = 4


@pytest.mark.parametrize("mode", ["auto", "existing"])
def test_drain_waits_for_the_load_in_each_run(
    cluster: Cluster, make_stack: Callable[[], Stack], owners_namespace: str, mode: str
) -> None:
    stack = make_stack()
    stack.change(shrink)
    stack.change(run_briefly)
    if mode == "existing":
        own = {"mode": mode, "name": owners_namespace}
        stack.change(lambda benchmark: benchmark["deployment"].update(namespace=own))
    budgets = []
    for change in (run_briefly, other_load):
        stack.change(change)
        stack.up()
        outputs = stack.outputs()
        namespace = outputs["namespace"]
        stack.follow(outputs, is_under_load)
        assert TOO_MANY_REQUESTS in evict(cluster, stack, namespace, "worker")
        # The deadline pod may move at any time.
        assert evict(cluster, stack, namespace, "deadline") == ""
        (budget,) = cluster.objects("pdb", "-n", namespace)
        budgets.append(budget["metadata"]["uid"])
        gone = ("pdb", "-n", namespace, "--all", "--for=delete", f"--timeout={2 * HOLD_S}s")
        cluster.kubectl("wait", *gone, timeout_s=3 * HOLD_S)
        assert evict(cluster, stack, namespace, "worker") == ""
        # The stack still exists with its results.
        assert stack.follow(outputs, lambda status: status.is_settled).state == "done"
    assert len(set(budgets)) == 2
    stack.destroy()


@pytest.mark.two_nodes
def test_drain_ends_a_run_after_max_drain_hold(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    _, second = cluster.nodes()
    runner = make_runner()

    def capped(benchmark: Config) -> None:
        benchmark["deployment"]["max_drain_hold"] = f"{CAP_S}s"
        where = {"node_selector": {"kubernetes.io/hostname": second}}
        benchmark["deployment"]["pods"]["worker"]["placement"] = where
        benchmark["load"]["duration"] = "4m"

    runner.change(shrink)
    runner.change(capped)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(RUN)
        try:
            drained = drain(cluster, second)
        finally:
            cluster.kubectl("uncordon", second)
        ended = command.end()
    assert TOO_MANY_REQUESTS in drained
    # Measurements until then are kept. The verdict names the lost worker.
    assert ended.code == ExitCode.VERDICT_INVALID, ended.errors
    found = json.loads(ended.out)
    assert (found["state"], found["left"]) == ("done", [])
    assert "Verdict on the client: invalid: process-lost" in ended.errors
    assert cluster.left_of(runner.name) == []


def drain(cluster: Cluster, node: str) -> str:
    """Run `kubectl drain` until the node has no evictable pods. Return its output."""
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={3 * CAP_S}s")
    command = ("kubectl", "--context", cluster.context, "drain", node, *flags)
    ended = attempt(command, environ=cluster.environ, timeout_s=4 * CAP_S)
    assert ended.code == 0, ended.errors
    return ended.errors


def evict(cluster: Cluster, stack: Stack, namespace: str, component: str) -> str:
    """Request the eviction of a component's pod as a dry run of `kubectl drain`. Return the API
    server's refusal, or an empty text."""
    (pod,) = stack.pods(namespace, component)
    name = pod["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"dryRun": ["All"]},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    command = ("kubectl", "--context", cluster.context, "create", "--raw", path, "-f", "-")
    ended = attempt(command, environ=cluster.environ, stdin=json.dumps(body), timeout_s=20.0)
    return ended.errors if ended.code else ""
