"""Leftovers of a stack, types that were not listed, and what a removal waits for."""

from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import Catalog, Listed, ObjectRef
from aiperf_svc.adapters.cluster.teardown import leaks, removal
from aiperf_svc.adapters.cluster.teardown.inventory import (
    Inventory,
    StackObjects,
    has_name_of_stack,
)
from aiperf_svc.adapters.cluster.teardown.leaks import (
    LeakReport,
    find_left,
    is_one_of,
    is_own_volume,
    wait_reason,
    wait_until_gone,
)
from aiperf_svc.adapters.cluster.teardown.removal import list_stacks, remove_roots
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.domain.errors import Unverified
from aiperf_svc.runner.stack.teardown import unverified

EMPTY = Inventory(namespace="n", objects=(), not_listed=())
POD = ObjectRef(kind="Pod", namespace="n", name="p", uid="1", path="")
NODES, PODS, JOBS = "nodes (not allowed)", "pods (not allowed)", "jobs.batch (not allowed)"
OUTSIDE = "secrets outside namespace n (not allowed)"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (PODS, True),
        ("deployments.apps (503 no endpoints)", True),
        (OUTSIDE, False),
        (NODES, False),
        ("podtemplates (not allowed)", False),
        ("/v1 (its API server does not respond)", True),
        ("apps/v1 (its API server does not respond)", True),
        ("metrics.k8s.io/v1beta1 (its API server does not respond)", False),
    ],
)
def test_own_types_count_in_the_stacks_namespace(line: str, is_one: bool) -> None:
    assert is_one_of(line, leaks.USUAL_TYPES) is is_one


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (LeakReport(left=(), not_checked=()), "nothing is left"),
        (
            LeakReport(left=(), not_checked=(NODES, OUTSIDE)),
            "nothing is left of the types that the stack uses; 2 other types may not be listed "
            "(--json names them)",
        ),
        (
            LeakReport(left=(), not_checked=(NODES, PODS), unverified=(PODS,)),
            "it is unknown whether anything is left: pods could not be listed",
        ),
        (
            LeakReport(left=(), not_checked=(), unverified=(PODS, JOBS, "a", "b", "c")),
            "it is unknown whether anything is left: pods, jobs.batch, a and 2 more could not be "
            "listed",
        ),
        (LeakReport(left=(POD,), not_checked=()), "1 object is left"),
    ],
)
def test_leak_report_claims_only_listed_types(report: LeakReport, message: str) -> None:
    assert report.text == message


class Api:
    """A cluster that lists nothing of these types, and has or hides the stack's namespace."""

    objects: tuple[ObjectRef, ...] = ()
    inside: tuple[str, ...] = ()
    """Types that it lists everywhere except in the namespace."""
    failed: tuple[str, ...] = ()
    """Types that the user may list but whose lists fail."""

    def __init__(self, *not_listed: str, status: int = 404, allowed: bool = True) -> None:
        self.not_listed, self.status, self.allowed = not_listed, status, allowed

    @property
    def typed(self) -> Cluster:
        return cast(Cluster, self)

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        raise Refused(f"{path} ({self.status})", status=self.status, reason="")

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"status": {"allowed": self.allowed}}


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_objects(cluster: Api, *_: object, **where: object) -> Listed:
        inside = cluster.inside if "namespace" in where else ()
        return Listed(cluster.objects, (*cluster.not_listed, *inside), cluster.failed)

    async def read_catalog(_: object) -> Catalog:
        return Catalog((), ())

    monkeypatch.setattr(leaks, "list_objects", list_objects)
    monkeypatch.setattr(leaks, "read_catalog", read_catalog)


async def _left(api: Api, **more: Any) -> LeakReport:
    how: dict[str, Any] = {"before": EMPTY, "own": ("anchor",), **more}
    wanted = StackObjects(stack="s", namespace="n", **how)
    return await find_left(api.typed, wanted)


async def test_existing_namespace_needs_all_types_listed() -> None:
    report = await _left(Api(NODES, OUTSIDE, PODS, JOBS))
    assert report.unverified == (PODS,)
    assert set(report.not_checked) == {NODES, OUTSIDE, PODS, JOBS}
    assert (await _left(Api(JOBS), types=("jobs.batch",))).unverified == (JOBS,)
    assert (await _left(Api(NODES, OUTSIDE))).unverified == ()
    api = Api()
    api.inside = (PODS,)
    assert (await _left(api)).unverified == (PODS,)


