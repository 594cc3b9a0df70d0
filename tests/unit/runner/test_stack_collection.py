"""What comes into the folder of a stack's run, and what does not."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.stack import collection
from aiperf_svc.runner.stack.collection import Collection
from aiperf_svc.runner.stack.measure import Measuring
from aiperf_svc.runner.stages import StageResult
from tests.support.fake_stack_run import RECORD, FakeStackRun, in_shapes

NO_CLUSTER = cast("Cluster", None)
save_evidence = collection.save_evidence


def collection_of(played: FakeStackRun, said: list[str]) -> Collection:
    cli = cast("PulumiCli", played)
    made = Collection(played.request, NO_CLUSTER, cli, played.interrupts, said.append)
    made.open(collection.prepare(played.with_folder(), is_running=False))
    return made


async def fetched(made: Collection, measuring: Any) -> StageResult:
    return await made.fetch(cast("Measuring", measuring), RECORD, 1)


async def test_the_results_are_fetched_into_the_folder(played: FakeStackRun) -> None:
    said: list[str] = []
    made = collection_of(played, said)
    assert await fetched(made, played) is StageResult.DONE
    assert said == [f"collected all into {made.folder}"]


async def test_the_second_interrupt_ends_the_fetch(played: FakeStackRun) -> None:
    is_cancelled = asyncio.Event()

    class Slow:
        async def fetch(self, _: Path) -> str:
            try:
                played.interrupts.add()
                played.interrupts.add()
                await asyncio.Event().wait()
                return ""
            finally:
                is_cancelled.set()

    made = collection_of(played, [])
    assert await fetched(made, Slow()) is StageResult.INTERRUPTED
    assert is_cancelled.is_set()


async def test_the_first_error_is_the_one_that_is_told(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(played)
    made = collection_of(played, [])
    played.fetch_error = EnvironmentProblem("the disk is full")
    assert await fetched(made, played) is StageResult.FAILED

    def refuse(_: str) -> None:
        raise EnvironmentProblem("the disk is still full")

    monkeypatch.setattr(made.trials, "write", refuse)
    await made.write_trials()
    assert (made.error, made.results) == ("the disk is full", None)


async def test_an_experiment_is_written_with_the_trials_that_failed(played: FakeStackRun) -> None:
    in_shapes(played)
    made = collection_of(played, [])
    assert await fetched(made, played) is StageResult.DONE
    assert not made.has_all_trials
    for shape in (2, 3):
        made.fail_trials(shape, EnvironmentProblem("no room"))
    assert made.has_all_trials
    await made.write_trials()
    assert made.results is not None
    assert [each.reason for each in made.results.trials] == ["", "no room", "no room"] * 2
    made.remove_if_empty()
    assert made.folder is not None


async def test_a_run_of_one_shape_has_no_files_of_trials_and_an_empty_folder_goes(
    played: FakeStackRun,
) -> None:
    made = collection_of(played, [])
    made.fail_trials(1, EnvironmentProblem("no room"))
    await made.write_trials()
    assert (made.results, made.has_all_trials) == (None, False)
    made.remove_if_empty()
    assert (made.folder, played.made) == (None, [])


async def test_logs_of_the_pulumi_cli_are_evidence_unless_they_are_empty(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/up.log").write_text("error: no room")
    (tmp_path / "logs/destroy.log").touch()
    cli = cast("PulumiCli", SimpleNamespace(logs=tmp_path / "logs"))
    saved = await save_evidence(NO_CLUSTER, cli, RECORD, tmp_path)
    assert saved == (tmp_path / "evidence/up.log",)
    assert saved[0].read_text() == "error: no room"
