"""The pod that tries the target never stays: whatever becomes of who made it."""

import asyncio
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.preflight.target_probe import DEADLINE_S, probe_pod, probe_target
from aiperf_svc.plan.identity import TTL_ANNOTATION
from tests.support.plans import make_plan

PLAN = make_plan(url="https://api.example.com", namespace={"name": "theirs", "mode": "existing"})
DENIED = Refused("not allowed", status=403, reason="Forbidden")


class ApiServer:
    """Makes the pod, and may lose the response."""

    def __init__(self, response: Exception | None = None) -> None:
        self.response = response
        self.asked = asyncio.Event()
        self.pods: list[str] = []
        self.deleted: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> None:
        if isinstance(self.response, Refused):
            raise self.response
        self.pods.append(f"{path}/{body['metadata']['name']}")
        self.asked.set()
        if self.response:
            raise self.response

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def delete(self, path: str, *, grace_s: int) -> None:
        if isinstance(self.response, Refused):
            raise self.response
        self.deleted.append(path)


async def test_a_pod_whose_creation_got_no_response_is_removed() -> None:
    server = ApiServer(Unreachable("no response in time"))
    with pytest.raises(Unreachable):
        await probe_target(cast("Cluster", server), PLAN, namespace="theirs")
    assert server.deleted == server.pods != []


async def test_a_pod_nobody_waits_for_any_more_is_removed() -> None:
    server = ApiServer()
    trying = asyncio.create_task(probe_target(cast("Cluster", server), PLAN, namespace="theirs"))
    await server.asked.wait()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert server.deleted == server.pods != []


async def test_a_pod_that_may_not_be_made_is_no_failure() -> None:
    server = ApiServer(DENIED)
    check = await probe_target(cast("Cluster", server), PLAN, namespace="theirs")
    assert (check.state, server.pods) == ("not checked", [])


def test_a_pod_that_a_killed_runner_left_is_overdue_when_it_has_ended() -> None:
    made = probe_pod(PLAN, "p")
    assert made["spec"]["activeDeadlineSeconds"] == DEADLINE_S
    assert made["metadata"]["annotations"][TTL_ANNOTATION] == str(DEADLINE_S)


@pytest.mark.parametrize("limit", [None, 200])
def test_the_pod_asks_for_what_the_smallest_pod_of_the_stack_asks_for(limit: int | None) -> None:
    """A LimitRange that admits the stack admits it too."""
    plan = make_plan(
        pods={"deadline": {"cpu": "100m", "memory": "128Mi", "cpu_limit": limit and "200m"}}
    )
    (container,) = probe_pod(plan, "p")["spec"]["containers"]
    limits = {"memory": "128Mi"} if limit is None else {"cpu": "200m", "memory": "128Mi"}
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "32Mi"},
        "limits": {**limits, "ephemeral-storage": "320Mi"},
    }
