"""Which changes of a stack's objects count as a loss for its run."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.watching.run_losses import FINISHED_LISTS, Loss, RunLosses

Json = dict[str, Any]
CREATED, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def a_root(uid: str = "u", **metadata: Any) -> Json:
    return {"metadata": {"uid": uid, "creationTimestamp": CREATED, **metadata}}


def a_pod(
    component: str = "timing-manager",
    *,
    uid: str = "u",
    restarts: int = 0,
    last: Json | None = None,
    state: Json | None = None,
    metadata: Json | None = None,
    **status: Any,
) -> Json:
    container = {"name": "main", "restartCount": restarts, "state": state or {"running": {}}}
    container["lastState"] = {"terminated": last} if last else {}
    labels = {"app.kubernetes.io/component": component}
    return {
        "metadata": {"name": f"{component}-s-1", "uid": uid, "labels": labels, **(metadata or {})},
        "status": {"phase": "Running", "containerStatuses": [container], **status},
    }


GOING = {"deletionTimestamp": LATER}
KILLED = {"reason": "OOMKilled", "exitCode": 137}


def condition(reason: str) -> list[Json]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "Namespace n was deleted during the run"),
        (a_root(**GOING), "Namespace n was deleted during the run"),
        (a_root("recreated"), "Namespace n was deleted during the run"),
        (
            a_root(**GOING, annotations={"aiperf.dev/ttl-seconds": "3600"}),
            "deployment.ttl has expired: the stack deleted its Namespace n",
        ),
        (
            a_root(**GOING, annotations={"aiperf.dev/ttl-seconds": "3601"}),
            "Namespace n was deleted during the run",
        ),
    ],
    ids=["gone", "being deleted", "recreated", "expired", "not expired"],
)
def test_lost_root_object_is_reported_once(found: Json | None, message: str) -> None:
    losses = RunLosses()
    assert losses.handle_root("Namespace", "n", a_root()) is None
    assert losses.handle_root("Namespace", "n", found) == Loss("", message)
    assert losses.handle_root("Namespace", "n", found) is None


def test_missing_namespace_is_lost_at_once() -> None:
    assert RunLosses().handle_root("Namespace", "n", None) is not None


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (a_pod(metadata=GOING), "was deleted"),
        (a_pod(metadata=GOING, state={"terminated": {"exitCode": 0}}), "was deleted"),
        (
            a_pod(metadata=GOING, conditions=condition("EvictionByEvictionAPI")),
            "was evicted, as by a drain of its node",
        ),
        (a_pod(conditions=condition("Unknown")), "was disrupted: Unknown"),
        (
            a_pod(phase="Failed", reason="Evicted", message="The node was low on  memory."),
            "was evicted: The node was low on memory.",
        ),
        (
            a_pod(restarts=1, last=KILLED),
            "was killed: out of memory (OOMKilled); raise its memory (deployment.pods)",
        ),
        (
            a_pod(state={"terminated": {"reason": "Error", "exitCode": 1}}),
            "ended: Error, exit code 1",
        ),
    ],
    ids=["deleted", "ending", "drained", "another", "evicted", "out of memory", "crashed"],
)
def test_lost_pod_is_named_with_the_cause_once(pod: Json, message: str) -> None:
    losses = RunLosses()
    assert losses.handle_pods([a_pod()]) == ()
    expected = Loss("timing-manager", f"pod timing-manager-s-1 {message}")
    assert losses.handle_pods([pod]) == (expected,)
    assert losses.handle_pods([pod]) == ()


def test_one_stale_list_loses_no_pod() -> None:
    losses = RunLosses()
    pods = [a_pod(), a_pod("records-manager", uid="r")]
    for listed in (pods, pods[:1], pods, pods[:1]):
        assert losses.handle_pods(listed) == ()
    (loss,) = losses.handle_pods(pods[:1])
    assert loss == Loss("records-manager", "pod records-manager-s-1 was deleted")
    assert losses.handle_pods(pods[:1]) == ()


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(state={"terminated": {"reason": "Completed", "exitCode": 0}}),
        a_pod(restarts=1, last={"reason": "Completed", "exitCode": 0}),
    ],
    ids=["finished", "started again"],
)
def test_finished_pod_is_lost_after_some_lists(pod: Json) -> None:
    losses = RunLosses()
    for listed in (a_pod(), *[pod] * (FINISHED_LISTS - 1)):
        assert losses.handle_pods([listed]) == ()
    (loss,) = losses.handle_pods([pod])
    assert loss.line == "pod timing-manager-s-1 ended with exit code 0"
    assert losses.handle_pods([pod]) == ()


def test_earlier_restarts_and_new_pods_are_no_losses() -> None:
    losses = RunLosses()
    early = a_pod(restarts=1, last=KILLED)
    assert losses.handle_pods([early]) == ()
    assert losses.handle_pods([early, a_pod(uid="another", metadata=GOING)]) == ()
