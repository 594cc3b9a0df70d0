"""`gc` removes what certainly belongs to nobody, and reports what it cannot determine."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster import ownership
from aiperf_svc.adapters.cluster.api.connection import Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import StackInUse, TakenOver
from aiperf_svc.adapters.cluster.preflight.rights import Right
from aiperf_svc.adapters.cluster.teardown.event_undo import Undo
from aiperf_svc.adapters.cluster.teardown.inventory import Inventory, StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.cluster.teardown.removal import FoundStack
from aiperf_svc.adapters.pulumi import namesakes
from aiperf_svc.adapters.pulumi.cli import Ended
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal import output
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.runner.stack import garbage, records, teardown
from aiperf_svc.runner.stack.garbage import (
    Collected,
    GarbageRequest,
    collect_everywhere,
    collect_garbage,
)

RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False,
    own=("ours",),
)  # fmt: skip
FINE = Ended(code=0, out="", errors="")
BROKEN = Ended(code=255, out="", errors="error: no plugin")
LOCKED = Ended(
    code=255, out="", errors="error: locked by 1 lock(s)\n  f: created by a@elsewhere (pid 1) at x"
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def space(uid: str) -> ObjectRef:
    return ObjectRef(kind="Namespace", namespace="", name=uid, uid=uid, path="")


class FakeStackRun:
    """A fake cluster and state that record changes."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"XDG_STATE_HOME": str(folder), "PULUMI_HOME": str(folder)}
        self.home = StateHome(self.environ)
        self.overdue: tuple[str, ...] = ()
        self.report = LeakReport(left=(), not_checked=())
        self.has_state = True
        self.is_passphrase_missing = False
        self.refreshed = [FINE]
        self.removed: list[tuple[str, ...] | None] = []
        self.did: list[str] = []
        self.places: list[tuple[str | None, str | None]] = []
        self.identities = {"elsewhere": "other uid"}
        self.silent: set[str | None] = set()
        self.state: dict[str, Any] = {"deployment": {}}
        self.claims: list[tuple[str, bool, bool]] = []
        """Namespaces of claimed Leases, whether each was our own, and whether it was taken over."""
        self.kept: list[str] = []
        """Namespaces whose Leases are renewed."""
        self.loss: TakenOver | None = None
        """The loss that is reported when another process takes a Lease."""
        self.kept_during: list[tuple[str, tuple[str, ...]]] = []
        """Leases that were renewed during each change of the state and of the cluster."""
        self.in_use = ""
        self.roots = [space("ours"), space("theirs")]
        self.changed: list[tuple[str, Undo]] = []
        """Changes of events that were not undone, according to their records."""
        self.strangers: tuple[str, ...] = ()
        """Names of namespaces that were recreated."""
        self.is_held = False
        """Whether a process on this machine holds the Lease."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called when that process's stack is taken over."""

    async def collected(self, *stacks: str, **more: Any) -> Collected:
        request = GarbageRequest(stacks=stacks, environ=self.environ, **{"yes": True, **more})
        done = Collected()
        await collect_garbage(request, done)
        return done

    async def collected_everywhere(self) -> Collected:
        return await collect_everywhere(GarbageRequest(stacks=(), environ=self.environ, yes=True))

    # --- as PulumiCli ---

    async def export(self) -> dict[str, Any]:
        return self.state if self.has_state else {}

    async def refresh(self, *, clear_pending: bool = False) -> Ended:
        self.kept_during.append(("refresh", tuple(self.kept)))
        self.did.append("refresh")
        return self.refreshed.pop(0) if len(self.refreshed) > 1 else self.refreshed[0]

    async def unlock(self) -> None:
        self.did.append("unlock")

    async def destroy(self, *_: Any, **__: Any) -> Ended:
        self.did.append("destroy")
        return FINE


