"""The Lease of a stack is held and taken over, with an API server that has only this object."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster import ownership
from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import (
    LeaseKeeper,
    StackInUse,
    Users,
    claim,
    refuse_held,
    take_from_process,
    users_of,
    wait_for_lease,
)
from aiperf_svc.core.cluster.lease import Holder, read_lease

ALICE = Holder(owner="alice@build", host="build", pid=42, token="a1", space="77")
BOB = Holder(owner="bob@laptop", host="laptop", pid=7, token="b0", space="5a")


class OneLease:
    """Serves one Lease and rejects changes of an outdated version."""

    def __init__(self) -> None:
        self.version = 1
        self.is_there = True
        self.roots: dict[str, list[dict[str, Any]]] = {
            "/api/v1/configmaps": [], "/api/v1/namespaces": []
        }  # fmt: skip
        self.errors: list[Exception] = []
        """Errors of the next reads."""
        self.changed = asyncio.Condition()
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.lease: dict[str, Any] = {
            "metadata": {
                "namespace": "n", "creationTimestamp": created, "resourceVersion": "1",
                "labels": {"aiperf.dev/stack": "s", "aiperf.dev/run": "cafe"},
                "annotations": {"aiperf.dev/owner": "alice@build"},
            },
            "spec": {},
        }  # fmt: skip

    @property
    def typed(self) -> Cluster:
        return cast(Cluster, self)

    @property
    def listing(self) -> Cluster:
        """Return the server with lists of Leases and ConfigMaps."""

        async def get(path: str, **_: Any) -> dict[str, Any]:
            if path in self.roots:
                return {"items": self.roots[path]}
            if not path.endswith("/leases"):
                assert path == "/api/v1/namespaces/n/configmaps/anchor-s"
                if self.errors:
                    raise self.errors.pop(0)
                return {"metadata": {"uid": "uid-of-anchor-s"}}
            return {"items": [self.lease] if self.is_there else []}

        return cast(Cluster, SimpleNamespace(get=get, now=self.now))

    @property
    def holder(self) -> str:
        return read_lease(self.lease).holder

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        if not self.is_there:
            raise Refused("none", status=404, reason="NotFound")
        return self.lease

    async def patch(self, path: str, changes: dict[str, Any]) -> dict[str, Any]:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/n/leases/owner-s"
        if changes["metadata"]["resourceVersion"] != str(self.version):
            raise Refused("changed", status=409, reason="Conflict")
        self.version += 1
        metadata = {**self.lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {"metadata": metadata, "spec": {**self.lease["spec"], **changes["spec"]}}
        async with self.changed:
            self.changed.notify_all()
        return self.lease

    async def until_held_by(self, who: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.holder == who)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "POLL_S", 0.001)
    monkeypatch.setattr(ownership, "NOTICE_S", 0.0)


async def _claim(api: OneLease, me: Holder, notes: list[str], **options: bool) -> None:
    await claim(
        api.typed,
        "s",
        "n",
        me=me,
        say=notes.append,
        **{"is_own": False, "take_over": False, **options},
    )


async def test_run_holds_and_releases_its_lease() -> None:
    api = OneLease()
    keeper = LeaseKeeper(api.typed, "s", ALICE, lambda _: None)
    keeper.begin("n")
    await api.until_held_by(ALICE.identity)
    with pytest.raises(StackInUse, match=r"alice@build \(process 42\) works on stack s"):
        await refuse_held(api.typed, "s", "n", BOB)
    await refuse_held(api.typed, "s", "n", ALICE)
    await keeper.close(is_kept=True)
    assert (api.holder, keeper.loss) == ("", None)
    await refuse_held(api.typed, "s", "n", BOB)


async def test_unread_lease_may_be_held() -> None:
    api = OneLease()
    api.errors = [
        Refused(f"no ({status})", status=status, reason="") for status in (403, 500)
    ]  # fmt: skip
    # Without the permission to read it, the Lease is not checked.
    await refuse_held(api.typed, "s", "n", BOB)
    with pytest.raises(Refused, match="500"):
        await refuse_held(api.typed, "s", "n", BOB)


async def test_renewal_continues_after_errors() -> None:
    api, notes = OneLease(), list[str]()
    refused = Refused("no right to get leases", status=403, reason="Forbidden")
    api.errors = [refused, refused, KeyError("metadata")]
    keeper = LeaseKeeper(api.typed, "s", ALICE, notes.append)
    keeper.begin("n")
    await api.until_held_by(ALICE.identity)
    assert notes == [f"others cannot see that this process works on the stack: {refused}"]
    await keeper.close(is_kept=False)


async def test_lease_of_local_process_is_taken_by_pid() -> None:
    api, notes = OneLease(), list[str]()
    keeper = LeaseKeeper(api.typed, "s", ALICE, lambda _: None)
    keeper.begin("n")
    await api.until_held_by(ALICE.identity)
    neighbour = msgspec.structs.replace(BOB, space=ALICE.space)
    for me, pid, is_taken in ((neighbour, 43, False), (BOB, 42, False), (neighbour, 42, True)):
        found = await take_from_process(api.typed, "s", ["n"], pid=pid, me=me, say=notes.append)
        assert (found, api.holder == me.identity) == (is_taken, is_taken)
    assert len(notes) == 1
    assert "bob@laptop (process 7)" in str(await keeper.taken())
    await keeper.close(is_kept=True)


async def test_takeover_names_both_owners() -> None:
    api, notes = OneLease(), list[str]()
    keeper = LeaseKeeper(api.typed, "s", ALICE, lambda _: None)
    keeper.begin("n")
    await api.until_held_by(ALICE.identity)
    for is_own in (True, False):
        with pytest.raises(StackInUse, match="remove the stack anyway with --take-over"):
            await _claim(api, BOB, notes, is_own=is_own)
    assert (api.holder, notes) == (ALICE.identity, [])

    await _claim(api, BOB, notes, take_over=True)
    loss = await keeper.taken()
    assert str(loss).startswith("stack s was taken over by bob@laptop (process 7) at ")
    assert not loss.is_in_use
    (note,) = notes
    assert note.startswith("taking over: alice@build (process 42) works on stack s")
    await keeper.close(is_kept=True)
    assert api.holder == BOB.identity


async def test_suspended_runner_loses_its_lease_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # When it continues, its last renewal has expired.
    monkeypatch.setattr(ownership, "HELD_S", -1)
    api = OneLease()
    keeper = LeaseKeeper(api.typed, "s", ALICE, lambda _: None)
    keeper.begin("n")
    await api.until_held_by(ALICE.identity)
    await _claim(api, BOB, [], take_over=True)
    loss = await keeper.taken()
    assert str(loss).startswith("stack s was taken over by bob@laptop (process 7) at ")
    assert (str(loss).endswith("and leaves it alone"), loss.is_in_use) == (True, True)
    await keeper.close(is_kept=True)
    assert api.holder == BOB.identity


async def test_users_are_the_holder_or_live_stacks() -> None:
    api = OneLease()
    found = await users_of(api.listing, "s", namespace=None)
    assert found == Users(alive={"uid-of-anchor-s": read_lease(api.lease)})
    await _claim(api, ALICE, [], is_own=True)
    found = await users_of(api.listing, "s", namespace=None)
    assert found.holder.startswith("alice@build (process 42) works on stack s in namespace n")


async def test_users_need_anchor_and_right_to_read_it() -> None:
    for status, reason in ((404, "NotFound"), (403, "Forbidden")):
        api = OneLease()
        api.errors = [Refused("no anchor", status=status, reason=reason)]
        assert await users_of(api.listing, "s", namespace=None) == Users()


async def test_users_are_unknown_while_the_server_fails() -> None:
    api = OneLease()
    api.errors = [Refused("etcdserver: request timed out", status=500, reason="")]
    with pytest.raises(Refused, match="request timed out"):
        await users_of(api.listing, "s", namespace=None)


async def test_roots_without_a_lease_are_unfinished() -> None:
    api = OneLease()
    anchor = {"name": "anchor-s", "uid": "a", "namespace": "n"}
    others = ({**anchor, "name": "config-s"}, {**anchor, "deletionTimestamp": "now"})
    api.roots["/api/v1/configmaps"] = [{"metadata": each} for each in (*others, anchor)]
    api.roots["/api/v1/namespaces"] = [{"metadata": {"name": "n", "uid": "n1"}}]
    assert (await users_of(api.listing, "s", namespace=None)).unfinished == {}
    api.is_there = False
    found = await users_of(api.listing, "s", namespace=None)
    assert found.unfinished == {"a": "n", "n1": "n"}


async def test_new_root_has_time_to_create_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "POLL_S", 0.0)
    api, reads = OneLease(), list[str]()
    lease, api.is_there = api.get, False

    async def get(path: str, **options: str) -> dict[str, Any]:
        reads.append(path)
        api.is_there = len(reads) > 2
        return await lease(path, **options)

    api.get = get  # type: ignore[method-assign]
    new = "2100-01-01T00:00:00Z"
    root = ObjectRef(kind="Namespace", namespace="", name="n", uid="1", path="", created=new)
    await wait_for_lease(api.typed, "s", root)
    assert reads == ["/apis/coordination.k8s.io/v1/namespaces/n/leases/owner-s"] * 3
    for old in ("2020-01-01T00:00:00Z", ""):
        await wait_for_lease(api.typed, "s", msgspec.structs.replace(root, created=old))
    assert len(reads) == 3


async def test_idle_foreign_stack_is_refused() -> None:
    api, notes = OneLease(), list[str]()
    with pytest.raises(StackInUse, match=r"belongs to alice@build: .*; ask its owner"):
        await _claim(api, BOB, notes)
    await _claim(api, BOB, notes, is_own=True)
    assert (api.holder, notes) == (BOB.identity, [])


async def test_stack_without_a_lease_has_no_holder() -> None:
    api, notes = OneLease(), list[str]()
    api.is_there = False
    await _claim(api, BOB, notes)
    await refuse_held(api.typed, "s", "n", BOB)
