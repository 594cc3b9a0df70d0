"""When the start of a stack counts as failed."""

import asyncio
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.watching import startup_watch
from aiperf_svc.adapters.cluster.watching.startup_failure import (
    CLAIM_S,
    CONFIG_S,
    CRASHES,
    CREATE_S,
    PULL_S,
    StartupFailureDetector,
    set_problem,
)
from aiperf_svc.adapters.cluster.watching.startup_watch import wait_for_startup_failure
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import named

NOW = 1000.0


def _pod(state: dict[str, Any], **container: Any) -> dict[str, Any]:
    status = {"name": "main", "image": "i:1", "state": state, "restartCount": 0, **container}
    return named("worker-1", status={"phase": "Pending", "containerStatuses": [status]})


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return _pod({"waiting": {"reason": reason, "message": message}})


def _deployment(message: str) -> dict[str, Any]:
    condition = {
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message,
    }  # fmt: skip
    return named("worker", status={"conditions": [condition]})


def _unschedulable() -> dict[str, Any]:
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes"}
    return named("worker-1", status={"conditions": [condition]})


def _detector() -> StartupFailureDetector:
    return StartupFailureDetector(unschedulable_s=60.0)


@pytest.mark.parametrize(
    "pod",
    [
        _waiting("ErrImagePull", "manifest unknown"),
        _waiting("ImagePullBackOff", "pull access denied, repository does not exist"),
        _waiting("InvalidImageName", "couldn't parse"),
        _waiting("ErrImageNeverPull"),
    ],
    ids=lambda pod: pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"],
)
def test_permanent_image_errors_are_reported_at_once(pod: dict[str, Any]) -> None:
    line = _detector().handle([pod], [], now_s=NOW)
    assert line is not None
    assert line.startswith("pod worker-1: image 'i:1'")


def test_unreachable_registry_may_recover() -> None:
    detector = _detector()
    first = _waiting("ErrImagePull", "i/o timeout")
    assert detector.handle([first], [], now_s=NOW) is None
    second = _waiting("ImagePullBackOff", "Back-off pulling image")
    assert detector.handle([second], [], now_s=NOW + PULL_S - 1) is None
    assert "cannot be pulled" in (detector.handle([first], [], now_s=NOW + PULL_S) or "")


def test_resolved_problem_restarts_its_time_limit() -> None:
    detector = _detector()
    problem = _waiting("ErrImagePull", "i/o timeout")
    assert detector.handle([problem], [], now_s=NOW) is None
    assert detector.handle([_pod({"running": {}})], [], now_s=NOW + 1) is None
    assert detector.handle([problem], [], now_s=NOW + PULL_S) is None


def test_unplaced_pod_fails_after_its_limit() -> None:
    detector = _detector()
    assert detector.handle([_unschedulable()], [], now_s=NOW) is None
    assert detector.handle([_unschedulable()], [], now_s=NOW + 59) is None
    assert "fits on no node: 0/1 nodes" in (
        detector.handle([_unschedulable()], [], now_s=NOW + 60) or ""
    )


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("pods is forbidden: exceeded quota: q", "raise the namespace's ResourceQuota"),
        ("violates PodSecurity restricted", "Pod Security level"),
        ("maximum memory usage per Container is 1Gi", "LimitRange"),
        ("something else", "events of its ReplicaSet"),
    ],
)
def test_deployment_without_pods_has_a_remedy(message: str, remedy: str) -> None:
    detector, failing = _detector(), _deployment(message)
    assert detector.handle([], [failing], now_s=NOW) is None
    line = detector.handle([], [failing], now_s=NOW + CREATE_S) or ""
    assert message in line
    assert remedy in line