@pytest.fixture
def stack_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    stack_run = FakeStackRun(tmp_path)

    @asynccontextmanager
    async def connect(*, kubeconfig: str | None, context: str | None) -> Any:
        stack_run.places.append((kubeconfig, context))
        if context in stack_run.silent:
            raise Unreachable(f"{context} does not respond")
        yield SimpleNamespace(identity=stack_run.identities.get(context or "", "uid"), context="c")

    async def list_stacks(*_: Any, **__: Any) -> tuple[FoundStack, ...]:
        return (
            FoundStack(
                stack="s", namespaces=("n",), expires=None, objects=3,
                is_overdue=bool(stack_run.overdue), overdue=stack_run.overdue,
            ),
        )  # fmt: skip

    @contextmanager
    def open_project(*_: Any, **__: Any) -> Iterator[FakeStackRun]:
        if stack_run.is_passphrase_missing:
            raise ConfigError("the stack's state needs a passphrase")
        yield stack_run

    class Keeper:
        def __init__(self, *_: Any) -> None:
            self.loss = stack_run.loss

        def begin(self, namespace: str) -> None:
            self._namespace = namespace
            stack_run.kept.append(namespace)

        async def close(self, *, is_kept: bool) -> None:
            stack_run.kept.remove(self._namespace)

    async def remove_by_label(_: Any, wanted: StackObjects) -> None:
        stack_run.kept_during.append(("remove", tuple(stack_run.kept)))
        stack_run.removed.append(wanted.own)

    async def find_left(*_: Any, **__: Any) -> LeakReport:
        return stack_run.report

    async def find_roots(*_: Any, **__: Any) -> tuple[ObjectRef, ...]:
        return tuple(stack_run.roots)

    async def changed_objects(_: Any, stack: str = "") -> list[tuple[str, Undo]]:
        return [each for each in stack_run.changed if stack in ("", each[0])]

    async def carry_out(undo: Undo, _: Any) -> bool:
        stack_run.did.append(undo.text)
        return True

    async def denied(*_: Any) -> frozenset[Right]:
        return frozenset()

    async def claim(
        _: Any, stack: str, namespace: str, *, is_own: bool, take_over: bool, **__: Any
    ) -> bool:
        stack_run.claims.append((namespace, is_own, take_over))
        if stack_run.in_use and not take_over:
            raise StackInUse(stack_run.in_use)
        return bool(stack_run.in_use)

    async def refuse_strangers(_: Any, stack: str, namespace: str, own: tuple[str, ...]) -> None:
        if namespace in stack_run.strangers:
            raise StackInUse(f"namespace {namespace} of stack {stack} is gone")

    async def take_from_process(*_: Any, **__: Any) -> bool:
        if stack_run.is_held:
            stack_run.on_taken()
        return stack_run.is_held

    @asynccontextmanager
    async def watched_contact(*_: Any, **__: Any) -> Any:
        yield

    for name, fake in {"connect": connect, "list_stacks": list_stacks, "open_project": open_project,
                       "remove_by_label": remove_by_label, "find_left": find_left,
                       "wait_until_gone": find_left,
                       "watched_contact": watched_contact, "claim": claim,
                       "changed_objects": changed_objects, "LeaseKeeper": Keeper,
                       "take_from_process": take_from_process,
                       "find_roots": find_roots}.items():  # fmt: skip
        monkeypatch.setattr(garbage, name, fake)
    monkeypatch.setattr(Undo, "carry_out", carry_out)
    monkeypatch.setattr(records, "find_roots", find_roots)
    monkeypatch.setattr(teardown, "denied", denied)
    monkeypatch.setattr(namesakes, "refuse_strangers", refuse_strangers)
    return stack_run


CORDON = Undo(kind="uncordon", name="n1", uid="u")


