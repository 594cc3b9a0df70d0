"""The leak check finds a stack's leftovers of every kind and reports nothing else."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, connect
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects, take_inventory
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, find_left, wait_until_gone
from aiperf_svc.adapters.cluster.teardown.removal import list_stacks, remove_by_label
from aiperf_svc.plan.identity import TTL_ANNOTATION
from tests.support.stack.merge_patch import merge_patch
from tests.support.stack.real_cluster import Cluster as RealCluster
from tests.support.stack.small_pods import of_stack, pod

pytestmark = pytest.mark.gate

GONE_S = 60.0
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FINALIZER = "aiperf.test/hold"


def _named(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **rest}


def _everything(space: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the list path and a small object of each kind."""
    core, selector = f"/api/v1/namespaces/{space}", {"matchLabels": {"app": "x"}}

    def apis(group: str) -> str:
        return f"/apis/{group}/v1/namespaces/{space}"

    idle = pod("x", "localhost/none:1", nodeSelector={"aiperf.test/none": "x"})
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "none",
        "resources": {"requests": {"storage": "1Mi"}},
    }
    return {
        "Pod": (f"{core}/pods", idle),
        "ConfigMap": (f"{core}/configmaps", _named("x")),
        "Secret": (f"{core}/secrets", _named("x")),
        "Service": (f"{core}/services", _named("x", spec={"ports": [{"port": 1}]})),
        "ServiceAccount": (f"{core}/serviceaccounts", _named("x")),
        "PersistentVolumeClaim": (f"{core}/persistentvolumeclaims", _named("x", spec=claim)),
        "Lease": (f"{apis('coordination.k8s.io')}/leases", _named("x")),
        "Role": (f"{apis('rbac.authorization.k8s.io')}/roles", _named("x", rules=[])),
        "NetworkPolicy": (
            f"{apis('networking.k8s.io')}/networkpolicies",
            _named("x", spec={"podSelector": selector}),
        ),
        "PodDisruptionBudget": (
            f"{apis('policy')}/poddisruptionbudgets",
            _named("x", spec={"selector": selector, "maxUnavailable": 1}),
        ),
    }


@pytest.fixture
async def own_type(connected: Cluster) -> AsyncIterator[tuple[str, str]]:
    """Yield kind and API group of a custom type."""
    word = f"thing{secrets.token_hex(3)}"
    group = f"{word}.aiperf.test"
    names = {"plural": word + "s", "singular": word, "kind": word.capitalize()}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    made = await connected.post(CRDS, _named(f"{word}s.{group}", spec=spec))
    yield names["kind"], f"/apis/{group}/v1/%s/{word}s"
    await connected.delete(f"{CRDS}/{made['metadata']['name']}")


async def _make_when_served(cluster: Cluster, path: str, manifest: dict[str, Any]) -> None:
    async with asyncio.timeout(GONE_S):
        while True:
            try:
                await cluster.post(path, manifest)
            except Refused as error:
                if error.status != 404:
                    raise
            else:
                return


async def test_every_kind_of_leftover_is_found_and_removed(
    connected: Cluster, space: str, stack: str, own_type: tuple[str, str]
) -> None:
    kind, own_path = own_type
    role = f"{RBAC}/clusterroles"
    await connected.post(role, of_stack(_named(f"x-{stack}", rules=[]), stack))
    try:
        own = {"apiVersion": own_path.removeprefix("/apis/").partition("/%s")[0], "kind": kind}
        path = own_path % f"namespaces/{space}"
        await _make_when_served(connected, path, of_stack(_named("x", **own), stack))
        everything = _everything(space)
        for where, manifest in everything.values():
            await connected.post(where, of_stack(manifest, stack))

        wanted = StackObjects(stack=stack, namespace=space)
        report = await find_left(connected, wanted)
        # Kubernetes creates an EndpointSlice for the Service and copies its labels.
        found = {each.kind for each in report.left} - {"EndpointSlice", "Endpoints"}
        assert found == {*everything, kind, "ClusterRole"}
        assert report.not_checked == ()

        (listed,) = [each for each in await list_stacks(connected) if each.stack == stack]
        assert listed.namespaces == (space,)
        assert listed.objects == len(report.left)

        await remove_by_label(connected, StackObjects(stack=stack))
        after = await wait_until_gone(connected, wanted, timeout_s=GONE_S)
        assert after == LeakReport(left=(), not_checked=())
    finally:
        await connected.delete(f"{role}/x-{stack}")


