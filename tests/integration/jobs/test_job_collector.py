"""The collector of an experiment: stops, restarts, and a cluster that deletes Jobs."""

import asyncio
from pathlib import Path

import pytest

from aiperf_svc.adapters.jobs.cluster_jobs import DELETED
from aiperf_svc.core.experiments.fan_out import UNKNOWN, JobSeen
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.index_pods import COLLECTION_S
from aiperf_svc.protocol.messages.indexes import STOPPED
from aiperf_svc.runner.job_index import UPLOADED
from tests.support.two_shapes import (
    INDEX_S,
    JOB,
    TwoShapes,
    final_state,
    send_first_shape,
    stop,
    stopped_index,
    until,
    uploading,
)


async def test_restarted_collector_continues(shapes: TwoShapes) -> None:
    async with shapes.collector():
        await send_first_shape(shapes)
    shapes.cluster.seen = JobSeen(JOB, frozenset({0}), frozenset({1}), pods=0)
    async with shapes.collector() as client:
        status, summary = await final_state(client)
    assert status.state == "done"
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2


async def test_a_cancelled_experiment_lets_no_index_run(shapes: TwoShapes) -> None:
    async with shapes.collector() as client:
        await send_first_shape(shapes)
        await client.cancel("by the test")
        status, summary = await final_state(client)
    assert (status.state, status.reason) == ("cancelled", "by the test")
    assert [trial["number"] for trial in summary["trials"]] == [1, 3]
    assert shapes.cluster.parallelism == [1, 0]


async def test_job_is_stopped_although_it_is_being_started(shapes: TwoShapes) -> None:
    shapes.cluster.may_respond.clear()
    async with shapes.collector() as client:
        assert await asyncio.to_thread(shapes.cluster.is_applied.wait, INDEX_S)
        await client.cancel("by the test")
        shapes.cluster.may_respond.set()
        await until(client, lambda status: status.is_settled)
    assert shapes.cluster.parallelism == [1, 0]


async def test_stopped_shape_keeps_its_finished_trials(tmp_path: Path) -> None:
    shapes = TwoShapes(tmp_path, on_failure="stop")
    left = stopped_index(shapes, 2)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=2)
    async with (
        shapes.collector() as client,
        uploading(shapes) as stopped,
        uploading(shapes, pod="b", shape=2) as failed,
    ):
        await stopped.begin()
        await failed.begin()
        await failed.end("the server is broken")
        files = await stopped.upload(left, UPLOADED)
        await stopped.end(STOPPED, files, is_tried_again=True)
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({1}), pods=0)
        status, summary = await final_state(client)
    assert (status.state, status.reason.rpartition(": ")[2]) == (
        "failed",
        "stop, and shape 2 failed",
    )
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2


async def test_cancel_and_trials_survive_a_collector_restart(shapes: TwoShapes) -> None:
    left = stopped_index(shapes, 1)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        await client.cancel("by the test")
        await stop(uploader, left)
    shapes.cluster.parallelism.clear()
    async with shapes.collector() as client:
        status = await until(client, lambda status: status.is_cancelling)
        assert status.experiment is not None
        assert status.experiment.ended == 2
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        status, summary = await final_state(client)
    assert (status.state, status.reason) == ("cancelled", "by the test")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "cancelled"]
    assert set(shapes.cluster.parallelism) == {0}


async def test_failure_reason_survives_a_collector_restart(tmp_path: Path) -> None:
    shapes = TwoShapes(tmp_path, retries=1)
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        await uploader.end("the server is broken", is_tried_again=True)
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0}), pods=0)
        await until(client, lambda status: status.experiment.ended == 2)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
    async with shapes.collector() as client:
        _, summary = await final_state(client)
    assert [t["reason"] for t in summary["trials"]] == ["the server is broken", UNKNOWN] * 2


