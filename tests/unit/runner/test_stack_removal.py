"""The last stages of a stack's run say what is left of it, and forget only what is gone."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Unreachable
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.domain.errors import EnvironmentProblem, LeakError, Unverified
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import teardown
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.runner.stack.teardown import StackRemoval
from tests.support.fake_stack_run import CLEAN, NOT_ALL, OTHER, RECORD


class PlayedTeardown:
    """A teardown of which a test says how it goes."""

    def __init__(self) -> None:
        self.report: LeakReport | Exception = CLEAN
        self.is_destroyed = self.is_mended = True
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.has_begun = asyncio.Event()

    async def destroy(self) -> bool:
        self.has_begun.set()
        await self.may_end.wait()
        return self.is_destroyed

    async def check(self) -> LeakReport:
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    async def update_state(self) -> bool:
        return self.is_mended


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedTeardown:
    played = PlayedTeardown()

    async def denied(*_: Any) -> frozenset[Any]:
        return frozenset()

    monkeypatch.setattr(teardown, "Teardown", lambda **_: played)
    monkeypatch.setattr(teardown, "denied", denied)
    return played


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    home = StateHome({"XDG_STATE_HOME": str(tmp_path)})
    home.save(RECORD)
    return home


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def removed(home: StateHome, said: list[str]) -> StackRemoval:
    return StackRemoval(home, cast("Cluster", None), cast("PulumiCli", None), said.append)


async def test_a_stack_of_which_nothing_is_left_is_forgotten(
    played: PlayedTeardown, removed: StackRemoval, home: StateHome, said: list[str]
) -> None:
    await removed.destroy(RECORD, Interrupts())
    await removed.check(RECORD)
    assert said == ["destroying the stack", "leak check: nothing is left"]
    assert (removed.is_verified, home.load("s")) == (True, None)


async def test_each_interrupt_of_the_removal_is_told_that_it_goes_on(
    played: PlayedTeardown, home: StateHome
) -> None:
    played.may_end.clear()
    said: asyncio.Queue[str] = asyncio.Queue()
    interrupts = Interrupts()
    interrupts.add()
    removed = StackRemoval(home, cast("Cluster", None), cast("PulumiCli", None), said.put_nowait)
    destroying = asyncio.create_task(removed.destroy(RECORD, interrupts))
    assert await said.get() == "destroying the stack"
    await played.has_begun.wait()
    for _ in range(2):
        interrupts.add()
        assert await said.get() == "already removing the stack; this cannot be interrupted"
    played.may_end.set()
    await destroying


async def test_nothing_is_left_is_said_only_when_everything_was_looked_at(
    played: PlayedTeardown, removed: StackRemoval, said: list[str]
) -> None:
    played.report = NOT_ALL
    await removed.check(RECORD)
    (line,) = said
    assert line == (
        "leak check: nothing is left of the types that the stack uses; 2 other types may not be "
        "listed (--json names them)"
    )
    assert removed.not_checked == NOT_ALL.not_checked


async def test_a_stack_that_may_not_be_listed_is_neither_gone_nor_forgotten(
    played: PlayedTeardown, removed: StackRemoval, home: StateHome, said: list[str]
) -> None:
    pods = ("pods (not allowed)",)
    played.report, played.is_destroyed = (
        LeakReport(left=(), not_checked=pods, unverified=pods),
        False,
    )
    await removed.destroy(RECORD, Interrupts())
    with pytest.raises(Unverified, match=r"pods could not be listed\n  .*: aiperf-svc gc s"):
        await removed.check(RECORD)
    assert (removed.is_unlisted, home.load("s")) == (True, RECORD)
    assert said == ["destroying the stack"]


async def test_what_belongs_to_others_is_said_and_is_no_leak(
    played: PlayedTeardown, removed: StackRemoval, said: list[str]
) -> None:
    played.report = msgspec.structs.replace(CLEAN, others=(OTHER,), strays=(OTHER,))
    await removed.check(RECORD)
    assert said[:2] == [
        "not touched, of another stack with the same name: Namespace aiperf-s-x",
        "not touched, with the stack's label but not created by this run: Namespace aiperf-s-x",
    ]
    assert removed.left == ()


async def test_a_leak_keeps_the_record_for_gc(
    played: PlayedTeardown, removed: StackRemoval, home: StateHome
) -> None:
    played.report = msgspec.structs.replace(CLEAN, left=(OTHER,))
    with pytest.raises(LeakError, match="1 objects of stack s are left"):
        await removed.check(RECORD)
    assert (removed.left, removed.is_verified) == (("Namespace aiperf-s-x",), True)
    assert home.load("s") == RECORD


async def test_a_cluster_that_cannot_be_read_leaves_the_stack_unverified(
    played: PlayedTeardown, removed: StackRemoval, home: StateHome, said: list[str]
) -> None:
    played.report = Unreachable("no response")
    with pytest.raises(Unreachable):
        await removed.check(RECORD)
    assert removed.not_checked == ("everything (no response)",)
    assert said == ["it is unknown whether anything is left; look with: aiperf-svc gc s"]
    assert (removed.is_verified, home.load("s")) == (False, RECORD)


@pytest.mark.parametrize("is_mended", [True, False])
async def test_a_state_that_a_failed_destroy_left_is_mended_or_its_record_stays(
    is_mended: bool, played: PlayedTeardown, removed: StackRemoval, home: StateHome
) -> None:
    played.is_destroyed, played.is_mended = False, is_mended
    await removed.destroy(RECORD, Interrupts())
    refused: Any = None
    try:
        await removed.check(RECORD)
    except EnvironmentProblem as error:
        refused = error
    assert removed.is_verified is is_mended
    assert (refused is None) is is_mended
    assert home.load("s") == (None if is_mended else RECORD)
