"""`gc` removes what is surely nobody's any more, and says what it does not know."""

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import StackInUse
from aiperf_svc.adapters.cluster.preflight.rights import Right
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.cluster.teardown.removal import FoundStack
from aiperf_svc.adapters.pulumi.cli import Ended
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal import output
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.stack import bring_up, garbage, teardown
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
    """A cluster and a state; what was done to them."""

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
        """Namespaces whose Leases were claimed, whether as our own, and whether by taking over."""
        self.in_use = ""

    async def collected(self, *stacks: str, **more: Any) -> Collected:
        request = GarbageRequest(stacks=stacks, environ=self.environ, **{"yes": True, **more})
        return await collect_garbage(request)

    # --- as PulumiCli ---

    async def export(self) -> dict[str, Any]:
        return self.state if self.has_state else {}

    async def refresh(self, *, clear_pending: bool = False) -> Ended:
        return self.refreshed.pop(0) if len(self.refreshed) > 1 else self.refreshed[0]

    async def unlock(self) -> None:
        self.did.append("unlock")

    async def destroy(self, *_: Any, **__: Any) -> Ended:
        self.did.append("destroy")
        return FINE


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    played = FakeStackRun(tmp_path)

    @asynccontextmanager
    async def connect(*, kubeconfig: str | None, context: str | None) -> Any:
        played.places.append((kubeconfig, context))
        if context in played.silent:
            raise Unreachable(f"{context} does not respond")
        yield SimpleNamespace(identity=played.identities.get(context or "", "uid"), context="c")

    async def list_stacks(*_: Any, **__: Any) -> tuple[FoundStack, ...]:
        return (
            FoundStack(
                stack="s", namespaces=("n",), created=NOW, run_ids=(), expires=None, objects=3,
                is_overdue=bool(played.overdue), overdue=played.overdue,
            ),
        )  # fmt: skip

    @contextmanager
    def open_project(*_: Any, **__: Any) -> Iterator[FakeStackRun]:
        if played.is_passphrase_missing:
            raise ConfigError("the stack's state needs a passphrase")
        yield played

    async def remove_by_label(_: Any, wanted: StackObjects) -> None:
        played.removed.append(wanted.own)

    async def find_left(*_: Any, **__: Any) -> LeakReport:
        return played.report

    async def find_roots(*_: Any, **__: Any) -> tuple[ObjectRef, ...]:
        return (space("ours"), space("theirs"))

    async def denied(*_: Any) -> frozenset[Right]:
        return frozenset()

    async def claim(
        _: Any, stack: str, namespace: str, *, is_own: bool, take_over: bool, **__: Any
    ) -> None:
        played.claims.append((namespace, is_own, take_over))
        if played.in_use and not take_over:
            raise StackInUse(played.in_use)

    @asynccontextmanager
    async def watched_contact(*_: Any, **__: Any) -> Any:
        yield

    for name, fake in {"connect": connect, "list_stacks": list_stacks, "open_project": open_project,
                       "remove_by_label": remove_by_label, "find_left": find_left,
                       "wait_until_gone": find_left,
                       "watched_contact": watched_contact, "claim": claim,
                       "find_roots": find_roots}.items():  # fmt: skip
        monkeypatch.setattr(garbage, name, fake)
    monkeypatch.setattr(bring_up, "find_roots", find_roots)
    monkeypatch.setattr(teardown, "denied", denied)
    return played


# --- what is removed -----------------------------------------------------------------------------


async def test_of_this_machine_s_run_what_it_made_is_removed_and_nothing_else(
    played: FakeStackRun,
) -> None:
    for stacks in ((), ("s",)):
        played.home.save(RECORD)
        done = await played.collected(*stacks)
        assert (done.exit_code, list(done.removed)) == (ExitCode.OK, ["s"])
        assert played.home.load("s") is None
    assert played.removed == [("ours",), ("ours",)]