async def test_event_of_a_gone_stack_is_undone(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.changed, stack_run.roots = [("s", CORDON), ("t", CORDON)], []
    done = await stack_run.collected()
    assert stack_run.did.count("node n1 is uncordoned") == 1
    assert list(done.removed) == ["s"]
    (other,) = (line for line in done.not_touched if line.startswith("t: "))
    assert other.endswith("gc t: node n1 is uncordoned")


async def test_event_of_a_present_stack_needs_its_record(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.changed = [("s", CORDON)]
    await stack_run.collected("s")
    assert CORDON.text not in stack_run.did


# --- what is removed -----------------------------------------------------------------------------


async def test_only_objects_of_own_run_are_removed(stack_run: FakeStackRun) -> None:
    for stacks in ((), ("s",)):
        stack_run.home.save(RECORD)
        done = await stack_run.collected(*stacks)
        assert (done.exit_code, list(done.removed)) == (ExitCode.OK, ["s"])
        assert stack_run.home.load("s") is None
    assert stack_run.removed == [("ours",), ("ours",)]


async def test_gc_names_the_folder_to_resume(
    stack_run: FakeStackRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment.json").touch()
    for artifacts, is_advised in (
        ("", False),
        (str(tmp_path), True),
        (str(tmp_path / "shapes" / "2"), True),
        (str(tmp_path / "x"), False),
    ):
        stack_run.home.save(msgspec.structs.replace(RECORD, artifacts=artifacts))
        await stack_run.collected("s")
        advice = f"--resume {tmp_path} continues its experiment instead"
        assert (advice in capsys.readouterr().err) is is_advised


async def test_gc_searches_all_recorded_clusters(stack_run: FakeStackRun) -> None:
    there = msgspec.structs.replace(RECORD, cluster="other uid", context="elsewhere")
    for record in (RECORD, *(msgspec.structs.replace(there, stack=name) for name in "tu")):
        stack_run.home.save(record)
    done = await stack_run.collected_everywhere()
    assert list(done.removed) == ["s", "t", "u"]
    assert stack_run.places == [(None, None), (None, "elsewhere")]
    assert stack_run.home.records() == ()


async def test_silent_cluster_is_named_others_are_searched(stack_run: FakeStackRun) -> None:
    stack_run.silent = {None}
    with pytest.raises(Unreachable):
        await stack_run.collected_everywhere()
    there = msgspec.structs.replace(RECORD, cluster="other uid", context="elsewhere")
    third = msgspec.structs.replace(RECORD, stack="t", cluster="third", context="gone")
    stack_run.home.save(msgspec.structs.replace(third, is_ephemeral=True))
    stack_run.home.save(there)
    stack_run.silent = {None, "gone"}
    done = await stack_run.collected_everywhere()
    assert list(done.removed) == ["s"]
    file = stack_run.home.folder / "runs" / "t.json"
    assert done.not_reached == {
        "current context": "None does not respond",
        "t": "gone does not respond; if that cluster no longer exists, delete its record: rm -r "
        f"{file} {stack_run.home.ephemeral('t')}",
    }
    assert file.is_file()


async def test_stack_in_unreachable_cluster_is_an_error(stack_run: FakeStackRun) -> None:
    for stack in "tu":
        record = msgspec.structs.replace(RECORD, stack=stack, cluster="third", context="gone")
        stack_run.home.save(record)
    stack_run.silent = {"gone"}
    done = await stack_run.collected_everywhere()
    assert [each.partition(";")[0] for each in done.not_reached.values()] == [
        "gone does not respond"
    ] * 2
    assert done.exit_code is ExitCode.ERROR


async def test_context_of_another_cluster_is_named(stack_run: FakeStackRun) -> None:
    for stack in "tu":
        record = msgspec.structs.replace(RECORD, stack=stack, cluster="gone", context="elsewhere")
        stack_run.home.save(record)
    done = await stack_run.collected_everywhere()
    assert (done.removed, done.clusters) == ({}, ["uid"])
    assert stack_run.places == [(None, None), (None, "elsewhere")]
    assert list(done.not_reached) == ["t", "u"]
    assert "kube-system gone" in done.not_reached["t"]
    assert "use --context or --kubeconfig" in done.not_reached["t"]
    assert done.exit_code is ExitCode.ERROR


async def test_unrecorded_stack_is_removed_if_named_or_overdue(stack_run: FakeStackRun) -> None:
    assert (await stack_run.collected()).removed == {}
    stack_run.overdue = ("theirs",)
    await stack_run.collected()
    await stack_run.collected("s")
    assert stack_run.removed == [("theirs",), None]


async def test_another_stack_of_same_name_is_untouched(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.report = LeakReport(left=(), not_checked=(), others=(space("theirs"),))
    done = await stack_run.collected()
    assert done.not_touched == ["s: Namespace theirs, another stack with the same name"]


async def test_clean_report_needs_every_type_checked(stack_run: FakeStackRun) -> None:
    assert (await stack_run.collected("s")).removed == {"s": "nothing is left"}
    stack_run.report = LeakReport(left=(), not_checked=("nodes (not allowed)",))
    done = await stack_run.collected("s")
    assert done.removed["s"].startswith("nothing is left of the types that the stack uses; 1 other")
    pods = ("pods (not allowed)",)
    stack_run.home.save(RECORD)
    stack_run.report = LeakReport(left=(), not_checked=pods, unverified=pods)
    done = await stack_run.collected("s")
    assert (done.exit_code, done.removed) == (ExitCode.UNVERIFIED, {})
    assert "pods could not be listed" in done.unverified["s"]
    assert stack_run.home.load("s") == RECORD


async def test_objects_that_may_not_be_deleted_are_left(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def remove_by_label(*_: Any) -> None:
        raise EnvironmentProblem("1 of 1 objects of stack s cannot be deleted: no right")

    monkeypatch.setattr(garbage, "remove_by_label", remove_by_label)
    stack_run.home.save(RECORD)
    stack_run.report = LeakReport(left=(space("ours"),), not_checked=())
    done = await stack_run.collected("s")
    assert (done.exit_code, done.left) == (ExitCode.LEAKED, {"s": ["Namespace ours"]})
    assert "cannot be deleted: no right" in capsys.readouterr().err
    assert stack_run.home.load("s") == RECORD


# --- when others use it --------------------------------------------------------------------------


async def test_stack_in_use_is_refused_or_skipped(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.in_use = "alice@build (process 42) works on stack s"
    done = await stack_run.collected()
    assert (done.exit_code, done.removed, stack_run.removed) == (ExitCode.OK, {}, [])
    assert done.not_touched == [f"s: {stack_run.in_use}"]

    named = await stack_run.collected("s")
    assert (named.exit_code, stack_run.removed) == (ExitCode.ERROR, [])
    assert named.refused == {"s": stack_run.in_use}
    assert stack_run.home.load("s") == RECORD
    # A refresh locks the state, which may be shared with the process that uses the stack.
    assert stack_run.did == []


async def test_lease_is_renewed_until_the_removal(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    assert (await stack_run.collected("s")).exit_code is ExitCode.OK
    # When the objects are gone, a Lease of the same name may belong to a new stack.
    assert stack_run.kept_during == [("refresh", ("ours",)), ("remove", ("ours",)), ("refresh", ())]


async def test_stack_taken_over_during_a_refresh_stays(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.loss = TakenOver("stack s was taken over by bob@laptop (process 7)")
    done = await stack_run.collected("s")
    assert (done.exit_code, done.refused) == (ExitCode.ERROR, {"s": str(stack_run.loss)})
    assert (stack_run.removed, stack_run.kept) == ([], [])
    assert stack_run.home.load("s") == RECORD


async def test_namesake_in_same_namespace_is_kept_from_pulumi(stack_run: FakeStackRun) -> None:
    stack_run.home.save(msgspec.structs.replace(RECORD, namespace="theirs"))
    stack_run.roots = [space("theirs")]
    done = await stack_run.collected()
    assert (done.exit_code, done.removed) == (ExitCode.OK, {})
    (line,) = done.not_touched
    assert line.startswith("s: namespace theirs now contains another stack s, which Pulumi")
    named = await stack_run.collected("s")
    assert (named.exit_code, list(named.refused)) == (ExitCode.ERROR, ["s"])
    assert (stack_run.did, stack_run.removed, stack_run.claims) == ([], [], [])
    assert stack_run.home.load("s") is not None

    taken = await stack_run.collected("s", take_over=True)
    assert (taken.exit_code, list(taken.removed)) == (ExitCode.OK, ["s"])
    assert stack_run.removed == [("ours", "theirs")]
    assert stack_run.claims == [("theirs", False, True)]
    assert stack_run.home.load("s") is None


async def test_objects_of_strangers_are_kept_from_pulumi(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = ObjectRef(kind="ClusterRole", namespace="", name="engine", uid="1", path="")

    async def list_cluster_scoped(_: Any) -> Inventory:
        return Inventory(namespace="", objects=(role,), not_listed=())

    monkeypatch.setattr(namesakes, "list_cluster_scoped", list_cluster_scoped)
    metadata = {"name": "engine", "uid": "0"}
    kind = "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole"
    made = {"type": kind, "outputs": {"metadata": metadata}}
    stack_run.state = {"deployment": {"resources": [made]}}
    done = await stack_run.collected("s")
    assert "ClusterRole/engine now belong to others" in done.refused["s"]
    assert (stack_run.did, stack_run.removed) == ([], [])
    role = msgspec.structs.replace(role, labels={STACK_LABEL: "s"})
    assert list((await stack_run.collected("s")).removed) == ["s"]


async def test_namespace_of_strangers_is_kept_from_pulumi(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    metadata = {"name": "n", "uid": "ours"}
    made = {"type": "kubernetes:core/v1:Namespace", "outputs": {"metadata": metadata}}
    stack_run.state, stack_run.strangers = {"deployment": {"resources": [made]}}, ("n",)
    done = await stack_run.collected("s", take_over=True)
    assert done.refused == {"s": "namespace n of stack s is gone"}
    assert (stack_run.did, stack_run.removed) == ([], [])
    assert stack_run.home.load("s") == RECORD


async def test_gc_skips_stacks_of_live_runners(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    with stack_run.home.hold("s"):
        done = await stack_run.collected()
        assert (done.exit_code, done.refused) == (ExitCode.OK, {})
        assert "is working on it" in done.not_touched[0]
        assert (await stack_run.collected("s")).exit_code is ExitCode.ERROR
    assert stack_run.removed == []


@pytest.mark.parametrize("is_removed", [True, False])
async def test_takeover_ends_the_runner_of_this_machine(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    monkeypatch.setattr(garbage, "POLL_S", 0.0)
    stack_run.home.save(RECORD)
    with contextlib.ExitStack() as runner:
        runner.enter_context(stack_run.home.hold("s"))

        def end_run() -> None:
            if is_removed:
                stack_run.home.forget("s")
            runner.close()

        stack_run.on_taken = end_run
        refused = await stack_run.collected("s", take_over=True)
        assert "is working on it" in refused.refused["s"]
        stack_run.is_held = True
        unnamed = await stack_run.collected(take_over=True)
        assert "is working on it" in unnamed.not_touched[0]
        done = await stack_run.collected("s", take_over=True)
    found = "its own run has removed it" if is_removed else "nothing is left"
    assert (done.exit_code, done.removed) == (ExitCode.OK, {"s": found})
    assert stack_run.home.load("s") is None


async def test_takeover_waits_for_the_lock_of_the_state(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "POLL_S", 0.0)
    stack_run.in_use = "in use"
    stack_run.refreshed = [LOCKED, LOCKED, FINE]
    assert (await stack_run.collected("s", take_over=True)).exit_code is ExitCode.OK
    assert "unlock" not in stack_run.did


async def test_stack_without_visible_roots_needs_its_lease(stack_run: FakeStackRun) -> None:
    # Without the right to list ConfigMaps and namespaces, only other objects are seen.
    server = ObjectRef(kind="Deployment", namespace="n", name="target-s", uid="d", path="")
    stack_run.roots, stack_run.has_state = [], False
    stack_run.report = LeakReport(left=(server,), not_checked=(), unverified=("configmaps",))
    stack_run.in_use = "stack s in namespace n belongs to alice@build"
    done = await stack_run.collected("s")
    assert (done.refused, stack_run.removed) == ({"s": stack_run.in_use}, [])
    assert stack_run.claims == [("n", False, False)]
    await stack_run.collected("s", namespace="elsewhere")
    assert stack_run.claims[1:] == []


async def test_takeover_needs_its_flag(stack_run: FakeStackRun) -> None:
    stack_run.in_use = "in use"
    assert (await stack_run.collected("s", take_over=True)).exit_code is ExitCode.OK
    assert stack_run.claims == [("ours", False, True), ("theirs", False, True)]
    assert stack_run.removed == [None]


async def test_record_state_or_expiry_proves_ownership(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    await stack_run.collected("s")
    made = {"type": "kubernetes:core/v1:Namespace", "outputs": {"metadata": {"uid": "theirs"}}}
    stack_run.state = {"deployment": {"resources": [made]}}
    await stack_run.collected("s")
    stack_run.state, stack_run.overdue = {"deployment": {}}, ("ours",)
    await stack_run.collected()
    assert stack_run.claims == [
        ("ours", True, False), ("theirs", True, False), ("ours", True, False)
    ]  # fmt: skip
    assert stack_run.removed == [("ours",), ("theirs",), ("ours",)]


async def test_killed_plain_up_is_proved_by_its_state(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_lease(*_: Any) -> None:
        return None

    monkeypatch.setattr(ownership, "find_lease", find_lease)
    # Pulumi was killed before it recorded the namespace, and had created none before.
    pending = {"type": "kubernetes:core/v1:Namespace", "inputs": {"metadata": {"name": "ours"}}}
    making = [{"type": "creating", "resource": pending}]
    stack_run.state = {"deployment": {"pending_operations": making}}
    done = await stack_run.collected("s")
    assert (done.exit_code, stack_run.removed) == (ExitCode.OK, [("ours",)])
    assert stack_run.claims == [("ours", True, False)]
    # Or was called again and has created another one.
    made = {"type": "kubernetes:core/v1:Namespace", "outputs": {"metadata": {"uid": "theirs"}}}
    stack_run.state["deployment"]["resources"] = [made]
    await stack_run.collected("s")
    assert stack_run.removed[1] == ("ours", "theirs")


async def test_lost_state_falls_back_to_record(stack_run: FakeStackRun, tmp_path: Path) -> None:
    backend = f"file://{tmp_path / 'lost'}?metadata=skip"
    stack_run.home.save(msgspec.structs.replace(RECORD, backend=backend))
    stack_run.is_passphrase_missing = True
    done = await stack_run.collected()
    assert (done.exit_code, stack_run.removed) == (ExitCode.OK, [("ours",)])
    assert stack_run.home.load("s") is None
    # A record without names proves nothing.
    stack_run.home.save(msgspec.structs.replace(RECORD, backend=backend, own=()))
    assert (await stack_run.collected()).exit_code is ExitCode.ERROR


# --- when it is unknown --------------------------------------------------------------------------


async def test_missing_passphrase_leaves_use_unknown(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.is_passphrase_missing = True
    done = await stack_run.collected("s")
    assert (done.exit_code, stack_run.removed) == (ExitCode.ERROR, [])
    assert "needs a passphrase" in done.refused["s"]
    assert "--force" in done.refused["s"]

    forced = await stack_run.collected("s", force=True)
    assert (forced.exit_code, stack_run.removed) == (ExitCode.OK, [("ours",)])
    # For whoever has the passphrase, the state is unchanged.
    assert (stack_run.did, stack_run.home.load("s")) == ([], RECORD)


async def test_failed_refresh_leaves_use_unknown(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.refreshed = [BROKEN]
    done = await stack_run.collected("s")
    assert (done.exit_code, stack_run.removed) == (ExitCode.ERROR, [])
    assert "no plugin" in done.refused["s"]


async def test_a_lock_from_elsewhere_needs_force(stack_run: FakeStackRun) -> None:
    stack_run.refreshed = [LOCKED, LOCKED, FINE]
    assert (await stack_run.collected("s")).exit_code is ExitCode.ERROR
    assert (await stack_run.collected("s", force=True)).exit_code is ExitCode.OK
    assert stack_run.did[-4:] == ["refresh", "unlock", "refresh", "destroy"]


async def test_unrepaired_state_keeps_its_record(stack_run: FakeStackRun) -> None:
    stack_run.home.save(RECORD)
    stack_run.refreshed = [FINE, BROKEN]
    done = await stack_run.collected("s")
    assert done.exit_code is ExitCode.ERROR
    assert "nothing is left in the cluster, but the state could not be" in done.refused["s"]
    assert stack_run.home.load("s") == RECORD


async def test_unknown_stack_is_reported_as_unknown(stack_run: FakeStackRun) -> None:
    stack_run.has_state = False
    done = await stack_run.collected("nosuch")
    assert (done.unknown, done.removed, done.exit_code) == (["nosuch"], {}, ExitCode.OK)
    stack_run.home.save(msgspec.structs.replace(RECORD, stack="nosuch"))
    assert list((await stack_run.collected("nosuch")).removed) == ["nosuch"]


async def test_objects_with_only_the_label_are_untouched(stack_run: FakeStackRun) -> None:
    stack_run.report = LeakReport(left=(), not_checked=(), strays=(space("theirs"),))
    done = await stack_run.collected("s")
    assert done.not_touched == [f"s: Namespace theirs, {garbage.STRAY}"]


async def test_stateless_stack_is_removed_by_label(stack_run: FakeStackRun) -> None:
    stack_run.has_state = False
    assert list((await stack_run.collected("s")).removed) == ["s"]
    assert stack_run.did == []


# --- confirmations -------------------------------------------------------------------------------


async def test_nothing_is_removed_without_confirmation(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "can_ask", lambda: False)
    with pytest.raises(ConfigError, match="--yes removes without a question"):
        await stack_run.collected("s", yes=False)
    assert stack_run.removed == []


async def test_invalid_stack_name_is_refused(stack_run: FakeStackRun) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./s'"):
        await stack_run.collected("../s")


async def test_cluster_comes_from_flags_record_or_environment(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    stack_run.environ["AIPERF_CONTEXT"] = "variable"
    await stack_run.collected()
    await stack_run.collected("s")
    stack_run.home.save(msgspec.structs.replace(RECORD, kubeconfig="/k", context="run's"))
    await stack_run.collected("s", context="flag")
    assert stack_run.places == [(None, "variable"), (None, "variable"), ("/k", "flag")]
