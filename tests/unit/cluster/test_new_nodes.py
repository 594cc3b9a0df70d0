"""A cluster check waits only for the clock of a new node."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight import cluster_checks
from aiperf_svc.adapters.cluster.preflight.cluster_checks import LEASES, nodes_of

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
LEASE: dict[str, Any] = {
    "metadata": {
        "name": "n",
        "managedFields": [
            {"time": "2026-01-01T12:00:00Z", "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
        ],
    },
    "spec": {"renewTime": "2026-01-01T12:00:02.000000Z"},
}


class Young:
    """A cluster with one node, whose lease exists from the second read on."""

    def __init__(self, *, created: str, may_list_leases: bool = True) -> None:
        self._created, self._may = created, may_list_leases
        self.looks = 0

    async def now(self) -> datetime:
        return NOW

    async def get(self, path: str, **_params: str) -> dict[str, Any]:
        if path == LEASES:
            if not self._may:
                raise Refused("no", status=403, reason="Forbidden")
            return {"items": [LEASE] if self.looks > 1 else []}
        if path == "/api/v1/pods":
            return {"items": []}
        self.looks += 1
        ready = {"type": "Ready", "status": "True"}
        node = {
            "metadata": {"name": "n", "creationTimestamp": self._created},
            "status": {"conditions": [ready]},
        }
        return {"items": [node]}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_checks, "POLL_S", 0)


async def clock_of(cluster: Young) -> int | None:
    nodes = await nodes_of(cast(Cluster, cluster))
    assert nodes is not None
    return nodes[0].clock_ahead_s


async def test_check_waits_for_a_new_nodes_clock() -> None:
    cluster = Young(created="2026-01-01T11:59:55Z")
    assert await clock_of(cluster) == 2
    assert cluster.looks == 2


@pytest.mark.parametrize(
    "cluster",
    [
        Young(created="2026-01-01T11:00:00Z"),
        Young(created="2026-01-01T11:59:55Z", may_list_leases=False),
    ],
)
async def test_old_nodes_and_hidden_leases_need_no_wait(cluster: Young) -> None:
    assert await clock_of(cluster) is None
    assert cluster.looks == 1


async def test_wait_for_a_nodes_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_checks, "FIRST_LEASE_S", 0.0)
    monkeypatch.setitem(LEASE["metadata"], "name", "another")
    assert await clock_of(Young(created="2026-01-01T11:59:55Z")) is None