async def test_who_removes_the_stack_of_an_experiment_is_told_that_it_can_go_on(
    played: FakeStackRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment.json").touch()
    for artifacts, is_said in (
        ("", False),
        (str(tmp_path), True),
        (str(tmp_path / "shapes" / "2"), True),
        (str(tmp_path / "x"), False),
    ):
        played.home.save(msgspec.structs.replace(RECORD, artifacts=artifacts))
        await played.collected("s")
        told = f"--resume {tmp_path} continues its experiment instead"
        assert (told in capsys.readouterr().err) is is_said


async def test_without_names_each_cluster_is_searched_that_a_run_of_this_machine_is_recorded_in(
    played: FakeStackRun,
) -> None:
    there = msgspec.structs.replace(RECORD, cluster="other uid", context="elsewhere")
    for record in (RECORD, *(msgspec.structs.replace(there, stack=name) for name in "tu")):
        played.home.save(record)
    request = GarbageRequest(stacks=(), environ=played.environ, yes=True)
    done = await collect_everywhere(request)
    assert list(done.removed) == ["s", "t", "u"]
    assert played.places == [(None, None), (None, "elsewhere")]
    assert played.home.records() == ()


async def test_a_cluster_that_does_not_respond_is_named_and_the_others_are_searched(
    played: FakeStackRun,
) -> None:
    request = GarbageRequest(stacks=(), environ=played.environ, yes=True)
    played.silent = {None}
    with pytest.raises(Unreachable):
        await collect_everywhere(request)
    there = msgspec.structs.replace(RECORD, cluster="other uid", context="elsewhere")
    played.home.save(msgspec.structs.replace(RECORD, stack="t", cluster="third", context="gone"))
    played.home.save(there)
    played.silent = {None, "gone"}
    done = await collect_everywhere(request)
    assert list(done.removed) == ["s"]
    assert done.not_reached == {
        "current context": "None does not respond",
        "t": "gone does not respond",
    }


async def test_what_could_not_be_looked_for_is_an_error(played: FakeStackRun) -> None:
    request = GarbageRequest(stacks=(), environ=played.environ, yes=True)
    for stack in "tu":
        record = msgspec.structs.replace(RECORD, stack=stack, cluster="third", context="gone")
        played.home.save(record)
    played.silent = {"gone"}
    done = await collect_everywhere(request)
    assert done.not_reached == dict.fromkeys("tu", "gone does not respond")
    assert done.exit_code is ExitCode.ERROR


async def test_a_context_that_leads_to_another_cluster_now_is_named(played: FakeStackRun) -> None:
    for stack in "tu":
        record = msgspec.structs.replace(RECORD, stack=stack, cluster="gone", context="elsewhere")
        played.home.save(record)
    request = GarbageRequest(stacks=(), environ=played.environ, yes=True)
    done = await collect_everywhere(request)
    assert (done.removed, done.clusters) == ({}, ("uid",))
    assert played.places == [(None, None), (None, "elsewhere")]
    assert list(done.not_reached) == ["t", "u"]
    assert "kube-system gone" in done.not_reached["t"]
    assert "use --context or --kubeconfig" in done.not_reached["t"]
    assert done.exit_code is ExitCode.ERROR


async def test_of_a_stack_that_no_record_knows_what_is_named_or_overdue_is_removed(
    played: FakeStackRun,
) -> None:
    assert (await played.collected()).removed == {}
    played.overdue = ("theirs",)
    await played.collected()
    await played.collected("s")
    assert played.removed == [("theirs",), None]


async def test_another_stack_of_the_same_name_is_said_and_not_touched(played: FakeStackRun) -> None:
    played.home.save(RECORD)
    played.report = LeakReport(left=(), not_checked=(), others=(space("theirs"),))
    done = await played.collected()
    assert done.not_touched == ["s: Namespace theirs, another stack with the same name"]


async def test_nothing_is_left_is_said_only_when_everything_was_looked_at(
    played: FakeStackRun,
) -> None:
    assert (await played.collected("s")).removed == {"s": "nothing is left"}
    played.report = LeakReport(left=(), not_checked=("nodes (not allowed)",))
    done = await played.collected("s")
    assert done.removed["s"].startswith("nothing is left of the types that the stack uses; 1 other")
    pods = ("pods (not allowed)",)
    played.home.save(RECORD)
    played.report = LeakReport(left=(), not_checked=pods, unverified=pods)
    done = await played.collected("s")
    assert (done.exit_code, done.removed) == (ExitCode.UNVERIFIED, {})
    assert "pods could not be listed" in done.unverified["s"]
    assert played.home.load("s") == RECORD


# --- when others use it --------------------------------------------------------------------------


async def test_a_stack_in_use_is_refused_by_name_and_left_alone_without(
    played: FakeStackRun,
) -> None:
    played.home.save(RECORD)
    played.in_use = "alice@build (process 42) works on stack s"
    done = await played.collected()
    assert (done.exit_code, done.removed, played.removed) == (ExitCode.OK, {}, [])
    assert done.not_touched == [f"s: {played.in_use}"]

    named = await played.collected("s")
    assert (named.exit_code, played.removed) == (ExitCode.ERROR, [])
    assert named.refused == {"s": played.in_use}
    assert played.home.load("s") == RECORD


async def test_a_runner_of_this_machine_keeps_gc_without_names_from_its_stack(
    played: FakeStackRun,
) -> None:
    played.home.save(RECORD)
    with played.home.hold("s"):
        done = await played.collected()
        assert (done.exit_code, done.refused) == (ExitCode.OK, {})
        assert "is working on it" in done.not_touched[0]
        assert (await played.collected("s")).exit_code is ExitCode.ERROR
    assert played.removed == []


async def test_a_stack_is_taken_over_only_when_that_is_asked_for(played: FakeStackRun) -> None:
    played.in_use = "in use"
    assert (await played.collected("s", take_over=True)).exit_code is ExitCode.OK
    assert played.claims == [("ours", False, True), ("theirs", False, True)]
    assert played.removed == [None]


async def test_what_a_record_a_state_or_its_end_proves_is_claimed_as_our_own(
    played: FakeStackRun,
) -> None:
    played.home.save(RECORD)
    await played.collected("s")
    made = {"type": "kubernetes:core/v1:Namespace", "outputs": {"metadata": {"uid": "theirs"}}}
    played.state = {"deployment": {"resources": [made]}}
    await played.collected("s")
    played.state, played.overdue = {"deployment": {}}, ("ours",)
    await played.collected()
    assert played.claims == [
        ("ours", True, False), ("theirs", True, False), ("ours", True, False)
    ]  # fmt: skip
    assert played.removed == [("ours",), ("theirs",), ("ours",)]


async def test_a_lost_state_does_not_hide_what_the_record_proves(
    played: FakeStackRun, tmp_path: Path
) -> None:
    backend = f"file://{tmp_path / 'lost'}?metadata=skip"
    played.home.save(msgspec.structs.replace(RECORD, backend=backend))
    played.is_passphrase_missing = True
    done = await played.collected()
    assert (done.exit_code, played.removed) == (ExitCode.OK, [("ours",)])
    assert played.home.load("s") is None
    # A record that names nothing proves nothing.
    played.home.save(msgspec.structs.replace(RECORD, backend=backend, own=()))
    assert (await played.collected()).exit_code is ExitCode.ERROR


# --- when it may not be known --------------------------------------------------------------------


async def test_without_the_passphrase_nobody_knows_who_works_on_a_stack(
    played: FakeStackRun,
) -> None:
    played.home.save(RECORD)
    played.is_passphrase_missing = True
    done = await played.collected("s")
    assert (done.exit_code, played.removed) == (ExitCode.ERROR, [])
    assert "needs a passphrase" in done.refused["s"]
    assert "--force" in done.refused["s"]

    forced = await played.collected("s", force=True)
    assert (forced.exit_code, played.removed) == (ExitCode.OK, [("ours",)])
    # For whoever has the passphrase: the state is as it was.
    assert (played.did, played.home.load("s")) == ([], RECORD)


async def test_a_state_that_cannot_be_refreshed_says_nothing_about_who_works_on_it(
    played: FakeStackRun,
) -> None:
    played.home.save(RECORD)
    played.refreshed = [BROKEN]
    done = await played.collected("s")
    assert (done.exit_code, played.removed) == (ExitCode.ERROR, [])
    assert "no plugin" in done.refused["s"]


async def test_a_lock_from_elsewhere_needs_force(played: FakeStackRun) -> None:
    played.refreshed = [LOCKED, LOCKED, FINE]
    assert (await played.collected("s")).exit_code is ExitCode.ERROR
    assert (await played.collected("s", force=True)).exit_code is ExitCode.OK
    assert played.did == ["unlock", "destroy"]


async def test_a_state_that_could_not_be_mended_keeps_its_record(played: FakeStackRun) -> None:
    played.home.save(RECORD)
    played.refreshed = [FINE, BROKEN]
    done = await played.collected("s")
    assert done.exit_code is ExitCode.ERROR
    assert "nothing is left in the cluster, but the state could not be" in done.refused["s"]
    assert played.home.load("s") == RECORD


async def test_a_stack_that_nobody_knows_is_said_to_be_none(played: FakeStackRun) -> None:
    played.has_state = False
    done = await played.collected("nosuch")
    assert (done.unknown, done.removed, done.exit_code) == (["nosuch"], {}, ExitCode.OK)
    played.home.save(msgspec.structs.replace(RECORD, stack="nosuch"))
    assert list((await played.collected("nosuch")).removed) == ["nosuch"]


async def test_what_merely_has_the_label_is_said_and_not_touched(played: FakeStackRun) -> None:
    played.report = LeakReport(left=(), not_checked=(), strays=(space("theirs"),))
    done = await played.collected("s")
    assert done.not_touched == [f"s: Namespace theirs, {garbage.NOT_MADE}"]


async def test_a_stack_that_no_state_knows_is_removed_by_its_label(played: FakeStackRun) -> None:
    played.has_state = False
    assert list((await played.collected("s")).removed) == ["s"]
    assert played.did == []


# --- what is asked -------------------------------------------------------------------------------


async def test_nothing_is_removed_unasked(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "can_ask", lambda: False)
    with pytest.raises(ConfigError, match="--yes removes without a question"):
        await played.collected("s", yes=False)
    assert played.removed == []


async def test_a_name_that_is_none_is_refused(played: FakeStackRun) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./s'"):
        await played.collected("../s")


async def test_the_cluster_is_the_flags_else_the_run_s_else_the_environment_s(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    played.environ["AIPERF_CONTEXT"] = "variable"
    await played.collected()
    await played.collected("s")
    played.home.save(msgspec.structs.replace(RECORD, kubeconfig="/k", context="run's"))
    await played.collected("s", context="flag")
    assert played.places == [(None, "variable"), (None, "variable"), ("/k", "flag")]
