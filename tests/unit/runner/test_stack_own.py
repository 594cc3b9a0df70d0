"""Which objects belong to a stack when another owner's may have the same name."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster import ownership
from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import (
    LeaseKeeper,
    StackInUse,
    owner_name,
    refuse_others,
    this_process,
)
from aiperf_svc.adapters.cluster.teardown.inventory import (
    Inventory,
    StackObjects,
    refuse_taken,
    refuse_taken_outside,
    without_dependents,
)
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi import deployed, namesakes
from aiperf_svc.adapters.pulumi.cli import Ended, OnEvent, PulumiCli, PulumiFailed, is_locked
from aiperf_svc.adapters.pulumi.progress import LEASE
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.core.cluster.lease import Holder, StackLease
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import RUN_ID, STACK_LABEL
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import bring_up, records
from aiperf_svc.runner.stack.records import find_own
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_cluster import FakeCluster
from tests.support.releases import deployment, release_plan, release_target, simple
from tests.support.small_configs import small_config

RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False, own=()
)
GUEST = msgspec.structs.replace(
    RECORD, namespace="n", before=Inventory(namespace="n", objects=(), not_listed=())
)
GUEST_CONFIG = small_config(
    "http://10.0.0.1:8000", deployment={"namespace": {"name": "n", "mode": "existing"}}
)
GUEST_REQUEST = StackRequest(stack="s", config=GUEST_CONFIG, environ={})
CLUSTER = cast("Cluster", None)
SPACE = "core/v1:Namespace"


def space(uid: str) -> ObjectRef:
    name = f"aiperf-s-{uid}"
    return ObjectRef(kind="Namespace", namespace="", name=name, uid=uid, path="")


ANCHOR = ObjectRef(kind="ConfigMap", namespace="n", name="anchor-s", uid="anchor", path="")


def made(kind: str, name: str, uid: str, **more: Any) -> dict[str, Any]:
    return {
        "type": f"kubernetes:{kind}",
        "outputs": {"metadata": {"name": name, "uid": uid}},
        **more,
    }


def state(*resources: dict[str, Any], making: str = "", anchor_in: str = "") -> dict[str, Any]:
    """Return a state, optionally one written during the creation of a namespace or an anchor."""
    kinds = {
        "Namespace": {"name": making},
        "ConfigMap": {"name": "anchor-s", "namespace": anchor_in},
    }
    pending = [
        {
            "type": "creating",
            "resource": {"type": f"kubernetes:core/v1:{kind}", "inputs": {"metadata": metadata}},
        }
        for kind, metadata in kinds.items()
        if (making if kind == "Namespace" else anchor_in)
    ]
    return {"deployment": {"resources": resources, "pending_operations": pending}}


class Cli:
    """Replaces the CLI. A state of None cannot be read."""

    backend = "file:///state"

    def __init__(self, content: dict[str, Any] | None, *, is_known: bool = True) -> None:
        self.content, self.is_known = content, is_known
        self.did: list[str] = []

    async def refresh(self, *, clear_pending: bool = False) -> Ended:
        self.did.append("refresh and clear pending" if clear_pending else "refresh")
        return Ended(code=0, out="", errors="")

    async def export(self) -> dict[str, Any]:
        if not self.is_known:
            return {}
        if self.content is None:
            raise PulumiFailed("stack export", Ended(code=1, out="", errors="error: broken"))
        return self.content


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[ObjectRef]:
    """Set the objects with the stack's label in the cluster."""
    found: list[ObjectRef] = []

    async def find_roots(cluster: Cluster, **_: Any) -> tuple[ObjectRef, ...]:
        return tuple(found)

    for module in (bring_up, records):
        monkeypatch.setattr(module, "find_roots", find_roots)
    return found


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the owners of the Leases by namespace."""
    found: dict[str, str] = {}

    async def find_lease(_: Cluster, stack: str, namespace: str) -> StackLease | None:
        if namespace not in found:
            return None
        return StackLease(
            stack=stack,
            namespace=namespace,
            owner=found[namespace],
            run_id="r",
            created=datetime.now(UTC),
        )

    monkeypatch.setattr(ownership, "find_lease", find_lease)
    return found


async def own_of(record: RunRecord, cli: Cli | None) -> RunRecord:
    return await find_own(record, CLUSTER, cast("PulumiCli", cli))


def test_state_lists_roots_and_pending_ones() -> None:
    content = state(
        made("core/v1:Namespace", "aiperf-s-1", "1"),
        made("core/v1:Namespace", "aiperf-s-0", "0", delete=True),
        made("core/v1:ConfigMap", "anchor-s", "2"),
        made("core/v1:ConfigMap", "config-s", "3"),
        made("apps/v1:Deployment", "anchor-s", "4"),
        making="aiperf-s-5",
        anchor_in="n",
    )
    making = {("", "aiperf-s-5"), ("n", "anchor-s")}
    assert deployed.roots_of(content, stack="s") == ({"0", "1", "2"}, making)
    for each in content["deployment"]["pending_operations"]:
        each["type"] = "deleting"
    assert deployed.roots_of(content, stack="s") == ({"0", "1", "2"}, frozenset())
    assert deployed.roots_of({"deployment": None}, stack="s") == (frozenset(), frozenset())


def test_roots_that_a_refresh_has_read_are_foreign() -> None:
    lifetime = {"type": deployed.LIFETIME, "outputs": {deployed.ROOT_UIDS: ["1", "2"]}}
    read = (
        made("core/v1:Namespace", "n", "theirs"),
        made("core/v1:ConfigMap", "anchor-s", "their-anchor"),
        made("core/v1:Namespace", "aiperf-s-0", "0", delete=True),
    )
    assert deployed.roots_of(state(lifetime, *read), stack="s") == ({"0"}, frozenset())
    own = made("core/v1:Namespace", "n", "1"), made("core/v1:ConfigMap", "anchor-s", "2")
    assert deployed.roots_of(state(lifetime, *own), stack="s") == ({"1", "2"}, frozenset())
    # `up` was interrupted before it had recreated both.
    again = made("core/v1:Namespace", "n", "3")
    assert deployed.roots_of(state(lifetime, again), stack="s") == ({"3"}, frozenset())


def test_state_without_registered_roots_owns_its_objects() -> None:
    objects = made("core/v1:Namespace", "n", "1"), made("core/v1:ConfigMap", "anchor-s", "2")
    for lifetime in (
        {"type": deployed.LIFETIME},
        {"type": deployed.LIFETIME, "outputs": {"namespace": "n"}},
        {"type": deployed.LIFETIME, "outputs": {deployed.ROOT_UIDS: ["", ""]}},
    ):
        assert deployed.made_roots([lifetime, *objects]) == {"1", "2"}
    lifetime = {"type": deployed.LIFETIME, "outputs": {deployed.ROOT_UIDS: ["1", ""]}}
    assert deployed.made_roots([lifetime, *objects]) == {"1"}
    assert deployed.made_roots([{"type": "kubernetes:core/v1:ConfigMap"}]) == frozenset()


async def test_namespace_that_a_refresh_has_read_is_foreign(there: list[ObjectRef]) -> None:
    there.append(ObjectRef(kind="Namespace", namespace="", name="n", uid="theirs", path=""))
    lifetime = {"type": deployed.LIFETIME, "outputs": {deployed.ROOT_UIDS: ["1", "2"]}}
    read = made("core/v1:Namespace", "n", "theirs"), made("core/v1:ConfigMap", "anchor-s", "x")
    found = await own_of(
        msgspec.structs.replace(RECORD, namespace="n"), Cli(state(lifetime, *read))
    )
    assert (found.own, found.namespace, found.namespace_uid) == ((), "n", None)


async def test_namespace_of_another_state_is_foreign(there: list[ObjectRef]) -> None:
    there.append(space("theirs"))
    for cli in (Cli(state()), Cli(None, is_known=False)):
        found = await own_of(RECORD, cli)
        assert (found.own, found.namespace, found.namespace_uid) == ((), None, None)
    there.append(space("ours"))
    found = await own_of(RECORD, Cli(state(made("core/v1:Namespace", "aiperf-s-ours", "ours"))))
    assert (found.own, found.namespace) == (("ours",), "aiperf-s-ours")


async def test_named_namespace_of_another_state_is_foreign(there: list[ObjectRef]) -> None:
    there.append(ObjectRef(kind="Namespace", namespace="", name="n", uid="theirs", path=""))
    found = await own_of(msgspec.structs.replace(RECORD, namespace="n"), Cli(state()))
    assert (found.own, found.namespace, found.namespace_uid) == ((), "n", None)


@pytest.mark.usefixtures("leases")
async def test_pending_namespace_of_dead_writer_is_own(there: list[ObjectRef]) -> None:
    there.extend([space("theirs"), space("ours")])
    found = await own_of(RECORD, Cli(state(making="aiperf-s-ours")))
    assert (found.own, found.namespace_uid) == (("ours",), "ours")


async def test_pending_anchor_is_own_in_its_namespace(
    there: list[ObjectRef], leases: dict[str, str]
) -> None:
    there.extend([ANCHOR, msgspec.structs.replace(ANCHOR, namespace="m", uid="theirs")])
    killed = Cli(state(anchor_in="n"))
    assert (await own_of(GUEST, killed)).own == ("anchor",)
    # A Lease is created after the anchor, so another process created both.
    leases["n"] = "alice@build"
    assert (await own_of(GUEST, killed)).own == ()
    leases["n"] = owner_name()
    assert (await own_of(GUEST, killed)).own == ("anchor",)


async def test_anchor_with_an_unread_lease_has_no_owner(
    there: list[ObjectRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_lease(*_: Any) -> None:
        raise Refused("etcdserver: request timed out (500)", status=500, reason="")

    there.append(ANCHOR)
    monkeypatch.setattr(ownership, "find_lease", find_lease)
    with pytest.raises(Refused, match="request timed out"):
        await own_of(GUEST, Cli(state(anchor_in="n")))


class UnfinishedUp:
    """A cluster in which a killed `up` created an anchor, and the state that it left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool = True) -> None:
        self.did: list[str] = []
        self.anchor = msgspec.structs.replace(ANCHOR, namespace="aiperf-s-1")
        left = () if is_removed else (self.anchor,)

        async def list_root_types(*_: Any, **__: Any) -> tuple[ObjectRef, ...]:
            return space("1"), self.anchor

        async def remove_by_label(_: Cluster, wanted: StackObjects) -> None:
            self.did.append(f"remove {wanted.own} in {wanted.namespace}")

        async def wait_until_gone(*_: Any, **__: Any) -> LeakReport:
            return LeakReport(left=left, not_checked=())

        monkeypatch.setattr(records, "list_root_types", list_root_types)
        monkeypatch.setattr(records, "remove_by_label", remove_by_label)
        monkeypatch.setattr(records, "wait_until_gone", wait_until_gone)

    async def removed(self, content: dict[str, Any]) -> list[str]:
        """Return the actions before the next `up`."""
        cli = Cli(content)
        record = msgspec.structs.replace(RECORD, namespace="aiperf-s-1", own=("1",))
        await records.remove_unfinished(record, CLUSTER, cast("PulumiCli", cli), self.did.append)
        return [*self.did, *cli.did]