async def test_namespace_held_by_a_finalizer_is_reported(
    connected: Cluster, stack: str, own_space: tuple[str, str]
) -> None:
    name, uid = own_space
    path = f"/api/v1/namespaces/{name}/configmaps"
    held = {"metadata": {"name": "held", "finalizers": [FINALIZER]}}
    await connected.post(path, held)
    wanted = StackObjects(stack=stack, namespace=name, namespace_uid=uid)
    try:
        await remove_by_label(connected, StackObjects(stack=stack))
        async with asyncio.timeout(GONE_S):
            # The controller sets the conditions after its first attempt.
            while not (left := await _reasons(connected, wanted)):
                pass
        assert f"{FINALIZER} in 1 resource instances" in str(left["Namespace"])
        assert left["ConfigMap"].finalizers == (FINALIZER,)
        assert left["ConfigMap"].is_going
    finally:
        await merge_patch(connected, f"{path}/held", {"metadata": {"finalizers": None}})
    after = await wait_until_gone(connected, wanted, timeout_s=GONE_S)
    assert after == LeakReport(left=(), not_checked=())


async def _reasons(cluster: Cluster, wanted: StackObjects) -> dict[str, ObjectRef]:
    """Wait until the namespace's conditions name a finalizer. Return the leftovers by kind."""
    report = await find_left(cluster, wanted)
    left = {each.kind: each for each in report.left}
    return left if "Finalizers" in left["Namespace"].detail else {}


async def test_recreated_namespace_is_not_the_stacks(
    connected: Cluster, space: str, stack: str
) -> None:
    report = await find_left(
        connected, StackObjects(stack=stack, namespace=space, namespace_uid="of the first")
    )
    assert report.is_clean


async def test_existing_namespace_counts_own_objects_only(
    connected: Cluster, space: str, stack: str
) -> None:
    path = f"/api/v1/namespaces/{space}/configmaps"
    await connected.post(path, _named("kept"))
    await connected.post(path, _named("lost"))
    before = await take_inventory(connected, space)
    await connected.post(path, _named(f"worker-{stack}-7f"))
    await connected.post(path, _named("of-the-owner"))
    await connected.delete(f"{path}/lost")
    report = await find_left(connected, StackObjects(stack=stack, namespace=space, before=before))
    assert [each.name for each in report.left] == [f"worker-{stack}-7f"]
    assert [each.name for each in report.missing] == ["lost"]


async def test_forbidden_types_are_not_checked(
    cluster: RealCluster,
    connected: Cluster,
    space: str,
    stack: str,
    lesser_user: Callable[[Any], Awaitable[str]],
) -> None:
    kubeconfig = await lesser_user([("", "configmaps", ("list", "delete"))])
    path = f"/api/v1/namespaces/{space}/configmaps"
    await connected.post(path, of_stack(_named("x"), stack))
    async with connect(kubeconfig=kubeconfig) as lesser:
        assert lesser.identity == lesser.server
        report = await find_left(lesser, StackObjects(stack=stack, namespace=space))
    assert [(each.kind, each.name) for each in report.left] == [("ConfigMap", "x")]
    assert "secrets (not allowed)" in report.not_checked
    assert "clusterroles.rbac.authorization.k8s.io (not allowed)" in report.not_checked
    assert f"configmaps outside namespace {space} (not allowed)" in report.not_checked
    assert not report.is_clean


async def test_overdue_stack_is_reported(connected: Cluster, space: str, stack: str) -> None:
    anchor = of_stack(_named("anchor"), stack)
    anchor["metadata"]["annotations"] = {TTL_ANNOTATION: "0"}
    await connected.post(f"/api/v1/namespaces/{space}/configmaps", anchor)
    async with asyncio.timeout(GONE_S):
        # Timestamps of the API server have a resolution of one second.
        while not any(
            each.stack == stack and each.is_overdue for each in await list_stacks(connected)
        ):
            pass
