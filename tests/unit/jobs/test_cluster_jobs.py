"""The Jobs of a stack and their pods, as the collector reads them."""

import math
from http.client import BadStatusLine, IncompleteRead
from json import JSONDecodeError
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.pod_client import ApiRefusal, ApiServer, Response
from aiperf_svc.adapters.jobs.cluster_jobs import (
    DELETED,
    NO_PODS,
    ClusterJobs,
    JobPods,
    absent_job,
    job_seen,
)
from aiperf_svc.core.experiments.fan_out import JobSeen
from aiperf_svc.domain.errors import EnvironmentProblem

JOB_PATH = "/apis/batch/v1/namespaces/n/jobs/index-1-s"
ANCHOR = "/api/v1/namespaces/n/configmaps/anchor-s"
NOW_S = 1_767_225_660.0
"""2026-01-01T00:01:00Z."""


class FakeServer:
    """An API server with these objects, or one that rejects all requests."""

    def __init__(self, objects: dict[str, dict[str, Any]], status: int = 404) -> None:
        self.objects, self.status = objects, status
        self.changed: list[Any] = []

    def get(self, path: str) -> Response:
        if path not in self.objects:
            raise ApiRefusal(self.status, "refused")
        return Response(body=self.objects[path], server_wall_s=NOW_S)

    def patch(self, path: str, changes: dict[str, Any]) -> Response:
        self.changed.append(changes)
        return self.get(path)


def jobs(server: FakeServer) -> ClusterJobs:
    return ClusterJobs(cast(ApiServer, server), namespace="n", stack="s")


def test_a_job_that_exists_is_changed_and_seen() -> None:
    server = FakeServer({JOB_PATH: {"metadata": {"name": "index-1-s"}, "status": {"active": 2}}})
    assert jobs(server).set_parallelism("index-1-s", 3)
    assert server.changed == [{"spec": {"parallelism": 3}}]
    found = jobs(server).see("index-1-s")
    assert found is not None
    assert found.pods == 2


def test_missing_job_is_no_error() -> None:
    server = FakeServer({})
    assert not jobs(server).set_parallelism("index-1-s", 3)
    assert jobs(server).see("index-1-s") is None


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(EnvironmentProblem, match="the API server refuses a request: 403"):
        jobs(FakeServer({}, status=403)).see("index-1-s")


@pytest.mark.parametrize(
    "failure", [IncompleteRead(b"{"), BadStatusLine("<html>"), JSONDecodeError("no JSON", "", 0)]
)
def test_incomplete_response_is_an_environment_problem(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: object) -> Response:
        raise failure

    server = FakeServer({})
    monkeypatch.setattr(server, "get", cut_off)
    for ask in (jobs(server).pods, jobs(server).left_s):
        with pytest.raises(EnvironmentProblem, match="invalid response of the API server: "):
            ask()


def test_a_response_of_another_form_is_an_error() -> None:
    server = FakeServer({JOB_PATH: {"kind": "Status"}, ANCHOR: {"metadata": None}})
    for ask in (lambda: jobs(server).see("index-1-s"), jobs(server).left_s):
        with pytest.raises(EnvironmentProblem, match="invalid response of the API server: "):
            ask()


def test_time_left_uses_the_servers_clock() -> None:
    metadata = {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"aiperf.dev/ttl-seconds": "90"},
    }
    assert jobs(FakeServer({ANCHOR: {"metadata": metadata}})).left_s() == 30.0
    assert jobs(FakeServer({})).left_s() == math.inf


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


def test_missing_image_fails_a_job_without_runs() -> None:
    pods = JobPods(unplaced_s=60)
    found = pods.handle([pod(0, initContainerStatuses=[MISSING])], [JOB], now_s=0)
    assert "image 'server:1' cannot be pulled" in found.jobs[JOB]


def test_started_job_survives_a_missing_image() -> None:
    pods = JobPods(unplaced_s=60)
    listed = [pod(0, phase="Running"), pod(1, initContainerStatuses=[MISSING])]
    assert pods.handle(listed, [JOB], now_s=0).jobs == {}


def test_pod_may_wait_for_room_while_another_runs() -> None:
    pods = JobPods(unplaced_s=60)
    listed = [pod(0, job=OTHER, phase="Running"), unplaced(1)]
    for now_s in (0, 600):
        assert pods.handle(listed, [JOB, OTHER], now_s=now_s).jobs == {}


def test_unplaced_pod_fails_its_job_after_a_while() -> None:
    pods = JobPods(unplaced_s=60)
    assert pods.handle([unplaced(0)], [JOB], now_s=0).jobs == {}
    assert pods.handle([unplaced(0)], [JOB], now_s=59).jobs == {}
    assert "fits on no node" in pods.handle([unplaced(0)], [JOB], now_s=60).jobs[JOB]


def test_job_without_pods_ends() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([], [JOB], now_s=0)
    assert pods.handle([], [JOB], now_s=60).jobs == {JOB: NO_PODS}


def test_placed_pod_that_does_not_start_is_named() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([pod(0)], [JOB], now_s=0)
    (problem,) = pods.handle([pod(0)], [JOB], now_s=60).jobs.values()
    assert problem == "pod index-1-s-0 does not start; see `kubectl describe pod`"


def test_started_job_fails_when_nothing_runs_for_long() -> None:
    pods = JobPods(unplaced_s=60)
    pods.handle([pod(0, phase="Running")], [JOB], now_s=0)
    # The next attempt of an index follows with a delay.
    assert pods.handle([], [JOB], now_s=10).jobs == {}
    assert pods.handle([unplaced(1)], [JOB], now_s=100).jobs == {}
    assert "fits on no node" in pods.handle([unplaced(1)], [JOB], now_s=160).jobs[JOB]


def test_failed_pods_reason_is_reported_once() -> None:
    killed = {"name": "index-1", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    pods = JobPods(unplaced_s=60)
    listed = [pod(4, phase="Failed", containerStatuses=[killed])]
    ((name, job, index, why),) = pods.handle(listed, [JOB], now_s=0).pods
    assert (name, job, index) == ("index-1-s-4", JOB, 4)
    assert "container index-1: OOMKilled, exit code 137" in why
    assert pods.handle(listed, [JOB], now_s=1).pods == []


def test_pod_ended_by_its_deadline_keeps_its_problem() -> None:
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


def test_terminating_job_has_failed() -> None:
    metadata = {"name": JOB, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert job_seen({"metadata": metadata, "status": {"active": 1}}).problem == DELETED


def test_deleted_job_has_failed() -> None:
    listed = [pod(0, phase="Running"), pod(1, phase="Failed"), pod(0, job=OTHER)]
    nothing: frozenset[int] = frozenset()
    found = absent_job(JOB, listed, was_there=True)
    assert found == JobSeen(JOB, nothing, nothing, pods=1, problem=DELETED)
    assert absent_job(JOB, [], was_there=False) == JobSeen(JOB, nothing, nothing, pods=0)


def test_failed_indexes_do_not_fail_the_job() -> None:
    def failed(reason: str) -> str:
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": "m"}
        return job_seen({"metadata": {"name": JOB}, "status": {"conditions": [condition]}}).problem

    assert failed("FailedIndexes") == ""
    assert failed("PodFailurePolicy") == "its Job has failed: PodFailurePolicy: m"