@pytest.mark.usefixtures("leases")
async def test_next_run_removes_an_unfinished_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    own = made("core/v1:Namespace", "aiperf-s-1", "1")
    left = state(own, anchor_in="aiperf-s-1")
    message = "removing what a killed `pulumi up` was creating: ConfigMap aiperf-s-1/anchor-s"
    assert await UnfinishedUp(monkeypatch).removed(left) == [
        message, "remove ('anchor',) in None", "refresh and clear pending"
    ]  # fmt: skip
    # Pulumi keeps a pending creation even if a later `up` created the object.
    made_later = state(own, made("core/v1:ConfigMap", "anchor-s", "anchor"), anchor_in="aiperf-s-1")
    assert await UnfinishedUp(monkeypatch).removed(made_later) == []
    with pytest.raises(EnvironmentProblem, match="1 object is left of an `up` that was killed"):
        await UnfinishedUp(monkeypatch, is_removed=False).removed(left)


async def test_guest_has_an_anchor_and_no_namespace(there: list[ObjectRef]) -> None:
    there.append(ANCHOR)
    found = await own_of(GUEST, Cli(state(made("core/v1:ConfigMap", "anchor-s", "anchor"))))
    assert (found.own, found.namespace_uid) == (("anchor",), None)
    assert (await own_of(GUEST, Cli(state()))).own == ()


