"""Times of replicas and decisions about them, derived from watch messages."""

from collections.abc import Mapping
from typing import Any

import pytest

from aiperf_svc.core.scaling.replica_log import ADAPTER, GRAPH_LABELS, FollowReplica, ReplicaLog
from aiperf_svc.core.scaling.report import DesiredChange

Json = dict[str, Any]
LABELS = {"app": "llm"}
PORT = 8000


def pod(*conditions: str, name: str = "llm-1", is_running: bool = False, **status: Any) -> Json:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": LABELS},
        "spec": {
            "nodeName": "n1" if "PodScheduled" in conditions else None,
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
        },
        "status": {
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "containerStatuses": [state("c", is_running=is_running)],
            **status,
        },
    }


def state(container: str, *, is_running: bool) -> Json:
    return {"name": container, "state": {"running": {}} if is_running else {"waiting": {}}}


def deployment(replicas: int, name: str = "llm", labels: Mapping[str, str] = LABELS) -> Json:
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "template": {"metadata": {"labels": {**labels, "a": "b"}}}},
    }


def autoscaler(desired: int, of: str = "llm", kind: str = "Deployment") -> Json:
    return {
        "metadata": {"name": "hpa"},
        "spec": {"scaleTargetRef": {"kind": kind, "name": of}},
        "status": {"desiredReplicas": desired},
    }


def event(reason: str, message: str, **about: str) -> Json:
    return {"reason": reason, "message": message, "involvedObject": about}


def test_moment_is_the_first_messages_time() -> None:
    log = ReplicaLog(LABELS, PORT)
    scheduled = "PodScheduled"
    steps = [
        pod(),
        pod(scheduled),
        pod(scheduled, is_running=True),
        pod(scheduled, is_running=True),
        pod(scheduled, "Ready", is_running=True),
        pod(scheduled, is_running=True),
        pod(scheduled, "Ready", is_running=True),
    ]
    instructions = []
    for second, each in enumerate(steps, start=1):
        instructions += log.handle("Pod", "MODIFIED", each, now_wall_ns=second)
    assert instructions == [FollowReplica("uid-llm-1", "llm-1", "c")]
    (replica,) = log.report().replicas
    assert replica.wall_ns == {"created": 1, "scheduled": 2, "running": 3, "ready": 5}
    assert (replica.node, replica.gpus, replica.was_there) == ("n1", 4, False)


def test_initial_ready_replica_is_not_followed() -> None:
    log = ReplicaLog(LABELS, PORT)
    ready = pod("PodScheduled", "Ready", is_running=True)
    assert log.handle("Pod", "ADDED", ready, now_wall_ns=1, is_first=True) == []
    assert log.report().replicas[0].was_there


def test_event_of_the_kubelet_shows_the_pulled_image() -> None:
    log = ReplicaLog(LABELS, PORT)
    log.handle("Pod", "ADDED", pod(), now_wall_ns=1)
    text = 'Successfully pulled image "llm:1" in 41s (41s including waiting). Image size: 9 bytes.'
    where = {"kind": "Pod", "uid": "uid-llm-1"}
    pulls = [
        event("Pulled", "image of its init container", **where, fieldPath="spec.initContainers{c}"),
        event("Pulled", "image of its sidecar", **where, fieldPath="spec.containers{sidecar}"),
        event("Pulled", text, **where, fieldPath="spec.containers{c}"),
        event("Pulled", "again", uid="other", fieldPath="spec.containers{c}"),
    ]
    for second, pulled in enumerate(pulls, start=5):
        log.handle("Event", "ADDED", pulled, now_wall_ns=second)
    (replica,) = log.report().replicas
    assert (replica.wall_ns["pulled"], replica.image) == (7, text)


@pytest.mark.parametrize(("port", "server"), [(PORT, "b"), (9999, "a")])
def test_container_with_the_port_is_the_server(port: int, server: str) -> None:
    log, seen = ReplicaLog(LABELS, port), list[FollowReplica]()
    for second, running in enumerate(("", "a", "ab"), start=1):
        found = pod()
        found["spec"]["containers"] = [
            {"name": "a"},
            {"name": "b", "ports": [{"containerPort": PORT}]},
        ]
        found["status"]["containerStatuses"] = [
            state(each, is_running=each in running) for each in "ab"
        ]
        seen += log.handle("Pod", "MODIFIED", found, now_wall_ns=second)
    assert seen == [FollowReplica("uid-llm-1", "llm-1", server)]
    assert log.report().replicas[0].wall_ns["running"] == {"a": 2, "b": 3}[server]


def test_deleted_replica_has_its_end() -> None:
    log = ReplicaLog(LABELS, PORT)
    log.handle("Pod", "ADDED", pod(), now_wall_ns=1)
    going = pod()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    log.handle("Pod", "MODIFIED", going, now_wall_ns=5)
    log.handle("Pod", "DELETED", pod(), now_wall_ns=9)
    assert log.report().replicas[0].gone_wall_ns == 5
    assert log.is_gone("uid-llm-1")


