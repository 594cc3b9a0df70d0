"""Files that are collected into the folder of a part that a stack has run."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.storage import folders, resuming
from aiperf_svc.adapters.storage.provenance_file import read_provenance, write_provenance
from aiperf_svc.core.cluster.stack_stages import StageResult
from aiperf_svc.core.experiments.schedule import Part
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.parts import Member, Work
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.attached import Attached, fetch
from aiperf_svc.runner.stack.measure import Collection, Measuring, prepare
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_results import inference_result
from tests.support.fake_results_api import make_status
from tests.support.fake_stack_run import RECORD, FakeStackRun, in_shapes

NO_CLUSTER = cast("Cluster", None)


class Fetch:
    """A run whose results are fetched or not."""

    def __init__(self, stack_run: FakeStackRun, *, interrupts: int = 0) -> None:
        self._stack_run, self._interrupts = stack_run, interrupts
        self.is_cancelled = asyncio.Event()

    async def fetch(self, folder: Path) -> str:
        if self._stack_run.fetch_error is not None:
            raise self._stack_run.fetch_error
        try:
            for _ in range(self._interrupts):
                self._stack_run.interrupts.add()
            await asyncio.sleep(0 if self._interrupts < 2 else 60)
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise
        return "all"


async def fetched(stack_run: FakeStackRun, run: Fetch, notes: list[str]) -> StageResult:
    cli, request = cast("PulumiCli", stack_run), replace(stack_run.request, folder=Path("here"))
    made = Collection(request, NO_CLUSTER, cli, stack_run.interrupts, notes.append)
    return await made.fetch(cast("Measuring", run), RECORD, stack_run.folder)


async def test_the_results_are_fetched_into_the_folder(stack_run: FakeStackRun) -> None:
    notes: list[str] = []
    assert await fetched(stack_run, Fetch(stack_run), notes) is StageResult.DONE
    assert notes == ["collected all into here"]


async def test_later_fetch_adds_facts_of_pods(tmp_path: Path) -> None:
    content = inference_result(config={"deployment": {"target": {"kind": "vllm"}}})

    async def download(folder: Path) -> None:
        write_provenance(folder, Provenance(client={}, target={}))

    client = SimpleNamespace(
        status=partial(asyncio.sleep, 0, make_status(is_settled=True, results_ready=True)),
        results=partial(asyncio.sleep, 0, content),
        download_all=download,
    )
    labels = {"app.kubernetes.io/component": "target"}
    server = {"name": "main", "image": "vllm:1"}
    items = [{"metadata": {"labels": labels}, "spec": {"containers": [server]}}]
    attached = Attached(
        stack="s",
        client=cast("ResultsClient", client),
        outputs={"runId": "run", "namespace": "bench"},
        cluster=FakeCluster({"/api/v1/namespaces/bench/pods": {"items": items}}).typed,
    )
    folder = (await fetch(attached, parent=tmp_path)).artifacts
    assert folder is not None
    found = read_provenance(folder)
    assert found is not None
    assert found.target["image"] == "vllm:1"


async def test_one_interrupt_lets_the_fetch_end(stack_run: FakeStackRun) -> None:
    run = Fetch(stack_run, interrupts=1)
    assert await fetched(stack_run, run, []) is StageResult.DONE


async def test_the_second_interrupt_ends_the_fetch(stack_run: FakeStackRun) -> None:
    run = Fetch(stack_run, interrupts=2)
    assert await fetched(stack_run, run, []) is StageResult.INTERRUPTED
    assert run.is_cancelled.is_set()


async def test_results_that_cannot_be_fetched_are_an_error(stack_run: FakeStackRun) -> None:
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    with pytest.raises(EnvironmentProblem, match="the disk is full"):
        await fetched(stack_run, Fetch(stack_run), [])


def work_in(stack_run: FakeStackRun, *, is_resumed: bool) -> Work:
    config, folder = stack_run.request.config, stack_run.folder / "shapes" / "1"
    (shape, *_) = stack_run.request.shapes
    return Work(
        part=Part(1), member=Member(config=config, trials=shape.members), config=config,
        shape=shape, folder=folder, logs=folder, is_resumed=is_resumed, run_id="r",
    )  # fmt: skip


@pytest.mark.parametrize("is_running", [False, True])
def test_running_part_keeps_its_fetched_files(stack_run: FakeStackRun, *, is_running: bool) -> None:
    in_shapes(stack_run)
    work = work_in(stack_run, is_resumed=False)
    prepare(work, is_running=False)
    assert not is_experiment(work.folder)
    resuming.begin(work.folder, work.config)
    (work.folder / "trials" / "001").mkdir(parents=True)
    with pytest.raises(EnvironmentProblem), folders.collecting(work.folder, "id"):
        raise EnvironmentProblem("killed")
    prepare(work_in(stack_run, is_resumed=True), is_running=is_running)
    (trial,) = (work.folder / "trials").iterdir()
    assert trial.name == ("001" if is_running else "001-unfinished1")
    assert folders.is_collecting(work.folder) is is_running


async def test_nonempty_pulumi_logs_are_evidence(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/up.log").write_text("error: no room")
    (tmp_path / "logs/destroy.log").touch()
    cli: Any = SimpleNamespace(logs=tmp_path / "logs")
    made = Collection(cast("StackRequest", None), NO_CLUSTER, cli, Interrupts(), print)
    saved = await made._evidence(RECORD, tmp_path)
    assert saved == (tmp_path / "evidence/up.log",)
    assert saved[0].read_text() == "error: no room"