async def test_ownership_without_state_needs_record_or_label(there: list[ObjectRef]) -> None:
    there.extend([space("theirs"), space("ours")])
    known = msgspec.structs.replace(RECORD, own=("ours",))
    unreadable = Cli(None)
    for cli in (None, unreadable):
        assert (await own_of(known, cli)).namespace_uid == "ours"
    assert (await own_of(RECORD, None)).own == ("ours", "theirs")
    with pytest.raises(PulumiFailed):
        await own_of(RECORD, unreadable)
    # Its namespace is gone, but the state may list it.
    there.clear()
    known = msgspec.structs.replace(known, namespace="aiperf-s-ours", namespace_uid="ours")
    for cli in (None, unreadable):
        assert (await own_of(known, cli)).namespace_uid == "ours"
    assert (await own_of(known, Cli(state()))).namespace_uid is None


def test_existing_objects_with_stack_names_are_refused() -> None:
    taken = ObjectRef(kind="Deployment", namespace="n", name="worker-s", uid="1", path="")
    other = ObjectRef(kind="Deployment", namespace="n", name="web-s", uid="2", path="")
    free = Inventory(namespace="n", objects=(other,), not_listed=())
    refuse_taken(free, stack="s", plans=())
    before = Inventory(namespace="n", objects=(other, taken), not_listed=())
    with pytest.raises(EnvironmentProblem, match="namespace n has Deployment worker-s already"):
        refuse_taken(before, stack="s", plans=())