def test_decisions_of_workload_and_autoscaler_are_noted() -> None:
    log = ReplicaLog(LABELS, PORT)
    log.handle("Deployment", "ADDED", deployment(1), now_wall_ns=1, is_first=True)
    log.handle("HorizontalPodAutoscaler", "ADDED", autoscaler(1), now_wall_ns=1, is_first=True)
    log.handle("Deployment", "MODIFIED", deployment(3), now_wall_ns=4)
    log.handle("Deployment", "MODIFIED", deployment(3), now_wall_ns=5)
    why = "New size: 3; reason: cpu resource utilization (percentage of request) above target"
    rescaled = event("SuccessfulRescale", why, kind="HorizontalPodAutoscaler", name="hpa")
    log.handle("Event", "ADDED", rescaled, now_wall_ns=6)
    log.handle("HorizontalPodAutoscaler", "MODIFIED", autoscaler(3), now_wall_ns=7)
    reason = "cpu resource utilization (percentage of request) above target"
    assert log.report().changes == (
        DesiredChange(at_wall_ns=4, source="Deployment llm", before=1, after=3, reason=reason),
        DesiredChange(at_wall_ns=7, source="HorizontalPodAutoscaler hpa", before=1, after=3),
    )


def test_objects_of_other_servers_are_left_out() -> None:
    log = ReplicaLog(LABELS, PORT)
    other = deployment(1, "other", {"app": "other"})
    log.handle("Deployment", "ADDED", other, now_wall_ns=1, is_first=True)
    log.handle("Deployment", "MODIFIED", {**other, "spec": {**other["spec"], "replicas": 2}},
               now_wall_ns=2)  # fmt: skip
    for number in (1, 2):
        log.handle("HorizontalPodAutoscaler", "MODIFIED", autoscaler(number, "other"),
                   now_wall_ns=3)  # fmt: skip
    assert log.report().changes == ()


def test_autoscaler_of_unknown_kind_counts() -> None:
    log = ReplicaLog(LABELS, PORT)
    for number in (1, 2):
        found = autoscaler(number, "graph", "DynamoGraphDeploymentScalingAdapter")
        log.handle("HorizontalPodAutoscaler", "MODIFIED", found, now_wall_ns=number)
    assert [change.after for change in log.report().changes] == [2]


def adapter(replicas: int, component: str, graph: str = "graph") -> Json:
    reference = {"name": graph, "serviceName": component}
    return {
        "metadata": {"name": f"{graph}-{component}"},
        "spec": {"replicas": replicas, "dgdRef": reference},
    }


@pytest.mark.parametrize("has_pod", [True, False])
def test_adapter_of_another_component_is_left_out(has_pod: bool) -> None:
    labels = dict(zip(GRAPH_LABELS, ("graph", "decode"), strict=True))
    log = ReplicaLog({} if has_pod else labels, PORT)
    if has_pod:
        replica = pod()
        replica["metadata"]["labels"] = labels
        log.handle("Pod", "ADDED", replica, now_wall_ns=1, is_first=True)
    for number in (1, 2):
        for found in (
            adapter(number, "decode"), adapter(number, "prefill"), adapter(number, "decode", "b")
        ):  # fmt: skip
            log.handle(ADAPTER, "MODIFIED", found, now_wall_ns=number, is_first=number == 1)
        for name in ("graph-decode", "graph-prefill"):
            scaler = autoscaler(number, name, ADAPTER)
            scaler["metadata"]["name"] = f"hpa-{name}"
            log.handle("HorizontalPodAutoscaler", "MODIFIED", scaler, now_wall_ns=number)
    assert [change.source for change in log.report().changes] == [
        f"{ADAPTER} graph-decode",
        "HorizontalPodAutoscaler hpa-graph-decode",
    ]


def test_moments_from_log_and_page_are_kept_once() -> None:
    log = ReplicaLog(LABELS, PORT)
    log.handle("Pod", "ADDED", pod(), now_wall_ns=1)
    for second in (4, 6):
        log.note("uid-llm-1", "first_token", second)
    assert log.report().replicas[0].wall_ns["first_token"] == 4


def test_active_trigger_explains_a_start_from_zero() -> None:
    log = ReplicaLog(LABELS, PORT)
    log.handle("Deployment", "ADDED", deployment(0), now_wall_ns=1, is_first=True)
    scaled = {
        "metadata": {"name": "so"},
        "spec": {"scaleTargetRef": {"name": "llm"}},
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }
    log.handle("ScaledObject", "MODIFIED", scaled, now_wall_ns=2)
    log.handle("Deployment", "MODIFIED", deployment(1), now_wall_ns=3)
    log.handle("Deployment", "MODIFIED", deployment(2), now_wall_ns=4)
    assert [each.reason for each in log.report().changes] == ["ScaledObject so is active", ""]
