"""The teardown continues where Pulumi fails, and relies only on the cluster."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import StackInUse
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi.cli import Ended, PulumiCli
from aiperf_svc.adapters.pulumi.namesakes import refuse_strangers
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.domain.errors import EnvironmentProblem, LeakError, Unverified
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import teardown
from aiperf_svc.runner.stack.teardown import StackRemoval, are_gone, wait_reports
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_stack_run import CLEAN, NOT_ALL, OTHER, RECORD

FINE = Ended(code=0, out="", errors="")


def found(kind: str, name: str) -> ObjectRef:
    return ObjectRef(kind=kind, namespace="n", name=name, uid=f"{kind}/{name}", path="")


HELD = LeakReport(left=(found("ConfigMap", "held"),), not_checked=())


class Cli:
    """Replaces the CLI and records its calls in order."""

    def __init__(self, *, stuck: int = 0) -> None:
        self.stuck = stuck
        self.did: list[str] = []

    async def destroy(self, on_event: Callable[[Json], None], *, stop: asyncio.Event) -> Ended:
        self.did.append("destroy")
        if len(self.did) > self.stuck:
            return FINE
        kind = "kubernetes:policy/v1:PodDisruptionBudget"
        metadata = {"op": "delete", "type": kind, "urn": f"urn::{kind}::benchmark"}
        on_event({"resourcePreEvent": {"metadata": metadata}})
        await stop.wait()
        return Ended(code=255, out="", errors="error: interrupted")

    async def refresh(self, *, clear_pending: bool = False) -> Ended:
        self.did.append("refresh")
        return FINE


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[LeakReport]:
    """Set the successive leak reports. The last one repeats."""
    reports: list[LeakReport] = []

    async def look(*_: Any, **__: Any) -> LeakReport:
        return reports.pop(0) if len(reports) > 1 else reports[0]

    async def remove(*_: Any) -> None:
        return None

    monkeypatch.setattr(teardown, "wait_until_gone", look)
    monkeypatch.setattr(teardown, "find_left", look)
    monkeypatch.setattr(teardown, "remove_by_label", remove)
    monkeypatch.setattr(teardown, "remove_roots", remove)
    monkeypatch.setattr(teardown, "QUIET_S", 0.0)
    monkeypatch.setattr(teardown, "WATCH_S", 0.0)
    return reports


def removal_of(cli: Cli, notes: list[str]) -> StackRemoval:
    home, cluster = StateHome({"XDG_STATE_HOME": ""}), cast("Cluster", None)
    return StackRemoval(home, cluster, cast("PulumiCli", cli), notes.append)


async def destroyed(cli: Cli, notes: list[str], record: RunRecord = RECORD) -> bool:
    removal = removal_of(cli, notes)
    await removal.destroy(record, Interrupts())
    assert notes.pop(0) == "destroying the stack"
    return removal.is_destroyed


async def test_destroy_waiting_for_gone_objects_restarts(reports: list[LeakReport]) -> None:
    reports.append(CLEAN)
    cli, notes = Cli(stuck=1), list[str]()
    await destroyed(cli, notes)
    assert cli.did == ["destroy", "destroy"]
    assert "PodDisruptionBudget benchmark" in notes[0]


async def test_every_attempt_is_watched_and_none_is_endless(reports: list[LeakReport]) -> None:
    reports.append(CLEAN)
    cli = Cli(stuck=3)
    assert not await destroyed(cli, [])
    assert cli.did == ["destroy", "destroy", "destroy"]


async def test_pods_are_asked_to_end_while_pulumi_starts(
    reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(CLEAN)
    cli, calls = Cli(), list[tuple[list[str], tuple[str, ...] | None]]()

    async def remove(_: Cluster, wanted: StackObjects) -> None:
        calls.append((list(cli.did), wanted.own))
        raise Unreachable("no response")

    monkeypatch.setattr(teardown, "remove_roots", remove)
    record, notes = msgspec.structs.replace(RECORD, own=("uid",)), list[str]()
    await destroyed(cli, notes, record)
    assert (calls, cli.did) == ([([], ("uid",))], ["destroy"])
    assert notes == ["only Pulumi deletes the stack's pods: no response"]


@pytest.mark.parametrize("own", [None, ()], ids=["not known", "none"])
async def test_without_own_roots_pulumi_deletes_all(
    own: tuple[str, ...] | None, reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(CLEAN)
    monkeypatch.setattr(teardown, "remove_roots", None)
    cli, record = Cli(), msgspec.structs.replace(RECORD, own=own)
    assert await destroyed(cli, [], record)
    assert cli.did == ["destroy"]


async def test_destroy_waiting_for_existing_objects_continues(reports: list[LeakReport]) -> None:
    there = LeakReport(left=(found("PodDisruptionBudget", "benchmark-s"),), not_checked=())
    reports.extend([there, there, CLEAN])
    cli = Cli(stuck=1)
    await destroyed(cli, [])
    assert (cli.did, len(reports)) == (["destroy", "destroy"], 1)


async def test_destroy_leftovers_are_deleted_by_label(reports: list[LeakReport]) -> None:
    reports.extend([HELD, CLEAN])
    cli, notes = Cli(), list[str]()
    assert await removal_of(cli, notes)._find_left(RECORD) == CLEAN
    assert cli.did == []
    assert notes == ["still there: 1 object; deleting by label"]


@pytest.mark.parametrize("there", [HELD, CLEAN], ids=["undeletable", "nothing"])
async def test_check_leaves_the_state_as_it_is(
    reports: list[LeakReport], there: LeakReport
) -> None:
    reports.append(there)
    cli = Cli()
    assert await removal_of(cli, [])._find_left(RECORD) == there
    assert cli.did == []


async def test_slow_removal_names_the_blocking_objects(
    reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(HELD)
    enough, notes = asyncio.Event(), list[str]()

    async def describe_wait(_: Cluster, report: LeakReport, *, stack: str) -> str:
        assert (report, stack) == (HELD, "s")
        return "ConfigMap n/held"

    def say(line: str) -> None:
        notes.append(line)
        if len(notes) == 3:
            enough.set()

    monkeypatch.setattr(teardown, "describe_wait", describe_wait)
    monkeypatch.setattr(teardown, "REPORT_S", 0.001)
    async with wait_reports(cast("Cluster", None), RECORD, say):
        await enough.wait()
    assert notes == ["still removing after 0 s: ConfigMap n/held"] * 3


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("Deployment", "worker-s", False),
        ("Deployment", "deadline-s", True),
        ("Pod", "worker-s-1", True),
    ],
)
def test_objects_match_by_kind_and_name_prefix(kind: str, name: str, expected: bool) -> None:
    assert are_gone([("Deployment", "worker")], [found(kind, name)]) is expected


MADE = {STACK_LABEL: "s", RUN_LABEL: "r"}


@pytest.mark.parametrize(
    ("found", "is_refused"),
    [
        (None, False),
        ({"uid": "ours"}, False),
        ({"uid": "of another stack", "labels": MADE}, False),
        ({"uid": "theirs"}, True),
        ({"uid": "theirs", "labels": {STACK_LABEL: "s"}}, True),
        ({"uid": "theirs", "labels": MADE | {STACK_LABEL: "t"}}, True),
    ],
)
async def test_namespace_that_others_made_again_is_refused(
    found: Json | None, is_refused: bool
) -> None:
    space = {"/api/v1/namespaces/n": {"metadata": {"name": "n", **(found or {})}}}
    refusing = refuse_strangers(FakeCluster(space if found else {}).typed, "s", "n", ("ours",))
    if not is_refused:
        await refusing
        return
    with pytest.raises(StackInUse, match="which Pulumi would delete"):
        await refusing


class FakeRemoval:
    """How a removal goes, which a test determines."""

    def __init__(self) -> None:
        self.report: LeakReport | Exception = CLEAN
        self.is_destroyed = self.is_mended = True
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.has_begun = asyncio.Event()

    async def destroyed(self, *_: Any) -> Ended:
        self.has_begun.set()
        await self.may_end.wait()
        return FINE if self.is_destroyed else Ended(code=1, out="", errors="error: refused")

    async def find_left(self, _: RunRecord) -> LeakReport:
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    async def update_state(self, _: RunRecord) -> bool:
        return self.is_mended


@pytest.fixture
def stack_run(monkeypatch: pytest.MonkeyPatch) -> FakeRemoval:
    stack_run = FakeRemoval()

    async def denied(*_: Any) -> frozenset[Any]:
        return frozenset()

    monkeypatch.setattr(StackRemoval, "_run_destroy", stack_run.destroyed)
    monkeypatch.setattr(StackRemoval, "_find_left", stack_run.find_left)
    monkeypatch.setattr(StackRemoval, "update_state", stack_run.update_state)
    monkeypatch.setattr(teardown, "denied", denied)
    return stack_run


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    home = StateHome({"XDG_STATE_HOME": str(tmp_path)})
    home.save(RECORD)
    return home


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def removed(home: StateHome, notes: list[str]) -> StackRemoval:
    return StackRemoval(home, cast("Cluster", None), cast("PulumiCli", None), notes.append)


async def test_fully_removed_stack_is_forgotten(
    stack_run: FakeRemoval, removed: StackRemoval, home: StateHome, notes: list[str]
) -> None:
    await removed.destroy(RECORD, Interrupts())
    await removed.check(RECORD)
    assert notes == ["destroying the stack", "leak check: nothing is left"]
    assert (removed.is_verified, home.load("s")) == (True, None)


async def test_interrupts_during_removal_are_answered(
    stack_run: FakeRemoval, home: StateHome
) -> None:
    stack_run.may_end.clear()
    notes: asyncio.Queue[str] = asyncio.Queue()
    interrupts = Interrupts()
    interrupts.add()
    removed = StackRemoval(home, cast("Cluster", None), cast("PulumiCli", None), notes.put_nowait)
    destroying = asyncio.create_task(removed.destroy(RECORD, interrupts))
    assert await notes.get() == "destroying the stack"
    await stack_run.has_begun.wait()
    for _ in range(2):
        interrupts.add()
        assert await notes.get() == "already removing the stack; this cannot be interrupted"
    stack_run.may_end.set()
    await destroying


async def test_clean_report_needs_every_type_checked(
    stack_run: FakeRemoval, removed: StackRemoval, notes: list[str]
) -> None:
    stack_run.report = NOT_ALL
    await removed.check(RECORD)
    (line,) = notes
    assert line == (
        "leak check: nothing is left of the types that the stack uses; 2 other types may not be "
        "listed (--json names them)"
    )
    assert removed.not_checked == NOT_ALL.not_checked


async def test_unlisted_stack_keeps_its_record(
    stack_run: FakeRemoval, removed: StackRemoval, home: StateHome, notes: list[str]
) -> None:
    pods = ("pods (not allowed)",)
    stack_run.report, stack_run.is_destroyed = (
        LeakReport(left=(), not_checked=pods, unverified=pods),
        False,
    )
    await removed.destroy(RECORD, Interrupts())
    with pytest.raises(Unverified, match=r"pods could not be listed\n  .*: aiperf-svc gc s"):
        await removed.check(RECORD)
    assert (removed.is_unlisted, home.load("s")) == (True, RECORD)
    assert notes == ["destroying the stack", "`pulumi destroy` failed: refused"]


async def test_foreign_objects_are_not_leaks(
    stack_run: FakeRemoval, removed: StackRemoval, notes: list[str]
) -> None:
    stack_run.report = msgspec.structs.replace(CLEAN, others=(OTHER,), strays=(OTHER,))
    await removed.check(RECORD)
    assert notes[:2] == [
        "not touched, of another stack with the same name: Namespace aiperf-s-x",
        "not touched, with the stack's label but not created by this run: Namespace aiperf-s-x",
    ]
    assert removed.left == ()


async def test_a_leak_keeps_the_record_for_gc(
    stack_run: FakeRemoval, removed: StackRemoval, home: StateHome
) -> None:
    stack_run.report = msgspec.structs.replace(CLEAN, left=(OTHER,))
    with pytest.raises(LeakError, match=r"1 object is left of stack s; .* gc s"):
        await removed.check(RECORD)
    assert (removed.left, removed.is_verified) == (("Namespace aiperf-s-x",), True)
    assert home.load("s") == RECORD


async def test_unreadable_cluster_leaves_stack_unverified(
    stack_run: FakeRemoval, removed: StackRemoval, home: StateHome, notes: list[str]
) -> None:
    stack_run.report = Unreachable("no response")
    with pytest.raises(Unreachable):
        await removed.check(RECORD)
    assert removed.not_checked == ("everything (no response)",)
    assert notes == ["it is unknown whether anything is left; look with: aiperf-svc gc s"]
    assert (removed.is_verified, home.load("s")) == (False, RECORD)


@pytest.mark.parametrize("is_mended", [True, False])
async def test_state_after_failed_destroy_is_repaired(
    is_mended: bool, stack_run: FakeRemoval, removed: StackRemoval, home: StateHome
) -> None:
    stack_run.is_destroyed, stack_run.is_mended = False, is_mended
    await removed.destroy(RECORD, Interrupts())
    refused: Any = None
    try:
        await removed.check(RECORD)
    except EnvironmentProblem as error:
        refused = error
    assert removed.is_verified is is_mended
    assert (refused is None) is is_mended
    assert home.load("s") == (None if is_mended else RECORD)