def test_existing_objects_of_a_release_are_refused() -> None:
    role = simple("ClusterRole", "engine", "rbac.authorization.k8s.io/v1")
    target = release_target(cluster_scoped=["ClusterRole/engine"])
    plans = [release_plan(deployment("router"), role, target=target)]
    found = ObjectRef(kind="ClusterRole", namespace="", name="engine", uid="1", path="")
    theirs = Inventory(namespace="", objects=(found,), not_listed=())
    with pytest.raises(EnvironmentProblem, match="the cluster has ClusterRole/engine already"):
        refuse_taken_outside(theirs, stack="s", plans=plans)
    refuse_taken_outside(theirs, stack="s", plans=[REQUEST.plan])
    ours = msgspec.structs.replace(found, labels={STACK_LABEL: "s"})
    own = Inventory(namespace="", objects=(ours,), not_listed=())
    refuse_taken_outside(own, stack="s", plans=plans)


async def test_unlisted_objects_may_be_taken_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def take_inventory(_: Cluster, namespace: str) -> Inventory:
        return Inventory(namespace=namespace, objects=(), not_listed=("secrets (500)",))

    monkeypatch.setattr(records, "take_inventory", take_inventory)
    home = StateHome({"XDG_STATE_HOME": str(tmp_path)})
    with pytest.raises(EnvironmentProblem, match=r"namespace n: .* delete them: secrets \(500\)"):
        await records.first_record(GUEST_REQUEST, CLUSTER, home, cast("PulumiCli", Cli({})))


@pytest.mark.usefixtures("there")
async def test_namespace_made_again_is_not_for_guests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def take_inventory(_: Cluster, namespace: str) -> Inventory:
        return Inventory(namespace=namespace, objects=(), not_listed=())

    monkeypatch.setattr(records, "take_inventory", take_inventory)
    # The preflight check recommends this mode.
    home, cli = StateHome({"XDG_STATE_HOME": str(tmp_path)}), Cli(state(made(SPACE, "n", "1")))
    cluster = FakeCluster()
    vars(cluster).update(identity="uid", context="c")

    async def recorded() -> RunRecord:
        return await records.first_record(
            GUEST_REQUEST, cluster.typed, home, cast("PulumiCli", cli)
        )

    assert (await recorded()).namespace == "n"
    cluster.objects["/api/v1/namespaces/n"] = {"metadata": {"name": "n", "uid": "theirs"}}
    with pytest.raises(StackInUse, match="namespace n of stack s was replaced by another"):
        await recorded()


