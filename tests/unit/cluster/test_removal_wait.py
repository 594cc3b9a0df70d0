"""Who waits for a removal reads what it waits for, and whose turn it is."""

from typing import Any

from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.waiting import wait_in_words

SILENT = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T12:00:00Z",
          "message": "Kubelet stopped posting node status."}  # fmt: skip


def ref(
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


SPACE = ref(
    "Namespace", "n", namespace="", detail="NamespaceContentRemaining: pods has 3 instances"
)
PODS = tuple(ref("Pod", name) for name in "abc")


def test_pods_on_a_silent_node_are_told_with_the_node_and_since_when() -> None:
    found = wait_in_words(
        (SPACE, *PODS),
        [pod("one"), pod("two"), pod("two")],
        {"one": node({"type": "Ready", "status": "True"}), "two": node(SILENT)},
    )
    assert found == (
        "1 pod on node one; 2 pods on node two, which is not ready since 2026-01-01T12:00:00Z "
        "(Kubelet stopped posting node status.); 1 other object"
    )


def test_a_node_that_is_gone_or_may_not_be_read() -> None:
    pods = [pod("gone"), pod("hidden"), pod("")]
    assert wait_in_words(PODS, pods, {"gone": {}}) == (
        "1 pod on no node; 1 pod on node gone, which is gone; 1 pod on node hidden"
    )


def test_a_finalizer_is_told_with_the_object_that_it_holds() -> None:
    held = ref("ConfigMap", "held", "example.com/hold")
    assert wait_in_words((SPACE, held), [], {}) == (
        "ConfigMap n/held, until the owner of the finalizer example.com/hold removes it; 1 other "
        "object"
    )


def test_anything_else_is_told_as_it_is() -> None:
    assert wait_in_words((SPACE,), [], {}) == (
        "Namespace n (being deleted; NamespaceContentRemaining: pods has 3 instances)"
    )
