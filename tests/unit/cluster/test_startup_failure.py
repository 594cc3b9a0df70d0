"""When the start of a stack has failed for good."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.watching.startup_failure import (
    CREATE_S,
    PULL_S,
    StartupFailureDetector,
)
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
def test_what_is_final_is_said_at_once(pod: dict[str, Any]) -> None:
    line = _detector().handle([pod], [], now_s=NOW)
    assert line is not None
    assert line.startswith("pod worker-1: image 'i:1'")


def test_a_registry_that_does_not_respond_gets_a_second_chance() -> None:
    detector = _detector()
    first = _waiting("ErrImagePull", "i/o timeout")
    assert detector.handle([first], [], now_s=NOW) is None
    second = _waiting("ImagePullBackOff", "Back-off pulling image")
    assert detector.handle([second], [], now_s=NOW + PULL_S - 1) is None
    assert "cannot be pulled" in (detector.handle([first], [], now_s=NOW + PULL_S) or "")


def test_a_problem_that_has_passed_begins_anew() -> None:
    detector = _detector()
    problem = _waiting("ErrImagePull", "i/o timeout")
    assert detector.handle([problem], [], now_s=NOW) is None
    assert detector.handle([_pod({"running": {}})], [], now_s=NOW + 1) is None
    assert detector.handle([problem], [], now_s=NOW + PULL_S) is None


def test_a_pod_may_wait_for_a_node_as_long_as_it_is_told() -> None:
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
def test_a_deployment_without_pods_says_what_to_do(message: str, remedy: str) -> None:
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


def test_many_pods_with_the_same_trouble_are_counted() -> None:
    pods = [
        {**_waiting("InvalidImageName"), "metadata": {"name": f"worker-{i}"}} for i in range(200)
    ]
    assert (_detector().handle(pods, [], now_s=NOW) or "").endswith("(and 199 more like it)")


def test_a_pod_that_is_being_deleted_does_not_count() -> None:
    pod = _waiting("InvalidImageName")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert _detector().handle([pod], [], now_s=NOW) is None


def test_the_words_of_a_registry_are_harmless_and_bounded() -> None:
    pod = _waiting("InvalidImageName", "\x1b[2J\u202e" + "long " * 10_000)
    line = _detector().handle([pod], [], now_s=NOW)
    assert line is not None
    assert line.isprintable()
    assert len(line) < 1_000
