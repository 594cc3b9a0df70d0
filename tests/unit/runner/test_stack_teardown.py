"""The way down goes on where Pulumi does not, and believes the cluster only."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi.cli import Ended, Event, PulumiCli
from aiperf_svc.runner.stack import teardown
from aiperf_svc.runner.stack.state_home import RunRecord
from aiperf_svc.runner.stack.teardown import Teardown, WaitReports, are_gone

RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False
)
FINE = Ended(code=0, out="", errors="")


def found(kind: str, name: str) -> ObjectRef:
    return ObjectRef(kind=kind, namespace="n", name=name, uid=f"{kind}/{name}", path="")


CLEAN = LeakReport(left=(), not_checked=())
HELD = LeakReport(left=(found("ConfigMap", "held"),), not_checked=())


class Cli:
    """Stands for the CLI: what it did, in order."""

    def __init__(self, *, stuck: int = 0) -> None:
        self.stuck = stuck
        self.did: list[str] = []

    async def destroy(self, on_event: Callable[[Event], None], *, stop: asyncio.Event) -> Ended:
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
    """What the cluster is found to hold, look by look; the last one stays."""
    given: list[LeakReport] = []

    async def look(*_: Any, **__: Any) -> LeakReport:
        return given.pop(0) if len(given) > 1 else given[0]

    async def remove(*_: Any) -> None:
        return None

    monkeypatch.setattr(teardown, "wait_until_gone", look)
    monkeypatch.setattr(teardown, "find_left", look)
    monkeypatch.setattr(teardown, "remove_by_label", remove)
    monkeypatch.setattr(teardown, "remove_roots", remove)
    monkeypatch.setattr(teardown, "QUIET_S", 0.0)
    monkeypatch.setattr(teardown, "WATCH_S", 0.0)
    return given


def teardown_of(cli: Cli, said: list[str], record: RunRecord = RECORD) -> Teardown:
    cluster = cast("Cluster", None)
    return Teardown(cluster=cluster, cli=cast("PulumiCli", cli), record=record, say=said.append)


async def test_a_destroy_that_waits_for_what_is_gone_begins_again(
    reports: list[LeakReport],
) -> None:
    reports.append(CLEAN)
    cli, said = Cli(stuck=1), list[str]()
    await teardown_of(cli, said).destroy()
    assert cli.did == ["destroy", "destroy"]
    assert "PodDisruptionBudget benchmark" in said[0]


async def test_every_attempt_is_watched_and_none_is_endless(reports: list[LeakReport]) -> None:
    reports.append(CLEAN)
    cli = Cli(stuck=3)
    assert not await teardown_of(cli, []).destroy()
    assert cli.did == ["destroy", "destroy", "destroy"]


async def test_the_pods_are_asked_to_end_while_pulumi_starts(
    reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(CLEAN)
    cli, asked = Cli(), list[tuple[list[str], tuple[str, ...] | None]]()

    async def remove(_: Cluster, wanted: StackObjects) -> None:
        asked.append((list(cli.did), wanted.own))
        raise Unreachable("no response")

    monkeypatch.setattr(teardown, "remove_roots", remove)
    record, said = msgspec.structs.replace(RECORD, own=("uid",)), list[str]()
    await teardown_of(cli, said, record).destroy()
    assert (asked, cli.did) == ([([], ("uid",))], ["destroy"])
    assert said == ["the stack's pods are left to Pulumi: no response"]


@pytest.mark.parametrize("own", [None, ()], ids=["not known", "none"])
async def test_without_roots_of_its_own_everything_is_left_to_pulumi(
    own: tuple[str, ...] | None, reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(CLEAN)
    monkeypatch.setattr(teardown, "remove_roots", None)
    record = msgspec.structs.replace(RECORD, own=own)
    await teardown_of(Cli(), [], record).destroy()


async def test_a_destroy_that_waits_for_what_is_there_goes_on(reports: list[LeakReport]) -> None:
    there = LeakReport(left=(found("PodDisruptionBudget", "benchmark-s"),), not_checked=())
    reports.extend([there, there, CLEAN])
    cli = Cli(stuck=1)
    await teardown_of(cli, []).destroy()
    assert (cli.did, len(reports)) == (["destroy", "destroy"], 1)


async def test_what_a_destroy_left_is_deleted_by_label(
    reports: list[LeakReport],
) -> None:
    reports.extend([HELD, CLEAN])
    cli, said = Cli(), list[str]()
    assert await teardown_of(cli, said).check() == CLEAN
    assert cli.did == []
    assert said == ["still there: 1 objects; deleting by label"]


async def test_what_nobody_can_delete_is_reported_and_the_state_left(
    reports: list[LeakReport],
) -> None:
    reports.append(HELD)
    cli = Cli()
    assert await teardown_of(cli, []).check() == HELD
    assert cli.did == []


async def test_a_clean_cluster_needs_nothing(reports: list[LeakReport]) -> None:
    reports.append(CLEAN)
    cli = Cli()
    assert await teardown_of(cli, []).check() == CLEAN
    assert cli.did == []


async def test_a_silent_removal_is_reported_with_what_it_waits_for(
    reports: list[LeakReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.append(HELD)
    enough, said = asyncio.Event(), list[str]()

    async def describe_wait(_: Cluster, report: LeakReport, *, stack: str) -> str:
        assert (report, stack) == (HELD, "s")
        return "ConfigMap n/held"

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            enough.set()

    monkeypatch.setattr(teardown, "describe_wait", describe_wait)
    monkeypatch.setattr(teardown, "REPORT_S", 0.001)
    async with WaitReports(cast("Cluster", None), RECORD, say).running():
        await enough.wait()
    assert said == ["still removing after 0 s: ConfigMap n/held"] * 3


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("Deployment", "worker-s", False),
        ("Deployment", "deadline-s", True),
        ("Pod", "worker-s-1", True),
    ],
)
def test_objects_are_known_by_kind_and_by_the_begin_of_their_names(
    kind: str, name: str, expected: bool
) -> None:
    assert are_gone([("Deployment", "worker")], [found(kind, name)]) is expected