def test_one_crash_is_forgiven_and_two_are_not() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    once = _pod({"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=1, lastState=ended)
    twice = _pod({"running": {}}, restartCount=2, lastState=ended, ready=False)
    assert _detector().handle([once], [], now_s=NOW) is None
    line = _detector().handle([twice], [], now_s=NOW) or ""
    assert "crashed 2 times, last with OOMKilled, exit code 137; raise its memory" in line


def test_equal_pod_problems_are_counted() -> None:
    pods = [
        {**_waiting("InvalidImageName"), "metadata": {"name": f"worker-{i}"}} for i in range(200)
    ]
    assert (_detector().handle(pods, [], now_s=NOW) or "").endswith("(and 199 more like it)")


def test_deleted_pods_do_not_count() -> None:
    pod = _waiting("InvalidImageName")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert _detector().handle([pod], [], now_s=NOW) is None


def test_registry_messages_are_sanitised_and_bounded() -> None:
    pod = _waiting("InvalidImageName", "\x1b[2J\u202e" + "long " * 10_000)
    line = _detector().handle([pod], [], now_s=NOW)
    assert line is not None
    assert line.isprintable()
    assert len(line) < 1_000


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


def reason_after(pod: dict[str, Any], seconds: float) -> str | None:
    detector = StartupFailureDetector(unschedulable_s=60.0)
    detector.handle([pod], [], now_s=0.0)
    return detector.handle([pod], [], now_s=seconds)


def test_unbound_claim_may_wait_longer() -> None:
    assert reason_after(unscheduled(CLAIM), 60.0) is None
    reason = reason_after(unscheduled(CLAIM), CLAIM_S)
    assert reason is not None
    assert reason.startswith("pod rank-s-0 waits for its volume: ")
    assert "deployment.ranks.volume" in reason


def test_pending_claim_is_reported_with_its_last_event() -> None:
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
    reason = detector.handle(pods, [], (), events, now_s=30.0) or ""
    assert reason.startswith(
        'pod rank-s-0 waits for its volume: storageclass.storage.k8s.io "gold" not found; '
    )


def test_rank_image_needs_a_shell() -> None:
    message = 'exec: "sh": executable file not found in $PATH'
    detector = StartupFailureDetector(unschedulable_s=60.0)
    pod = waiting("rank", "RunContainerError", message)
    assert detector.handle([pod], [], now_s=0.0) is None
    reason = detector.handle([pod], [], now_s=CONFIG_S) or ""
    assert message in reason
    assert "needs a POSIX shell: change workload.image" in reason
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": message}}
    crashed = {"name": "rank", "restartCount": CRASHES, "ready": False, "lastState": ended}
    pod = {"metadata": {"name": "rank-s-0"}, "status": {"containerStatuses": [crashed]}}
    reason = detector.handle([pod], [], now_s=0.0) or ""
    assert message in reason
    assert reason.endswith("needs a POSIX shell: change workload.image")


def test_unplaced_rank_names_its_key() -> None:
    reason = reason_after(unscheduled("1 node(s) didn't match pod anti-affinity rules"), 60.0)
    assert reason is not None
    assert "deployment.ranks.nodes" in reason


@pytest.mark.parametrize(
    ("container", "key"),
    [
        ("rank", "workload.image"),
        ("courier", "deployment.image.name"),
        ("target", "deployment.target.image (of the mock server: deployment.image.name)"),
    ],
)
def test_failed_pull_names_the_image_key(container: str, key: str) -> None:
    reason = reason_after(waiting(container, "ErrImagePull", "manifest unknown"), 0.0)
    assert reason is not None
    assert f"check {key}, " in reason


def test_refused_stateful_set_pods_are_explained() -> None:
    event = {
        "involvedObject": {"name": "rank-s"},
        "message": "create Pod rank-s-0 failed: exceeded quota: few-pods",
    }
    problem = set_problem(event)
    assert problem.subject == "rank-s"
    assert "exceeded quota: few-pods" in problem.line
    assert "raise the namespace's ResourceQuota" in problem.line


class FailingApi(FakeCluster):
    """An API server that fails twice and then lists this pod."""

    def __init__(self, pod: dict[str, Any]) -> None:
        super().__init__()
        self._pod, self._statuses = pod, [500, 429]

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        if self._statuses:
            raise Refused("etcdserver: leader changed", status=self._statuses.pop(), reason="")
        return {"items": [self._pod] if path == "/api/v1/namespaces/n/pods" else []}


async def test_errors_of_the_server_end_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_watch, "POLL_S", 0.0)
    pod = _waiting("ErrImageNeverPull")
    pod["metadata"]["uid"] = "u"
    async with asyncio.timeout(10):
        line = await wait_for_startup_failure(FailingApi(pod).typed, stack="s", namespace="n")
    assert "ErrImageNeverPull" in line
