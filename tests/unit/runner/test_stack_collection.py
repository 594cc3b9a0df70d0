"""What comes into the folder of a stack's run, and what does not."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.core.cluster.stack_stages import StageResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.stack import collection
from aiperf_svc.runner.stack.collection import Collection
from aiperf_svc.runner.stack.measure import Measuring
from tests.support.fake_stack_run import RECORD, FakeStackRun, in_shapes

NO_CLUSTER = cast("Cluster", None)
save_evidence = collection.save_evidence


def collection_of(stack_run: FakeStackRun, said: list[str]) -> Collection:
    cli = cast("PulumiCli", stack_run)
    made = Collection(stack_run.request, NO_CLUSTER, cli, stack_run.interrupts, said.append)
    made.open(collection.prepare(stack_run.with_folder(), is_running=False))
    return made


async def fetched(made: Collection, measuring: Any) -> StageResult:
    return await made.fetch(cast("Measuring", measuring), RECORD, 1)


async def test_the_results_are_fetched_into_the_folder(stack_run: FakeStackRun) -> None:
    said: list[str] = []
    made = collection_of(stack_run, said)
    assert await fetched(made, stack_run) is StageResult.DONE
    assert said == [f"collected all into {made.folder}"]


async def test_the_second_interrupt_ends_the_fetch(stack_run: FakeStackRun) -> None:
    is_cancelled = asyncio.Event()

    class Slow:
        async def fetch(self, _: Path) -> str:
            try:
                stack_run.interrupts.add()
                stack_run.interrupts.add()
                await asyncio.Event().wait()
                return ""
            finally:
                is_cancelled.set()

    made = collection_of(stack_run, [])
    assert await fetched(made, Slow()) is StageResult.INTERRUPTED
    assert is_cancelled.is_set()


async def test_first_collection_error_is_reported(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run)
    made = collection_of(stack_run, [])
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    assert await fetched(made, stack_run) is StageResult.FAILED

    def refuse(_: str) -> None:
        raise EnvironmentProblem("the disk is still full")

    monkeypatch.setattr(made.trials, "write", refuse)
    await made.write_trials()
    assert (made.error, made.results) == ("the disk is full", None)


async def test_experiment_is_written_with_the_trials_that_failed(
    stack_run: FakeStackRun,
) -> None:
    in_shapes(stack_run)
    made = collection_of(stack_run, [])
    assert await fetched(made, stack_run) is StageResult.DONE
    assert not made.has_all_trials
    for shape in (2, 3):
        made.fail_trials(shape, EnvironmentProblem("no room"))
    assert made.has_all_trials
    await made.write_trials()
    assert made.results is not None
    assert [each.reason for each in made.results.trials] == ["", "no room", "no room"] * 2
    made.remove_if_empty()
    assert made.folder is not None


async def test_single_shape_removes_its_empty_folder(stack_run: FakeStackRun) -> None:
    made = collection_of(stack_run, [])
    made.fail_trials(1, EnvironmentProblem("no room"))
    await made.write_trials()
    assert (made.results, made.has_all_trials) == (None, False)
    made.remove_if_empty()
    assert (made.folder, stack_run.made) == (None, [])


async def test_nonempty_pulumi_logs_are_evidence(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/up.log").write_text("error: no room")
    (tmp_path / "logs/destroy.log").touch()
    cli = cast("PulumiCli", SimpleNamespace(logs=tmp_path / "logs"))
    saved = await save_evidence(NO_CLUSTER, cli, RECORD, tmp_path)
    assert saved == (tmp_path / "evidence/up.log",)
    assert saved[0].read_text() == "error: no room"
