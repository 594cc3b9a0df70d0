"""Nothing is left only where what the stack uses was listed."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import Catalog, Listed, ObjectRef
from aiperf_svc.adapters.cluster.teardown import leaks
from aiperf_svc.adapters.cluster.teardown.inventory import Inventory
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, find_left, is_one_of
from aiperf_svc.domain.errors import Unverified
from aiperf_svc.runner.stack.state_home import RunRecord
from aiperf_svc.runner.stack.teardown import unverified

EMPTY = Inventory(namespace="n", objects=(), not_listed=())
POD = ObjectRef(kind="Pod", namespace="n", name="p", uid="1", path="")
NODES, PODS, JOBS = "nodes (not allowed)", "pods (not allowed)", "jobs.batch (not allowed)"
OUTSIDE = "secrets outside namespace n (not allowed)"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (PODS, True),
        ("deployments.apps (503 no endpoints)", True),
        (OUTSIDE, False),
        (NODES, False),
        ("podtemplates (not allowed)", False),
    ],
)
def test_a_type_of_the_stack_counts_where_the_stack_is(line: str, is_one: bool) -> None:
    assert is_one_of(line, leaks.USUAL_TYPES) is is_one


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (LeakReport(left=(), not_checked=()), "nothing is left"),
        (
            LeakReport(left=(), not_checked=(NODES, OUTSIDE)),
            "nothing is left of the types that the stack uses; 2 other types may not be listed "
            "(--json names them)",
        ),
        (
            LeakReport(left=(), not_checked=(NODES, PODS), unverified=(PODS,)),
            "whether anything is left is not known: pods could not be listed",
        ),
        (
            LeakReport(left=(), not_checked=(), unverified=(PODS, JOBS, "a", "b", "c")),
            "whether anything is left is not known: pods, jobs.batch, a and 2 more could not be "
            "listed",
        ),
        (LeakReport(left=(POD,), not_checked=()), "1 objects are left"),
    ],
)
def test_the_words_do_not_claim_more_than_was_listed(report: LeakReport, words: str) -> None:
    assert report.in_words == words


class Api:
    """A cluster that lists nothing of these types, and has or hides the stack's namespace."""

    def __init__(self, *not_listed: str, status: int = 404, allowed: bool = True) -> None:
        self.not_listed, self.status, self.allowed = not_listed, status, allowed

    @property
    def typed(self) -> Cluster:
        return cast(Cluster, self)

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        raise Refused(f"{path} ({self.status})", status=self.status, reason="")

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"status": {"allowed": self.allowed}}


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_objects(cluster: Api, *_: object, **__: object) -> Listed:
        return Listed((), cluster.not_listed)

    async def read_catalog(_: object) -> Catalog:
        return Catalog((), ())

    async def take_inventory(cluster: Api, namespace: str) -> Inventory:
        return Inventory(namespace=namespace, objects=(), not_listed=cluster.not_listed)

    monkeypatch.setattr(leaks, "list_objects", list_objects)
    monkeypatch.setattr(leaks, "read_catalog", read_catalog)
    monkeypatch.setattr(leaks, "take_inventory", take_inventory)


async def _left(api: Api, **more: Any) -> LeakReport:
    how: dict[str, Any] = {"namespace_uid": None, "before": EMPTY, **more}
    return await find_left(api.typed, stack="s", namespace="n", own=("anchor",), **how)


async def test_in_an_existing_namespace_each_type_of_the_stack_must_be_listed() -> None:
    report = await _left(Api(NODES, OUTSIDE, PODS, JOBS))
    assert report.unverified == (PODS,)
    assert set(report.not_checked) == {NODES, OUTSIDE, PODS, JOBS}
    assert (await _left(Api(JOBS), types=("jobs.batch",))).unverified == (JOBS,)
    assert (await _left(Api(NODES, OUTSIDE))).unverified == ()


async def test_a_namespace_that_is_gone_has_nothing_of_the_stack() -> None:
    assert (await _left(Api(PODS), namespace_uid="own", before=None)).unverified == ()
    hidden = await _left(Api(PODS, status=403), namespace_uid="own", before=None)
    assert hidden.unverified == ("namespace n (/api/v1/namespaces/n (403))",)
    # Its UID was never known, so that only its label tells.
    unnamed = await _left(Api("namespaces (not allowed)"), before=None)
    assert unnamed.unverified == ("namespaces (not allowed)",)


async def test_who_lost_the_rights_is_told_which_and_what_to_do() -> None:
    record = RunRecord(
        stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False,
        namespace="n", before=EMPTY, expires="2026-01-01 12:15 UTC", types=("leases.x",),
    )  # fmt: skip
    api = Api(PODS, allowed=False)
    error = await unverified(record, await _left(api), api.typed)
    assert isinstance(error, Unverified)
    assert str(error).splitlines() == [
        "stack s: it could not be removed: the right to delete configmaps, deployments.apps, "
        "poddisruptionbudgets.policy, rolebindings.rbac.authorization.k8s.io and 5 more is missing "
        "in namespace n",
        "  whether anything is left is not known: pods could not be listed",
        "  the right to list configmaps, deployments.apps, pods, poddisruptionbudgets.policy and 6 "
        "more is missing in namespace n",
        "  when the rights are back: aiperf-svc gc s; it removes itself at 2026-01-01 12:15 UTC",
    ]
