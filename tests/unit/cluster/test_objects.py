"""Which objects belong to a stack, and which of them must be deleted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.cluster.api.objects import ObjectRef, ResourceType, object_ref
from aiperf_svc.adapters.cluster.teardown.inventory import (
    OWNER_NAMES,
    Inventory,
    compare,
    created_by_runs,
    deleted_with,
    has_name_of_stack,
    new_cluster_scoped,
    roots_of,
)
from aiperf_svc.adapters.cluster.teardown.leaks import active_conditions
from aiperf_svc.adapters.cluster.teardown.removal import group_stacks, to_delete
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL, TTL_ANNOTATION

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
GOLDEN = Path(__file__).parents[2] / "infra" / "golden"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loads YAML many times as fast if PyYAML has the C library."""


def ref(name: str, *, kind: str = "ConfigMap", namespace: str = "theirs", **more: Any) -> ObjectRef:
    return ObjectRef(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=more.pop("uid", f"{kind}/{namespace}/{name}"),
        path=f"/{kind}/{name}",
        created=CREATED.isoformat(),
        **more,
    )


def of(stack: str, **more: str) -> dict[str, str]:
    """Return the labels of objects that a run of the stack creates."""
    return {STACK_LABEL: stack, RUN_LABEL: "r", **more}


def _compare(before: list[ObjectRef], after: list[ObjectRef]) -> tuple[list[str], ...]:
    found = compare(
        Inventory(namespace="theirs", objects=tuple(before), not_listed=()),
        Inventory(namespace="theirs", objects=tuple(after), not_listed=()),
        stack="bench",
    )
    return tuple([each.name for each in some] for some in (found.ours, found.missing))


def test_equal_object_lists_have_no_difference() -> None:
    same = [ref("a"), ref("old", labels=of("bench"))]
    assert _compare(same, same) == ([], [])


def test_label_name_or_owner_make_objects_ours() -> None:
    after = [
        ref("labelled", labels=of("bench")),
        ref("worker-bench"),
        ref("worker-bench-x2f"),
        ref("child", owners=("grandchild",), uid="c"),
        ref("grandchild", owners=("ConfigMap/theirs/labelled",), uid="grandchild"),
        ref("benchmark-of-the-owner"),
    ]
    ours, _ = _compare([], after)
    assert ours == ["labelled", "worker-bench", "worker-bench-x2f", "child", "grandchild"]


@pytest.mark.parametrize("name", ["web-bench-7f-x", "web-bench", "worker-benchmark-1"])
def test_owners_object_named_like_the_stack_stays(name: str) -> None:
    assert _compare([], [ref(name)]) == ([], [])


def test_dependents_of_owners_objects_stay() -> None:
    deployment = ref("worker-bench", kind="Deployment", uid="theirs")
    pods = ref("worker-bench-7f", kind="ReplicaSet", owners=("theirs",))
    assert _compare([deployment], [deployment, pods]) == ([], [])


Manifests = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    """Return all manifests with the names of their stacks."""
    return [
        (path.stem, manifest)
        for path in GOLDEN.glob("*.yaml")
        for manifest in yaml.load_all(path.read_text(), LOADER)
        # Objects of a release have their own names.
        if manifest["metadata"]["labels"].get("app.kubernetes.io/name") == "aiperf-svc"
    ]


def test_names_of_controllers_objects_are_known(manifests: Manifests) -> None:
    found = {
        manifest["metadata"]["name"].removesuffix(f"-{stack}")
        for stack, manifest in manifests
        if manifest["kind"] in ("Deployment", "Service", "Ingress")
    }
    assert found
    others = found - set(OWNER_NAMES)
    assert all(has_name_of_stack(ref(f"{each}-bench", kind="Service"), "bench") for each in others)


def test_roots_distinguish_stacks_of_one_name() -> None:
    labels = of("bench")
    objects = (
        ref("aiperf-bench-1", kind="Namespace", namespace="", uid="space", labels=labels),
        ref("anchor-bench", namespace="aiperf-bench-1", labels=labels),
        ref("worker-bench", kind="Deployment", namespace="aiperf-bench-1", labels=labels),
        ref("anchor-bench", uid="anchor", labels=labels),
        ref("worker-bench", kind="Deployment", uid="d", owners=("anchor",), labels=labels),
        ref("worker-bench-7f", kind="Pod", uid="p", owners=("d",), labels=labels),
        ref("preflight-bench", kind="Pod", uid="alone", labels=labels),
    )
    space, anchor = roots_of(objects, "bench")
    assert (space.uid, anchor.uid) == ("space", "anchor")
    assert deleted_with((anchor,), objects) == {"anchor", "d", "p"}
    inside = {each.uid for each in objects if each.namespace == "aiperf-bench-1"}
    assert deleted_with((space,), objects) == {"space", *inside}


def test_label_alone_does_not_make_an_object_ours() -> None:
    by_hand, labels = {STACK_LABEL: "bench"}, of("bench")
    old = ref("worker-bench", kind="Deployment", uid="old", labels=labels)
    before = Inventory(namespace="theirs", objects=(old,), not_listed=())
    owned = ref("pod", kind="Pod", uid="owned", owners=("old",), labels=labels)
    theirs = (
        old,
        ref("settings", uid="1", labels=by_hand),
        ref("their-space", kind="Namespace", namespace="", uid="2", labels=by_hand),
        ref("inside", namespace="their-space", uid="3", labels=by_hand),
    )
    ours = (
        ref("anchor-bench", uid="anchor", labels=labels),
        ref("keys-bench", kind="Secret", uid="s", owners=("anchor",), labels=by_hand),
    )
    objects = (*theirs, *ours)
    assert [each.uid for each in roots_of(objects, "bench")] == ["anchor"]
    for own in (None, ("anchor",), ("anchor", "old")):
        assert created_by_runs(objects, own=own, before=before) == {"anchor", "s"}
    assert created_by_runs(objects, own=()) == frozenset()
    # Without knowledge of earlier objects, only the run label identifies them.
    assert created_by_runs((*objects, owned), own=None) == {"anchor", "s", "old", "owned"}


