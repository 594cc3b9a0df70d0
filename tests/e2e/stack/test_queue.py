"""A stack in a Kueue queue, whose controller runs next to the cluster. Either all of its pods are
admitted or none, and nothing is left.

The controller's webhooks apply to the pods of all namespaces, so nothing else may run beside it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.queue import GROUP_LABEL
from tests.support.running_command import FINISHED
from tests.support.stack.controllers import controller
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, UP, Runner

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

QUEUE = "benchmarks"


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[None]:
    with controller(cluster, "kueue"):
        yield


@pytest.fixture
def make_queue(
    kueue: None, cluster: Cluster, owners_namespace: str
) -> Iterator[Callable[..., None]]:
    """Return a function that creates a queue with this much CPU in the owner's namespace."""

    def make(cpu: str) -> None:
        group = "kueue.x-k8s.io/v1beta1"
        amounts = {"cpu": cpu, "memory": "32Gi", "ephemeral-storage": "200Gi"}
        resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
        flavor = {"name": "default", "resources": resources}
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": list(amounts), "flavors": [flavor]}],
        }
        cluster.apply(
            {"apiVersion": group, "kind": "ResourceFlavor", "metadata": {"name": "default"}},
            {
                "apiVersion": group,
                "kind": "ClusterQueue",
                "metadata": {"name": QUEUE},
                "spec": spec,
            },
            {
                "apiVersion": group,
                "kind": "LocalQueue",
                "metadata": {"name": QUEUE, "namespace": owners_namespace},
                "spec": {"clusterQueue": QUEUE},
            },
        )
        active = (f"localqueue/{QUEUE}", "-n", owners_namespace, "--for=condition=Active")
        cluster.kubectl("wait", *active, "--timeout=30s", timeout_s=60.0)

    yield make
    cluster.kubectl("delete", "localqueue", "--all", "-n", owners_namespace, timeout_s=60.0)
    cluster.kubectl("delete", "clusterqueue", QUEUE, "--ignore-not-found", timeout_s=60.0)


def queued(namespace: str, timeout: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that puts a stack into the queue."""

    def change(benchmark: dict[str, Any]) -> None:
        place = {"mode": "existing", "name": namespace}
        benchmark["deployment"].update(namespace=place, queue=QUEUE, queue_timeout=timeout)

    return change


def test_queue_admits_a_whole_stack(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    make_queue: Callable[..., None],
    owners_namespace: str,
) -> None:
    make_queue("8")
    runner = make_runner()
    runner.change(queued(owners_namespace, "2m"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        grouped = cluster.objects("pods", "-n", owners_namespace, "-l", GROUP_LABEL)
        (workload,) = cluster.objects("workloads.kueue.x-k8s.io", "-n", owners_namespace)
        ended = command.end()
    assert ended.code in FINISHED, ended.errors
    assert f"queue {QUEUE} has admitted the stack after" in ended.errors
    # All pods except the deadline pod. Each is a pod set.
    assert len(grouped) == 4
    assert sum(each["count"] for each in workload["spec"]["podSets"]) == 4
    assert cluster.left_of(runner.name) == []
    # Its pods own it, so garbage collection removes it.
    gone = ("workloads.kueue.x-k8s.io", "--all", "-n", owners_namespace, "--for=delete")
    cluster.kubectl("wait", *gone, "--timeout=60s", timeout_s=90.0)


def test_queue_without_quota_ends_the_start(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    make_queue: Callable[..., None],
    owners_namespace: str,
) -> None:
    make_queue("50m")  # Each of the four pods requests 20m.
    runner = make_runner()
    runner.change(queued(owners_namespace, "60s"))
    ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert f"queue {QUEUE} has not admitted the stack after 6" in ended.errors
    assert "insufficient quota for cpu" in ended.errors
    # The leak check waited for pods that never ran, which Kueue holds for some seconds.
    assert "not touched" not in ended.errors
    assert cluster.left_of(runner.name) == []
    assert cluster.objects("pods", "-n", owners_namespace) == []


def test_ttl_removes_a_stack_that_waits(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    make_queue: Callable[..., None],
    owners_namespace: str,
) -> None:
    make_queue("50m")
    runner = make_runner()
    runner.change(queued(owners_namespace, "30s"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(UP)
        cluster.wait_for_objects("workloads.kueue.x-k8s.io", "-n", owners_namespace)
        command.kill()
    end_by_deadline(cluster, runner.name, "configmap")
    assert cluster.objects("pods", "-n", owners_namespace) == []
    assert runner.gc().code == ExitCode.OK