@pytest.mark.usefixtures("there")
async def test_objects_since_the_last_run_are_foreign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = ObjectRef(kind="Deployment", namespace="n", name="worker-s", uid="1", path="")

    async def take_inventory(_: Cluster, namespace: str) -> Inventory:
        return Inventory(namespace=namespace, objects=(found,), not_listed=())

    monkeypatch.setattr(records, "take_inventory", take_inventory)
    home, cluster = StateHome({"XDG_STATE_HOME": str(tmp_path)}), FakeCluster()
    vars(cluster).update(identity="uid", context="c")
    home.save(GUEST)

    async def recorded() -> RunRecord:
        cli = cast("PulumiCli", Cli({}))
        return await records.first_record(GUEST_REQUEST, cluster.typed, home, cli)

    with pytest.raises(EnvironmentProblem, match="namespace n has Deployment worker-s already"):
        await recorded()
    # An earlier run left it.
    found = msgspec.structs.replace(found, labels={STACK_LABEL: "s"})
    assert (await recorded()).before == GUEST.before


def test_objects_of_dead_runner_are_not_foreign() -> None:
    left = ObjectRef(
        kind="Secret", namespace="n", name="keys-s", uid="1", path="", owners=("anchor",)
    )
    before = Inventory(namespace="n", objects=(ANCHOR, left), not_listed=())
    assert without_dependents(before, ("anchor",)).objects == ()
    assert without_dependents(before, ()) == before


async def test_stack_of_another_state_is_refused(leases: dict[str, str]) -> None:
    leases.update({"aiperf-s-2": "alice@build", "n": "alice@build"})
    own = msgspec.structs.replace(RECORD, own=("1",))
    await refuse_others([space("1")], own, CLUSTER)
    for other, place in ((space("2"), "aiperf-s-2"), (ANCHOR, "n")):
        message = f"up already in namespace {place}, of alice@build, .* gc s"
        with pytest.raises(EnvironmentProblem, match=message):
            await refuse_others([space("1"), other], own, CLUSTER)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (
            "error: the stack is currently locked by 1 lock(s).\n f: created by a@b (pid 1) at x",
            True,
        ),
        ("error: [409] Conflict: Another update is currently in progress.", True),
        ("error: [409] Conflict: stack already exists", False),
    ],
)
def test_locked_state_is_recognised(errors: str, expected: bool) -> None:
    assert is_locked(Ended(code=255, out="", errors=errors)) is expected


REQUEST = StackRequest(stack="s", config=small_config("http://10.0.0.1:8000"), environ={})


def state_of_run(run_id: str, *, is_complete: bool = True) -> dict[str, Any]:
    """Return the state of an `up` that ended or was interrupted."""
    container = {"name": "worker", "env": [{"name": RUN_ID, "value": run_id}]}
    pods = {"spec": {"template": {"spec": {"containers": [container]}}}}
    outputs = {"runId": run_id} if is_complete else {}
    return state(
        {"type": "pulumi:pulumi:Stack", "outputs": outputs},
        made("core/v1:Namespace", "aiperf-s-1", "1"),
        made("apps/v1:Deployment", "worker-s", "w", inputs=pods),
    )


async def test_deployed_run_is_refused_with_remedies(there: list[ObjectRef]) -> None:
    there.append(space("1"))
    run_id = REQUEST.plan.identity.run_id
    with pytest.raises(EnvironmentProblem) as refused:
        await bring_up.refuse_same_run(REQUEST, CLUSTER, state_of_run(run_id))
    for words in (f"run {run_id}", "results s", "--generation 2", "gc s"):
        assert words in str(refused.value)
    await bring_up.refuse_same_run(REQUEST, CLUSTER, state_of_run("another"))
    await bring_up.refuse_same_run(REQUEST, CLUSTER, state_of_run(run_id, is_complete=False))
    # A run that has removed itself or is about to.
    there[:] = [space("2")]
    await bring_up.refuse_same_run(REQUEST, CLUSTER, state_of_run(run_id))
    there[:] = [msgspec.structs.replace(space("1"), is_going=True)]
    await bring_up.refuse_same_run(REQUEST, CLUSTER, state_of_run(run_id))


