"""When a target of kind release is ready."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.pod_client import ApiRefusal, ApiServer, Response
from aiperf_svc.adapters.cluster.watching.readiness import (
    pool_problem,
    rule_problem,
    value_at,
    wait_until_ready,
)
from aiperf_svc.domain.errors import EnvironmentProblem

CONDITION = {"words": "Graph g", "path": "/g", "test": "condition", "field": "Ready"}
POOL = {"name": "decode", "labels": {"role": "decode"}, "replicas": 2}


def _pod(name: str, *, is_ready: bool, **status: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": str(is_ready)}
    return {"metadata": {"name": name}, "status": {"conditions": [ready], **status}}


class _Api:
    """Returns these lists of pods in order. The last one repeats."""

    def __init__(self, *lists: list[dict[str, Any]] | Exception) -> None:
        self._lists = list(lists)
        self.paths: list[str] = []

    def get(self, path: str) -> Response:
        self.paths.append(path)
        found = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        if isinstance(found, Exception):
            raise found
        return Response(body={"items": found}, server_wall_s=0.0)


def _wait(*lists: list[dict[str, Any]] | Exception, timeout_s: int = 60) -> tuple[bool, _Api]:
    api, clock = _Api(*lists), iter(range(10_000))
    is_ready = wait_until_ready(
        {"rules": [], "pools": [POOL], "timeout_s": timeout_s},
        "ns",
        cast("ApiServer", api),
        wait=lambda _s: False,
        mono_s=lambda: float(next(clock)),
    )
    return is_ready, api


def test_ready_when_each_pool_has_its_replicas() -> None:
    one = [_pod("a", is_ready=True), _pod("b", is_ready=False)]
    both = [_pod("a", is_ready=True), _pod("b", is_ready=True)]
    is_ready, api = _wait(one, both)
    assert is_ready
    assert api.paths == ["/api/v1/namespaces/ns/pods?labelSelector=role%3Ddecode"] * 2


def test_refusals_are_tried_again() -> None:
    both = [_pod("a", is_ready=True), _pod("b", is_ready=True)]
    assert _wait(ApiRefusal(500, "etcd"), OSError("reset"), both)[0]


def test_timeout_names_missing_pods_and_reasons() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    pods = [_pod("a", is_ready=False, containerStatuses=[waiting])]
    with pytest.raises(EnvironmentProblem) as error:
        _wait(pods, timeout_s=3)
    assert str(error.value) == (
        "not ready after 3 s (deployment.target.ready_timeout): pool decode: 0 of 2 pods ready "
        "(pod a: ImagePullBackOff: no such image)"
    )


def test_terminating_pods_do_not_count() -> None:
    going = _pod("b", is_ready=True)
    going["metadata"]["deletionTimestamp"] = "now"
    assert pool_problem(POOL, [_pod("a", is_ready=True), going]) == (
        "pool decode: 1 of 2 pods ready"
    )


@pytest.mark.parametrize(
    ("found", "value", "message"),
    [
        (None, "True", "Graph g does not exist"),
        ({"status": {}}, "True", "Graph g has no condition Ready"),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}]}},
            "True",
            "Graph g: Ready is False (x)",
        ),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "True", ""),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "False", ""),
    ],
)
def test_conditions_of_an_object(found: dict[str, Any] | None, value: str, message: str) -> None:
    assert rule_problem({**CONDITION, "value": value}, found) == message


def test_fields_of_an_object() -> None:
    rule = {**CONDITION, "test": "field", "field": ".status.replicas[0].ready", "value": "2"}
    found = {"status": {"replicas": [{"ready": 2}]}}
    assert rule_problem(rule, found) == ""
    assert value_at(found, ".status.replicas[1].ready") is None
    assert rule_problem({**rule, "value": "3"}, found).endswith("is 2; expected 3")
    assert rule_problem({**rule, "field": ".status.phase", "value": None}, found).endswith(
        "is not set"
    )
