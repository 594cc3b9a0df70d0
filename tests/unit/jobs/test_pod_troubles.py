"""What the pods and Jobs of a cluster say of indexes."""

from typing import Any

from aiperf_svc.adapters.jobs.cluster_jobs import (
    DELETED,
    NO_PODS,
    JobPods,
    absent_job,
    job_seen,
)
from aiperf_svc.core.experiments.fan_out import JobSeen

JOB, OTHER = "index-1-s", "index-2-s"
MISSING = {
    "name": "target",
    "image": "server:1",
    "state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown: not found"}},
}


def pod(index: int, *, job: str = JOB, phase: str = "Pending", **status: Any) -> dict[str, Any]:
    labels = {
        "batch.kubernetes.io/job-name": job,
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    metadata = {"name": f"{job}-{index}", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def unplaced(index: int) -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    }
    return pod(index, conditions=[condition])


def test_an_image_that_is_not_there_ends_a_job_of_which_nothing_has_run() -> None:
    pods = JobPods(unplaced_s=60)
    found = pods.handle([pod(0, initContainerStatuses=[MISSING])], [JOB], now_s=0)
    assert "image 'server:1' cannot be pulled" in found.jobs[JOB]


def test_one_pod_that_lacks_its_image_ends_no_job_of_which_another_has_run() -> None:
    pods = JobPods(unplaced_s=60)
    listed = [pod(0, phase="Running"), pod(1, initContainerStatuses=[MISSING])]
    assert pods.handle(listed, [JOB], now_s=0).jobs == {}


def test_a_pod_may_wait_for_room_while_another_runs() -> None:
    pods = JobPods(unplaced_s=60)
    listed = [pod(0, job=OTHER, phase="Running"), unplaced(1)]
    for now_s in (0, 600):
        assert pods.handle(listed, [JOB, OTHER], now_s=now_s).jobs == {}


def test_a_pod_that_fits_nowhere_ends_its_job_when_nothing_else_runs_for_long() -> None:
    pods = JobPods(unplaced_s=60)
    assert pods.handle([unplaced(0)], [JOB], now_s=0).jobs == {}
    assert pods.handle([unplaced(0)], [JOB], now_s=59).jobs == {}
    assert "fits on no node" in pods.handle([unplaced(0)], [JOB], now_s=60).jobs[JOB]


def test_a_job_that_makes_no_pods_ends() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([], [JOB], now_s=0)
    assert pods.handle([], [JOB], now_s=60).jobs == {JOB: NO_PODS}


def test_a_pod_that_has_a_node_and_does_not_start_is_named() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([pod(0)], [JOB], now_s=0)
    (said,) = pods.handle([pod(0)], [JOB], now_s=60).jobs.values()
    assert said == "pod index-1-s-0 does not start; see `kubectl describe pod`"


def test_a_job_of_which_pods_have_run_ends_when_the_rest_waits_for_long_and_nothing_runs() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([pod(0, phase="Running")], [JOB], now_s=0)
    # The next attempt of an index follows after a while.
    assert pods.handle([], [JOB], now_s=10).jobs == {}
    assert pods.handle([unplaced(1)], [JOB], now_s=100).jobs == {}
    assert "fits on no node" in pods.handle([unplaced(1)], [JOB], now_s=160).jobs[JOB]


def test_a_failed_pod_says_why_once() -> None:
    killed = {
        "name": "index-1",
        "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }
    pods = JobPods(unplaced_s=60)
    listed = [pod(4, phase="Failed", containerStatuses=[killed])]
    ((name, job, index, why),) = pods.handle(listed, [JOB], now_s=0).pods
    assert (name, job, index) == ("index-1-s-4", JOB, 4)
    assert "container index-1: OOMKilled, exit code 137" in why
    assert pods.handle(listed, [JOB], now_s=1).pods == []


def test_a_pod_that_its_deadline_has_ended_says_what_was_wrong_with_it() -> None:
    pods = JobPods(unplaced_s=60)
    running = pod(0, phase="Running")
    pods.handle([running, pod(1, initContainerStatuses=[MISSING])], [JOB], now_s=0)
    late = pod(1, phase="Failed", reason="DeadlineExceeded", message="Pod was active too long")
    (found,) = pods.handle([running, late], [JOB], now_s=60).pods
    assert "DeadlineExceeded: Pod was active too long" in found[3]
    assert "cannot be pulled" in found[3]


def test_the_status_of_a_job_is_read() -> None:
    status = {"completedIndexes": "0-2", "failedIndexes": "4", "active": 2, "terminating": 1}
    found = job_seen({"metadata": {"name": JOB}, "status": status})
    assert found == JobSeen(JOB, frozenset({0, 1, 2}), frozenset({4}), pods=3)
    assert job_seen({"metadata": {"name": JOB}}) == JobSeen(JOB, frozenset(), frozenset(), pods=0)


def test_a_job_that_is_being_deleted_has_failed() -> None:
    metadata = {"name": JOB, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert job_seen({"metadata": metadata, "status": {"active": 1}}).problem == DELETED


def test_a_job_that_does_not_exist_has_failed_if_it_was_there() -> None:
    listed = [pod(0, phase="Running"), pod(1, phase="Failed"), pod(0, job=OTHER)]
    nothing: frozenset[int] = frozenset()
    found = absent_job(JOB, listed, was_there=True)
    assert found == JobSeen(JOB, nothing, nothing, pods=1, problem=DELETED)
    assert absent_job(JOB, [], was_there=False) == JobSeen(JOB, nothing, nothing, pods=0)


def test_only_a_failure_of_the_job_itself_is_one_of_all_its_indexes() -> None:
    def failed(reason: str) -> str:
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": "m"}
        return job_seen({"metadata": {"name": JOB}, "status": {"conditions": [condition]}}).problem

    assert failed("FailedIndexes") == ""
    assert failed("PodFailurePolicy") == "its Job has failed: PodFailurePolicy: m"