async def test_removal_is_refused_while_others_use_it(
    there: list[ObjectRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, strangers = list[str](), list[str]()

    async def refuse_held(_: Cluster, stack: str, namespace: str, me: Holder) -> None:
        if namespace in held:
            raise StackInUse(f"{namespace} is held")

    async def refuse_used(record: RunRecord, content: dict[str, Any], **options: bool) -> None:
        await records.refuse_used(
            record, CLUSTER, cast("PulumiCli", Cli(content)), this_process({}), **options
        )

    async def refuse_strangers(_: Cluster, stack: str, namespace: str, own: tuple[str]) -> None:
        if namespace in strangers:
            raise StackInUse(f"{namespace} was made again")

    monkeypatch.setattr(records, "refuse_held", refuse_held)
    monkeypatch.setattr(namesakes, "refuse_strangers", refuse_strangers)
    own = msgspec.structs.replace(RECORD, own=("1",), namespace="aiperf-s-1", namespace_uid="1")
    there.append(space("1"))
    await refuse_used(own, state())
    held.append("aiperf-s-1")
    with pytest.raises(StackInUse, match="aiperf-s-1 is held"):
        await refuse_used(own, state())
    # The process that took it over removes it too.
    await refuse_used(own, state(), is_lost=True)
    # Another state created this one.
    there[:], held[:] = [space("2")], ["aiperf-s-2"]
    await refuse_used(own, state())
    # Its own stack is gone, and another was created with the same state since.
    content = state(made("core/v1:Namespace", "aiperf-s-2", "2"))
    for is_lost in (False, True):
        with pytest.raises(StackInUse, match="aiperf-s-2 is held"):
            await refuse_used(own, content, is_lost=is_lost)
    strangers.append("aiperf-s-1")
    with pytest.raises(StackInUse, match="aiperf-s-1 was made again"):
        await refuse_used(own, state(), is_lost=True)
    # A namespace that no record lists as the stack's own belongs to another owner.
    await refuse_used(msgspec.structs.replace(own, namespace_uid=None), state(), is_lost=True)
    # Pulumi deletes by name what another state created in the same namespace.
    there[:] = [ANCHOR]
    guest = msgspec.structs.replace(GUEST, own=("gone",))
    for is_lost in (False, True):
        with pytest.raises(StackInUse, match="now contains another stack"):
            await refuse_used(guest, state(), is_lost=is_lost)
    # An `up` that was refused there created nothing.
    await refuse_used(GUEST, state())


async def test_up_begins_only_when_users_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_roots(*_: Any, **__: Any) -> tuple[ObjectRef, ...]:
        raise Unreachable("stacks named s cannot be searched for")

    monkeypatch.setattr(bring_up, "find_roots", find_roots)
    start = bring_up.Start(
        plan=REQUEST.plan, is_change=False, unschedulable_s=0.0, deadline_mono_s=None
    )
    keeper = LeaseKeeper(CLUSTER, "s", this_process({}), print)
    # Like another process that holds the state: existing objects are not removed.
    with pytest.raises(bring_up.StateLocked, match="cannot be searched for"):
        await bring_up.up(
            REQUEST, cast("PulumiCli", None), start, keeper=keeper, interrupts=Interrupts()
        )


class StartingCli:
    """Replaces the CLI in an `up` that has created the Lease and continues until it is stopped."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.folder = folder
        made = {"type": LEASE, "op": "create", "new": {"id": f"{namespace}/owner-s"}}
        self._event = {"resOutputsEvent": {"metadata": made}}

    async def add(self) -> None:
        return None

    async def up(self, on_event: OnEvent, *, stop: asyncio.Event) -> Ended:
        on_event(self._event)
        await stop.wait()
        return Ended(code=255, out="", errors="error: it was cancelled")


@pytest.mark.usefixtures("there", "leases")
async def test_start_is_judged_by_its_own_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def wait_for_startup_failure(_: Cluster, *, namespace: str, **__: Any) -> str:
        return f"a pod in namespace {namespace} crashes"

    monkeypatch.setattr(bring_up, "wait_for_startup_failure", wait_for_startup_failure)
    start = bring_up.Start(
        plan=REQUEST.plan, is_change=False, unschedulable_s=0.0, deadline_mono_s=None
    )
    keeper = LeaseKeeper(CLUSTER, "s", this_process({}), print)
    cli = cast("PulumiCli", StartingCli(tmp_path, "aiperf-s-1"))
    # Pulumi chooses the name. Elsewhere, pods of another stack with this name may fail.
    with pytest.raises(EnvironmentProblem, match="a pod in namespace aiperf-s-1 crashes"):
        await bring_up.up(REQUEST, cli, start, keeper=keeper, interrupts=Interrupts())
    await keeper.close(is_kept=False)