def test_fixed_names_of_a_stack_are_known(manifests: Manifests) -> None:
    for stack, manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        expected = kind not in ("Namespace", "ConfigMap", "PodDisruptionBudget")
        assert has_name_of_stack(ref(name, kind=kind), stack) is expected, (kind, name)
    for kind, name in (("Deployment", "web-bench"), ("Pod", "worker-bench"), ("Secret", "keys")):
        assert not has_name_of_stack(ref(name, kind=kind), "bench")


def test_name_prefix_does_not_match_another_stack() -> None:
    assert _compare([], [ref("worker-bench-100k", labels=of("bench-100k"))]) == ([], [])


def test_recreated_object_is_missing_and_new() -> None:
    assert _compare([ref("a", uid="1")], [ref("a", uid="2")]) == ([], ["a"])


def test_objects_of_another_ended_stack_are_ignored() -> None:
    theirs = ref("worker-bench-2", uid="set", labels=of("bench-2"))
    before = [theirs, ref("worker-bench-2-x", kind="Pod", owners=("set",)), ref("mine")]
    assert _compare(before, []) == ([], ["mine"])


def test_dependents_are_not_deleted_separately() -> None:
    objects = [
        ref("own", kind="Namespace", namespace="", uid="ns"),
        ref("inside", namespace="own"),
        ref("anchor", uid="anchor"),
        ref("owned", owners=("anchor",)),
        ref("of-somebody", owners=("somebody",)),
        ref("going", is_going=True),
        ref("role", kind="ClusterRole", namespace=""),
    ]
    chosen = [each.name for each in to_delete(objects, namespace=None)]
    assert chosen == ["own", "anchor", "of-somebody", "role"]
    assert [each.name for each in to_delete(objects, namespace="own")] == ["own"]


def test_objects_are_grouped_by_stack_with_expiry() -> None:
    ttl = {TTL_ANNOTATION: "600"}
    objects = [
        ref("aiperf-a", kind="Namespace", namespace="", labels=of("a"), annotations=ttl),
        ref("x", namespace="aiperf-a", labels=of("a")),
        ref("y", labels=of("b")),
    ]
    end = CREATED + timedelta(seconds=600)
    a, b = group_stacks(objects, now=end + timedelta(seconds=1))
    assert (a.stack, a.namespaces, a.objects) == ("a", ("aiperf-a",), 2)
    assert (a.expires, a.is_overdue) == (end, True)
    assert (b.stack, b.namespaces, b.expires, b.is_overdue) == ("b", ("theirs",), None, False)
    assert not group_stacks(objects, now=end)[0].is_overdue


def test_only_roots_past_their_deadline_are_overdue() -> None:
    labels, space = of("a"), {"kind": "Namespace", "namespace": ""}
    objects = [
        ref("old", **space, uid="old", labels=labels, annotations={TTL_ANNOTATION: "60"}),
        ref("new", **space, uid="new", labels=labels, annotations={TTL_ANNOTATION: "600"}),
    ]
    probe = ref(
        "preflight-a", kind="Pod", uid="p", labels=labels, annotations={TTL_ANNOTATION: "9"}
    )
    now = CREATED + timedelta(seconds=90)
    (both,) = group_stacks([*objects, probe], now=now)
    assert (both.is_overdue, both.overdue) == (True, ("old",))
    (live,) = group_stacks([objects[1], probe], now=now)
    assert (live.is_overdue, live.overdue) == (False, ())
    (alone,) = group_stacks([probe], now=now)
    assert (alone.is_overdue, alone.overdue) == (True, ("p",))


def test_object_text_has_its_finalizers() -> None:
    kind = ResourceType("apps", "v1", "deployments", "Deployment", True)
    metadata = {
        "name": "d", "namespace": "s", "uid": "u", "deletionTimestamp": "x", "finalizers": ["a/b"],
    }  # fmt: skip
    found = object_ref(kind, metadata)
    assert found.path == "/apis/apps/v1/namespaces/s/deployments/d"
    assert str(found) == "Deployment s/d (being deleted; finalizers a/b)"


def test_stuck_namespace_shows_its_active_conditions() -> None:
    conditions = [
        {"type": "NamespaceFinalizersRemaining", "status": "True", "message": "a/b in 1"},
        {"type": "NamespaceDeletionDiscoveryFailure", "status": "False", "message": "fine"},
    ]
    assert active_conditions({"status": {"conditions": conditions}}) == (
        "NamespaceFinalizersRemaining: a/b in 1"
    )
    assert active_conditions({}) == ""


def test_new_objects_outside_belong_to_the_named_namespace() -> None:
    old = ref("admin", kind="ClusterRole", namespace="", uid="1")
    ours = ref("aiperf-bench-1a-graph", kind="ClusterRole", namespace="", uid="2")
    other = ref("pvc-1", kind="PersistentVolume", namespace="", uid="3")
    before = Inventory(namespace="", objects=(old,), not_listed=())
    after = Inventory(namespace="", objects=(old, ours, other), not_listed=())
    assert new_cluster_scoped(before, after, "aiperf-bench-1a") == ((ours,), (other,))
