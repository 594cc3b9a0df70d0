"""What keeps ranks from starting is named with its reason and its remedy."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.watching.startup_failure import (
    CLAIM_S,
    CONFIG_S,
    CRASHES,
    StartupFailureDetector,
    set_problem,
)

CLAIM = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": message}
    volumes = [{"name": "tmp"}, {"name": "v", "persistentVolumeClaim": {"claimName": "v-rank-s-0"}}]
    return {
        "metadata": {"name": "rank-s-0"},
        "spec": {"volumes": volumes},
        "status": {"conditions": [condition]},
    }


def waiting(container: str, reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"containerStatuses": [{"name": container, "image": "i:1", "state": state}]}
    return {"metadata": {"name": "rank-s-0"}, "status": status}


def said_after(pod: dict[str, Any], seconds: float) -> str | None:
    detector = StartupFailureDetector(unschedulable_s=60.0)
    detector.handle([pod], [], now_s=0.0)
    return detector.handle([pod], [], now_s=seconds)


def test_a_claim_without_a_volume_has_longer_than_a_pod_without_a_node() -> None:
    assert said_after(unscheduled(CLAIM), 60.0) is None
    said = said_after(unscheduled(CLAIM), CLAIM_S)
    assert said is not None
    assert said.startswith("pod rank-s-0 waits for its volume: ")
    assert "deployment.ranks.volume" in said


def test_a_pending_claim_is_named_with_its_last_event_when_pods_must_be_ready() -> None:
    detector = StartupFailureDetector(unschedulable_s=60.0, longest_s=30.0)
    events = [
        {"involvedObject": {"name": name}, "message": message}
        for name, message in (
            ("v-rank-s-0", "waiting for first consumer"),
            ("v-rank-s-0", 'storageclass.storage.k8s.io "gold" not found'),
            ("another", "no persistent volumes available"),
        )
    ]
    pods = [unscheduled(CLAIM)]
    assert detector.handle(pods, [], (), events, now_s=0.0) is None
    assert detector.handle(pods, [], (), events, now_s=29.0) is None
    said = detector.handle(pods, [], (), events, now_s=30.0) or ""
    assert said.startswith(
        'pod rank-s-0 waits for its volume: storageclass.storage.k8s.io "gold" not found; '
    )


def test_an_image_without_a_shell_names_what_a_rank_needs() -> None:
    message = 'exec: "sh": executable file not found in $PATH'
    detector = StartupFailureDetector(unschedulable_s=60.0)
    pod = waiting("rank", "RunContainerError", message)
    assert detector.handle([pod], [], now_s=0.0) is None
    said = detector.handle([pod], [], now_s=CONFIG_S) or ""
    assert message in said
    assert "needs a POSIX shell: change workload.image" in said
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": message}}
    crashed = {"name": "rank", "restartCount": CRASHES, "ready": False, "lastState": ended}
    pod = {"metadata": {"name": "rank-s-0"}, "status": {"containerStatuses": [crashed]}}
    said = detector.handle([pod], [], now_s=0.0) or ""
    assert message in said
    assert said.endswith("needs a POSIX shell: change workload.image")


def test_a_rank_that_affinity_keeps_from_every_node_names_the_key() -> None:
    said = said_after(unscheduled("1 node(s) didn't match pod anti-affinity rules"), 60.0)
    assert said is not None
    assert "deployment.ranks.nodes" in said


@pytest.mark.parametrize(
    ("container", "key"), [("rank", "workload.image"), ("courier", "deployment.image.name")]
)
def test_an_image_that_cannot_be_pulled_names_the_key_of_its_container(
    container: str, key: str
) -> None:
    said = said_after(waiting(container, "ErrImagePull", "manifest unknown"), 0.0)
    assert said is not None
    assert f"check {key}, " in said


def test_a_statefulset_that_may_not_make_its_pods_says_why() -> None:
    event = {
        "involvedObject": {"name": "rank-s"},
        "message": "create Pod rank-s-0 failed: exceeded quota: few-pods",
    }
    problem = set_problem(event)
    assert problem.subject == "rank-s"
    assert "exceeded quota: few-pods" in problem.line
    assert "raise the namespace's ResourceQuota" in problem.line
