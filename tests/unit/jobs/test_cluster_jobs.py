"""What the collector asks the API server for."""

import math
from http.client import BadStatusLine, IncompleteRead
from json import JSONDecodeError
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.pod_client import ApiRefusal, ApiServer, Response
from aiperf_svc.adapters.jobs.cluster_jobs import ClusterJobs
from aiperf_svc.domain.errors import EnvironmentProblem

JOB = "/apis/batch/v1/namespaces/n/jobs/index-1-s"
ANCHOR = "/api/v1/namespaces/n/configmaps/anchor-s"
NOW_S = 1_767_225_660.0
"""2026-01-01T00:01:00Z."""


class PlayedServer:
    """An API server with these objects, or one that refuses all."""

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


def jobs(server: PlayedServer) -> ClusterJobs:
    return ClusterJobs(cast(ApiServer, server), namespace="n", stack="s")


def test_a_job_that_exists_is_changed_and_seen() -> None:
    server = PlayedServer({JOB: {"metadata": {"name": "index-1-s"}, "status": {"active": 2}}})
    assert jobs(server).set_parallelism("index-1-s", 3)
    assert server.changed == [{"spec": {"parallelism": 3}}]
    found = jobs(server).see("index-1-s")
    assert found is not None
    assert found.pods == 2


def test_a_job_that_does_not_exist_is_no_error() -> None:
    server = PlayedServer({})
    assert not jobs(server).set_parallelism("index-1-s", 3)
    assert jobs(server).see("index-1-s") is None


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(EnvironmentProblem, match="the API server refuses a request: 403"):
        jobs(PlayedServer({}, status=403)).see("index-1-s")


@pytest.mark.parametrize(
    "failure", [IncompleteRead(b"{"), BadStatusLine("<html>"), JSONDecodeError("no JSON", "", 0)]
)
def test_a_response_that_is_cut_off_is_an_error_and_not_the_end_of_the_collector(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: object) -> Response:
        raise failure

    server = PlayedServer({})
    monkeypatch.setattr(server, "get", cut_off)
    for ask in (jobs(server).pods, jobs(server).left_s):
        with pytest.raises(EnvironmentProblem, match="invalid response of the API server: "):
            ask()


def test_a_response_of_another_form_is_an_error() -> None:
    server = PlayedServer({JOB: {"kind": "Status"}, ANCHOR: {"metadata": None}})
    for ask in (lambda: jobs(server).see("index-1-s"), jobs(server).left_s):
        with pytest.raises(EnvironmentProblem, match="invalid response of the API server: "):
            ask()


def test_the_time_of_a_stack_ends_after_its_anchors_creation_by_the_servers_clock() -> None:
    metadata = {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"aiperf.dev/ttl-seconds": "90"},
    }
    assert jobs(PlayedServer({ANCHOR: {"metadata": metadata}})).left_s() == 30.0
    assert jobs(PlayedServer({})).left_s() == math.inf
