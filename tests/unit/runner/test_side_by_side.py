"""Several stacks in one command: their order, their lines, and that none touches the others."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.common_start import GiveStart
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import side_by_side
from aiperf_svc.runner.stack.live_board import ROWS, LiveTable
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.screen import Screen
from aiperf_svc.runner.stack.side_by_side import Member, run_side_by_side
from aiperf_svc.runner.stack.stages import Stage
from aiperf_svc.runner.stack.turns import Turns
from tests.support.fake_results import inference_result

CONFIG = """
endpoint: {url: "http://10.0.0.1:8000", model: m}
load: {concurrency: 1, requests: 10}
"""
RESULTS = inference_result()
NAMES = ("eu", "us", "asia")


class Stacks:
    """Stacks of which a test says how each one ends."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self.begun: list[str] = []
        self.limits_s: list[float | None] = []
        """The time limit that each has been given."""
        self.most = 0
        self._running = 0
        self.connects = asyncio.Event()
        """Until it is set no stack has a connection to its cluster."""
        self.connects.set()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ends_early = False
        """Whether each goes on until it is interrupted."""
        self._has_news = asyncio.Event()

    async def wait_until_begun(self, count: int) -> None:
        while len(self.begun) < count:
            self._has_news.clear()
            await self._has_news.wait()

    async def run_one(
        self,
        request: StackRequest,
        options: StackOptions,
        screen: Screen,
        *,
        counting: Callable[[], AbstractContextManager[Interrupts]],
        give_start: GiveStart | None,
    ) -> RunOutcome:
        assert give_start is None
        assert options.yes
        self.begun.append(request.stack)
        self.limits_s.append(options.timeout_s)
        self._has_news.set()
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            await self.connects.wait()
            if request.stack in self.errors:
                raise self.errors[request.stack]
            with counting() as interrupts:
                screen.begin(Stage.UP)
                screen.say("made\nand up")
                await (interrupts.reached(1) if self.ends_early else self.may_end.wait())
                return _outcome(was_interrupted=interrupts.count > 0)
        finally:
            self._running -= 1


def _outcome(*, was_interrupted: bool) -> RunOutcome:
    return RunOutcome(
        run_id="r",
        state="done",
        reason="",
        results=RESULTS,
        artifacts=None,
        was_interrupted=was_interrupted,
    )


@pytest.fixture
async def stacks(monkeypatch: pytest.MonkeyPatch) -> Stacks:
    stacks = Stacks()
    monkeypatch.setattr(side_by_side, "run_one", stacks.run_one)
    return stacks


def members(*names: str) -> list[Member]:
    benchmark = yaml.safe_load(CONFIG)
    config = BenchmarkConfig.model_validate(benchmark)
    return [
        Member(
            name=name,
            request=StackRequest(
                stack=name,
                config=config,
                environ={"PULUMI_CONFIG_PASSPHRASE": "x"},
            ),
        )
        for name in names
    ]


async def run(limit: int = 3, *, timeout_s: float | None = None) -> list[RunOutcome]:
    options = StackOptions(run=RunOptions(ui="plain"), timeout_s=timeout_s)
    return await run_side_by_side(members(*NAMES), options, turns=Turns(limit))


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_stacks_begin_in_order_and_no_more_than_the_limit_at_a_time(
    stacks: Stacks, limit: int
) -> None:
    stacks.may_end.clear()
    running = asyncio.create_task(run(limit))
    await stacks.wait_until_begun(limit)
    stacks.may_end.set()
    outcomes = await running
    assert stacks.begun == list(NAMES)
    assert stacks.most == limit
    assert [each.exit_code for each in outcomes] == [ExitCode.OK] * 3


async def test_a_stack_that_fails_does_not_touch_the_others(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.errors = {"us": EnvironmentProblem("no such cluster"), "asia": ValueError("a mistake")}
    outcomes = await run()
    codes = [each.exit_code for each in outcomes]
    assert codes == [ExitCode.OK, ExitCode.ERROR, ExitCode.ERROR]
    assert outcomes[1].reason == "no such cluster"
    said = capsys.readouterr().err
    assert "us    error: no such cluster" in said
    assert "asia  error: unexpected ValueError: a mistake" in said


async def test_every_line_begins_with_the_name_of_its_stack(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    await run()
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("us ")] == [
        "us    made",
        "us    and up",
        "us    ended: done, verdict valid",
    ]
    assert {line.split()[0] for line in said} == set(NAMES)


async def test_an_interrupt_reaches_every_stack_and_no_other_begins(stacks: Stacks) -> None:
    stacks.ends_early = True
    running = asyncio.create_task(run(limit=2))
    await stacks.wait_until_begun(2)
    signal.raise_signal(signal.SIGINT)
    outcomes = await running
    assert stacks.begun == ["eu", "us"]
    assert [each.exit_code for each in outcomes] == [ExitCode.INTERRUPTED] * 3
    assert [bool(each.results) for each in outcomes] == [True, True, False]
    assert outcomes[2].reason == "stopped by the user before its turn"


async def test_an_interrupt_ends_a_stack_that_waits_for_its_cluster(stacks: Stacks) -> None:
    stacks.connects.clear()
    running = asyncio.create_task(run())
    await stacks.wait_until_begun(3)
    signal.raise_signal(signal.SIGINT)
    outcomes = await running
    assert [each.reason for each in outcomes] == ["nothing was created"] * 3
    assert [each.exit_code for each in outcomes] == [ExitCode.INTERRUPTED] * 3


async def test_the_time_limit_is_for_all_stacks_together(
    stacks: Stacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_mono_s = iter([100.0, 104.0, 111.0])
    monkeypatch.setattr(side_by_side, "time", SimpleNamespace(monotonic=lambda: next(now_mono_s)))
    outcomes = await run(limit=1, timeout_s=10.0)
    assert (stacks.begun, stacks.limits_s) == (["eu", "us"], [10.0, 6.0])
    assert (outcomes[2].state, outcomes[2].reason) == (
        "cancelled",
        "not begun: --timeout was over before its turn",
    )


def test_the_table_counts_what_it_has_no_room_for(tmp_path: Path) -> None:
    names = [f"stack-{number}" for number in range(ROWS + 4)]
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with LiveTable(names, console) as table:
        table.set("stack-0", "finished", "done")
        table.set("stack-1", "up", "31 made")
        file = console.file
        assert isinstance(file, StringIO)
        shown = file.getvalue()
    assert "31 made" in shown
    assert f"{ROWS + 2} waiting, 1 finished" in shown