async def test_missing_files_are_named_after_a_restart(shapes: TwoShapes) -> None:
    async with shapes.collector(), uploading(shapes) as uploader:
        await uploader.begin()
        files = await uploader.upload(stopped_index(shapes, 2), UPLOADED)
        await uploader.end("trial 1: cannot write records.parquet", files)
    shapes.cluster.seen = JobSeen(JOB, frozenset({0}), frozenset({1}), pods=0)
    async with shapes.collector() as client:
        status, summary = await final_state(client)
    assert status.artifact_error == "shape 1: trial 1: cannot write records.parquet"
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_trials_of_a_stopped_index_count_without_retry(
    shapes: TwoShapes, is_restarted: bool
) -> None:
    left = stopped_index(shapes, 1)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        await stop(uploader, left)
        status = await client.status()
        assert status.experiment is not None
        assert status.experiment.ended == 0
        if not is_restarted:
            shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
            await until(client, lambda status: status.is_settled)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
    async with shapes.collector() as client:
        _, summary = await final_state(client)
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed", "failed", "failed"]
    assert list((shapes.folder / "artifacts").glob("shapes/*-stopped*")) == []


async def test_attempt_after_a_stopped_one_replaces_it(shapes: TwoShapes) -> None:
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with shapes.collector() as client:
        async with uploading(shapes) as stopped:
            await stopped.begin()
            files = await stopped.upload(stopped_index(shapes, 2), UPLOADED)
            await stopped.end(STOPPED, files, is_tried_again=True)
        async with uploading(shapes, pod="b") as failed:
            await failed.begin()
            files = await failed.upload(stopped_index(shapes, 1), UPLOADED)
            await failed.end("the server is broken", files)
        await client.cancel("by the test")
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        _, summary = await final_state(client)
    assert [(t["number"], t["state"]) for t in summary["trials"]] == [(1, "done"), (3, "failed")]


async def test_job_deleted_during_a_collector_restart_has_failed(shapes: TwoShapes) -> None:
    known = shapes.folder / "artifacts" / "jobs.json"
    async with shapes.collector() as client:
        await until(client, lambda _: known.exists())
    shapes.cluster.seen = None
    async with shapes.collector() as client:
        _, summary = await final_state(client)
    assert {t["reason"] for t in summary["trials"]} == {DELETED}


async def test_deleted_job_ends_after_its_pods_sent_trials(shapes: TwoShapes) -> None:
    left = stopped_index(shapes, 1)
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        assert await asyncio.to_thread(shapes.cluster.was_seen.wait, INDEX_S)
        labels = {
            "batch.kubernetes.io/job-name": JOB,
            "batch.kubernetes.io/job-completion-index": "0",
        }
        pod = {"metadata": {"name": "a", "labels": labels}, "status": {"phase": "Running"}}
        shapes.cluster.alive, shapes.cluster.seen = [pod], None
        await stop(uploader, left)
        assert (await client.status()).state == "profiling"
        shapes.cluster.alive = []
        status, summary = await final_state(client)
    assert status.state == "done"
    assert [t["state"] for t in summary["trials"]] == ["done", "failed", "failed", "failed"]
    assert {t["reason"] for t in summary["trials"][1:]} == {DELETED}


async def test_finished_trials_arrive_before_the_stack_deletes_itself(shapes: TwoShapes) -> None:
    shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    shapes.cluster.lasts_s = COLLECTION_S + 0.01
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        assert await asyncio.to_thread(shapes.cluster.was_seen.wait, INDEX_S)
        shapes.cluster.lasts_s = COLLECTION_S
        await until(client, lambda _: shapes.cluster.parallelism == [1, 0])
        await stop(uploader, stopped_index(shapes, 1))
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        status, summary = await final_state(client)
    assert (status.state, status.exit_code) == ("failed", ExitCode.BENCHMARK_FAILED)
    assert status.reason.startswith("deployment.ttl expires in 120 s")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "cancelled"]


async def test_missing_job_is_awaited(shapes: TwoShapes) -> None:
    there, shapes.cluster.seen = shapes.cluster.seen, None
    async with shapes.collector() as client:
        assert await asyncio.to_thread(shapes.cluster.was_seen.wait, INDEX_S)
        shapes.cluster.seen = there
        status = await until(client, lambda _: shapes.cluster.parallelism == [1])
    assert (status.state, status.reason) == ("profiling", "")