async def test_failed_types_of_the_stack_are_reported() -> None:
    api = Api(PODS, "secrets (500)", "graphs.example.com (500)")
    api.failed = ("secrets (500)", "graphs.example.com (500)")
    report = await _left(api)
    assert (report.unverified, report.failed) == ((PODS, "secrets (500)"), ("secrets (500)",))


async def test_stacks_whose_roots_failed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("list_objects", "read_catalog"):
        monkeypatch.setattr(removal, name, getattr(leaks, name))
    api = Api("namespaces (500)")
    api.failed = api.not_listed
    with pytest.raises(Unreachable, match=r"cannot be searched for: namespaces \(500\)"):
        await list_stacks(api.typed)


async def test_objects_that_outlive_their_owners_are_left() -> None:
    def ref(uid: str, owner: str, namespace: str = "n") -> ObjectRef:
        owners = (owner,) if owner else ()
        return msgspec.structs.replace(
            POD, name=uid, uid=uid, namespace=namespace, labels=LABELS, owners=owners
        )

    api, old = Api(), ref("old", "gone")
    before = Inventory(namespace="n", objects=(old,), not_listed=())
    api.objects = (
        old, ref("held", "gone"), ref("by-hand", ""), ref("of-old", "old"),
        ref("of-root", "anchor", ""), ref("of-other-root", "gone", ""),
        ref("elsewhere", "gone", "m"), ref("of-elsewhere", "elsewhere", "m"),
    )  # fmt: skip
    report = await _left(api, before=before)
    assert [each.uid for each in report.left] == ["of-root", "held"]
    assert [each.uid for each in report.strays] == [
        "of-other-root", "elsewhere", "of-elsewhere", "by-hand", "of-old", "old"
    ]  # fmt: skip
    assert (await _left(api, before=before, own=())).left == ()


async def test_gone_namespace_is_verified() -> None:
    assert (await _left(Api(PODS), namespace_uid="own", before=None)).unverified == ()
    hidden = await _left(Api(PODS, status=403), namespace_uid="own", before=None)
    assert hidden.unverified == ("namespace n (/api/v1/namespaces/n (403))",)
    # Its UID was never known, so only its label identifies it.
    unnamed = await _left(Api("namespaces (not allowed)"), before=None)
    assert unnamed.unverified == ("namespaces (not allowed)",)
    # Objects that a release creates outside its namespace are not deleted with it.
    roles = "clusterroles.rbac.authorization.k8s.io"
    outside = await _left(Api(f"{roles} (500)"), namespace_uid="own", before=None, types=(roles,))
    assert outside.unverified == (f"{roles} (500)",)


@pytest.mark.parametrize("how", [{}, {"namespace_uid": "own", "before": None}])
async def test_failed_server_reports_no_volumes_or_namespaces(how: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="500"):
        await _left(Api(status=500), **how)


async def test_failed_check_is_repeated_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Refused("etcdserver: leader changed", status=500, reason="")
    denied = Refused("not allowed", status=403, reason="Forbidden")
    unlisted = LeakReport(left=(), not_checked=(PODS,), unverified=(PODS,), failed=(PODS,))
    looks: list[Exception | LeakReport] = []

    async def look(*_: object) -> LeakReport:
        found = looks.pop(0) if looks else LeakReport(left=(), not_checked=())
        if isinstance(found, Exception):
            raise found
        return found

    async def gone(*first: Exception | LeakReport, timeout_s: float) -> LeakReport:
        looks[:] = first
        wanted = StackObjects(stack="s", namespace="n")
        return await wait_until_gone(Api().typed, wanted, timeout_s=timeout_s)

    monkeypatch.setattr(leaks, "_check_once", look)
    monkeypatch.setattr(leaks, "POLL_S", 0.0)
    assert (await gone(failed, Unreachable("no response"), unlisted, timeout_s=60.0)).is_clean
    assert await gone(unlisted, timeout_s=0.0) == unlisted
    for error, timeout_s in ((failed, 0.0), (denied, 60.0)):
        with pytest.raises(Refused, match=str(error)):
            await gone(error, timeout_s=timeout_s)


