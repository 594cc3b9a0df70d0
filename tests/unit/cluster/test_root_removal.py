"""What a stack hangs on is deleted first, with its Deployments, and nothing of anybody else's."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.teardown.root_removal import remove_roots

Json = dict[str, Any]
LABELS = {"aiperf.dev/stack": "s", "aiperf.dev/run": "r"}


def an_object(name: str, uid: str, *, namespace: str = "", owner: str = "") -> Json:
    metadata: Json = {"name": name, "uid": uid, "labels": LABELS, "namespace": namespace}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    if owner:
        metadata["ownerReferences"] = [{"uid": owner}]
    return {"metadata": metadata}


class Deleting:
    """A cluster with these objects by the path of their list; remembers what is deleted."""

    def __init__(self, **lists: list[Json]) -> None:
        self._lists = lists
        self.deleted: list[str] = []

    async def get(self, path: str, **_: Any) -> Json:
        return {"items": self._lists.get(path.rpartition("/")[2], []), "metadata": {}}

    async def delete(self, path: str, *, uid: str) -> None:
        self.deleted.append(uid)


@pytest.mark.parametrize(
    ("own", "expected"),
    [(("ours",), ["ours", "worker", "deadline"]), (("gone",), []), ((), [])],
    ids=["ours", "made again by somebody else", "nothing known"],
)
async def test_an_own_namespace_goes_before_its_deployments(
    own: tuple[str, ...], expected: list[str]
) -> None:
    cluster = Deleting(
        namespaces=[an_object("aiperf-s", "ours")],
        deployments=[
            an_object("worker-s", "worker", namespace="aiperf-s"),
            an_object("deadline-s", "deadline", namespace="aiperf-s"),
            an_object("elsewhere", "the owner's", namespace="team"),
        ],
    )
    await remove_roots(cast(Cluster, cluster), stack="s", namespace=None, own=own)
    assert cluster.deleted == expected


async def test_in_a_namespace_that_stays_only_what_the_anchor_owns_goes() -> None:
    cluster = Deleting(
        configmaps=[
            an_object("anchor-s", "anchor", namespace="team"),
            an_object("anchor-s", "other", namespace="elsewhere"),
            an_object("config-s", "config", namespace="team", owner="anchor"),
        ],
        deployments=[
            an_object("worker-s", "worker", namespace="team", owner="anchor"),
            an_object("of-the-owner", "the owner's", namespace="team"),
            an_object("worker-s", "another", namespace="elsewhere", owner="other"),
        ],
    )
    await remove_roots(cast(Cluster, cluster), stack="s", namespace="team", own=("anchor",))
    assert cluster.deleted == ["anchor", "worker"]