async def test_lost_rights_are_named_with_a_remedy() -> None:
    record = RunRecord(
        stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False,
        namespace="n", before=EMPTY, expires="2026-01-01 12:15 UTC", types=("leases.x",),
    )  # fmt: skip
    api = Api(PODS, allowed=False)
    error = await unverified(record, await _left(api), api.typed)
    assert isinstance(error, Unverified)
    assert str(error).splitlines() == [
        "stack s: it could not be removed: the right to delete configmaps, deployments.apps, "
        "poddisruptionbudgets.policy, rolebindings.rbac.authorization.k8s.io and 5 more is missing "
        "in namespace n",
        "  it is unknown whether anything is left: pods could not be listed",
        "  the right to list configmaps, deployments.apps, pods, poddisruptionbudgets.policy and 6 "
        "more is missing in namespace n",
        "  when the rights are restored: aiperf-svc gc s; it removes itself at "
        "2026-01-01 12:15 UTC",
    ]
    failed = LeakReport(left=(), not_checked=(PODS,), unverified=(PODS,), failed=(PODS,))
    assert str(await unverified(record, failed, Api().typed)).splitlines() == [
        "stack s: it is unknown whether anything is left: pods could not be listed",
        "  when the API server lists them: aiperf-svc gc s; it removes itself at "
        "2026-01-01 12:15 UTC",
    ]


async def test_hidden_namespace_is_not_an_undeleted_one() -> None:
    class MayNotRead(Api):
        async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            return {"status": {"allowed": body["spec"]["resourceAttributes"]["verb"] != "get"}}

    record = RunRecord(
        stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False,
        namespace="n", namespace_uid="own",
    )  # fmt: skip
    api = MayNotRead(status=403)
    report = await _left(api, namespace_uid="own", before=None)
    assert str(await unverified(record, report, api.typed)).splitlines() == [
        "stack s: it is unknown whether anything is left: namespace n could not be listed",
        "  the right to get namespaces n is missing in namespace n",
        "  when the rights are restored: aiperf-svc gc s",
    ]


Json = dict[str, Any]
LABELS = {"aiperf.dev/stack": "s", "aiperf.dev/run": "r"}


def an_object(name: str, uid: str, *, namespace: str = "", owner: str = "") -> Json:
    metadata: Json = {"name": name, "uid": uid, "labels": LABELS, "namespace": namespace}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    if owner:
        metadata["ownerReferences"] = [{"uid": owner}]
    return {"metadata": metadata}


class Deleting:
    """A cluster with these objects by the path of their list. Records deletions."""

    def __init__(self, **lists: list[Json]) -> None:
        self._lists = lists
        self.deleted: list[str] = []

    async def get(self, path: str, **_: Any) -> Json:
        return {"items": self._lists.get(path.rpartition("/")[2], []), "metadata": {}}

    async def delete(self, path: str, *, uid: str) -> None:
        self.deleted.append(uid)


@pytest.mark.parametrize(
    ("own", "expected"),
    [(("ours",), ["ours", "worker", "deadline"]), (("gone",), []), ((), [])],
    ids=["ours", "made again by somebody else", "nothing known"],
)
async def test_an_own_namespace_goes_before_its_deployments(
    own: tuple[str, ...], expected: list[str]
) -> None:
    cluster = Deleting(
        namespaces=[an_object("aiperf-s", "ours")],
        deployments=[
            an_object("worker-s", "worker", namespace="aiperf-s"),
            an_object("deadline-s", "deadline", namespace="aiperf-s"),
            an_object("elsewhere", "the owner's", namespace="team"),
        ],
    )
    await remove_roots(cast(Cluster, cluster), StackObjects(stack="s", own=own))
    assert cluster.deleted == expected


async def test_existing_namespace_loses_only_the_anchors_objects() -> None:
    cluster = Deleting(
        configmaps=[
            an_object("anchor-s", "anchor", namespace="team"),
            an_object("anchor-s", "other", namespace="elsewhere"),
            an_object("config-s", "config", namespace="team", owner="anchor"),
        ],
        deployments=[
            an_object("worker-s", "worker", namespace="team", owner="anchor"),
            an_object("of-the-owner", "the owner's", namespace="team"),
            an_object("worker-s", "another", namespace="elsewhere", owner="other"),
        ],
    )
    wanted = StackObjects(stack="s", namespace="team", own=("anchor",))
    await remove_roots(cast(Cluster, cluster), wanted)
    assert cluster.deleted == ["anchor", "worker"]


SILENT = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T12:00:00Z",
          "message": "Kubelet stopped posting node status."}  # fmt: skip


def going(
    kind: str, name: str, *finalizers: str, namespace: str = "n", detail: str = ""
) -> ObjectRef:
    return ObjectRef(
        kind=kind, namespace=namespace, name=name, uid=name, path="", is_going=True,
        finalizers=finalizers, detail=detail,
    )  # fmt: skip


def pod(node: str) -> dict[str, Any]:
    return {"spec": {"nodeName": node} if node else {}}


def node(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"status": {"conditions": conditions}}


SPACE = going(
    "Namespace", "n", namespace="", detail="NamespaceContentRemaining: pods has 3 instances"
)
THREE_PODS = tuple(going("Pod", name) for name in "abc")


def test_wait_names_a_silent_node_and_its_time() -> None:
    found = wait_reason(
        (SPACE, *THREE_PODS),
        [pod("one"), pod("two"), pod("two")],
        {"one": node({"type": "Ready", "status": "True"}), "two": node(SILENT)},
    )
    assert found == (
        "1 pod on node one; 2 pods on node two, which is not ready since 2026-01-01T12:00:00Z "
        "(Kubelet stopped posting node status.); 1 other object"
    )


def test_wait_on_gone_and_hidden_nodes() -> None:
    pods = [pod("gone"), pod("hidden"), pod("")]
    assert wait_reason(THREE_PODS, pods, {"gone": {}}) == (
        "1 pod on no node; 1 pod on node gone, which is gone; 1 pod on node hidden"
    )


def test_wait_names_a_finalizer_and_its_object() -> None:
    held = going("ConfigMap", "held", "example.com/hold")
    assert wait_reason((SPACE, held), [], {}) == (
        "ConfigMap n/held, until the owner of the finalizer example.com/hold removes it; 1 other "
        "object"
    )


def test_other_blocking_conditions_are_shown_unchanged() -> None:
    assert wait_reason((SPACE,), [], {}) == (
        "Namespace n (being deleted; NamespaceContentRemaining: pods has 3 instances)"
    )


def named_ref(kind: str, name: str) -> ObjectRef:
    return ObjectRef(kind=kind, namespace="theirs", name=name, uid=name, path=f"/{name}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("StatefulSet", "rank-bench"),
        ("StatefulSet", "rank-3-bench"),
        ("PersistentVolumeClaim", "volume-bench"),
        ("PersistentVolumeClaim", "volume-rank-bench-0"),
        ("PersistentVolumeClaim", "volume-rank-3-bench-0"),
    ],
)
def test_names_of_rank_objects_are_ours(kind: str, name: str) -> None:
    assert has_name_of_stack(named_ref(kind, name), "bench")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("PersistentVolumeClaim", "volume-rank-bench-of-theirs"),
        ("PersistentVolumeClaim", "data-bench-0"),
        ("StatefulSet", "rank-x-bench"),
    ],
)
def test_other_names_are_the_owners(kind: str, name: str) -> None:
    assert not has_name_of_stack(named_ref(kind, name), "bench")


def volume(**claim: str) -> dict[str, Any]:
    return {"claimRef": claim, "persistentVolumeReclaimPolicy": "Delete"}


def is_left(spec: dict[str, Any]) -> bool:
    return is_own_volume(spec, stack="bench", namespace="ns", left={"uid-of-claim"})


def test_claim_makes_a_volume_ours() -> None:
    assert is_left(volume(namespace="ns", name="volume-rank-bench-0"))
    assert is_left(volume(uid="uid-of-claim", namespace="ns", name="x"))
    assert not is_left(volume(namespace="elsewhere", name="volume-rank-bench-0"))
    assert not is_left(volume(namespace="ns", name="data-of-theirs"))


def test_retained_volume_is_not_a_leftover() -> None:
    spec = volume(namespace="ns", name="volume-rank-bench-0")
    assert not is_left(spec | {"persistentVolumeReclaimPolicy": "Retain"})


async def test_custom_resources_are_deleted_before_the_namespace() -> None:
    cluster = Graphs(
        namespaces=[an_object("aiperf-s", "ours")],
        graphs=[an_object("graph", "graph", namespace="aiperf-s")],
    )
    wanted = StackObjects(stack="s", own=("ours",), types=("graphs.example.com", "pods"))
    await remove_roots(cast(Cluster, cluster), wanted)
    assert cluster.deleted == ["graph", "ours"]


class Graphs(Deleting):
    """A cluster with a custom resource type whose operator removes each finalizer immediately."""

    async def get(self, path: str, **params: str) -> Any:
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            version = {"version": "v1", "groupVersion": "example.com/v1"}
            return {"groups": [{"name": "example.com", "versions": [version]}]}
        if path == "/api/v1":
            return {"resources": []}
        if path == "/apis/example.com/v1":
            verbs = ["list", "delete"]
            return {
                "resources": [
                    {"name": "graphs", "kind": "Graph", "namespaced": True, "verbs": verbs}
                ]
            }
        if path.endswith("/graphs/graph"):
            raise Refused("gone", status=404, reason="NotFound")
        return await super().get(path, **params)
