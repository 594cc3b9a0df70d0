"""Uploads of indexes to the collector: complete, incomplete and repeated."""

import asyncio
import shutil

import pytest

from aiperf_svc.adapters.jobs import shape_uploads
from aiperf_svc.adapters.jobs.shape_uploads import Uploader
from aiperf_svc.adapters.messaging.bus import Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.indexes import STOPPED, IndexFile
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.job_index import UPLOADED
from tests.support.two_shapes import RUN_ID, TwoShapes, stopped_index, uploading


async def test_shape_is_accepted_again_after_an_unrecorded_upload(shapes: TwoShapes) -> None:
    left = stopped_index(shapes, 2)
    shutil.copytree(left / "trials", shapes.folder / "artifacts" / "trials")
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        await uploader.end("", await uploader.upload(left, UPLOADED))
        status = await client.status()
    assert status.experiment is not None
    assert (status.experiment.ended, status.experiment.failed) == (2, 0)


async def test_restarted_collector_accepts_a_repeated_end(shapes: TwoShapes) -> None:
    async with uploading(shapes) as uploader:
        for _ in range(2):
            async with shapes.collector() as client:
                for _ in range(2):
                    await uploader.end("it failed")
                status = await client.status()
                assert status.experiment is not None
                assert (status.experiment.ended, status.experiment.failed) == (2, 2)
                with pytest.raises(EnvironmentProblem, match="the outcome of shape 1 is known"):
                    async with uploading(shapes, pod="b") as other:
                        await other.begin()
    # Trials that ended before the restart are no basis for the remaining time.
    assert status.experiment.left_s is None  # type: ignore[union-attr]


async def test_incomplete_files_are_no_trial(shapes: TwoShapes) -> None:
    sent = shapes.folder / "sent"
    (sent / "trials").mkdir(parents=True)
    (sent / "trials" / "one").write_bytes(b"x" * 3_000_000)
    async with shapes.collector() as client, uploading(shapes) as uploader:
        await uploader.begin()
        (file,) = await uploader.upload(sent, ["trials"])
        for broken in (
            IndexFile(file.name, file.size, "0" * 64),
            IndexFile(file.name, file.size + 1, file.sha256),
            IndexFile("trials/two", 1, file.sha256),
        ):
            with pytest.raises(EnvironmentProblem, match="arrived damaged"):
                await uploader.end("", (broken,))
        with pytest.raises(EnvironmentProblem, match="is not in the list of files"):
            await uploader.end("", ())
        status = await client.status()
    assert status.experiment is not None
    assert status.experiment.ended == 0
    assert not (shapes.folder / "artifacts" / "trials").exists()


async def test_replaced_attempt_is_rejected(shapes: TwoShapes) -> None:
    async with shapes.collector(), uploading(shapes) as old, uploading(shapes, pod="b") as new:
        await old.begin()
        await new.begin()
        with pytest.raises(EnvironmentProblem, match="another attempt of shape 1 has begun"):
            await old.end("it failed")


async def test_a_name_cannot_lead_out_of_the_folder(shapes: TwoShapes) -> None:
    async with shapes.collector(), uploading(shapes) as uploader:
        await uploader.begin()
        with pytest.raises(EnvironmentProblem, match="not the name of a result"):
            await uploader.end("", (IndexFile("../x", 1, ""),))


async def test_terminating_index_does_not_wait_long(
    shapes: TwoShapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_uploads, "HURRIED_S", 0.1)
    async with uploading(shapes) as uploader:
        waiting = asyncio.create_task(uploader.begin(), name="begin")
        await asyncio.sleep(0)
        uploader.hurry()
        for sending in (waiting, uploader.end(STOPPED, is_tried_again=True)):
            with pytest.raises(EnvironmentProblem, match=r"has not responded for 0\.1 s"):
                await sending


async def test_client_without_a_key_is_ignored(shapes: TwoShapes) -> None:
    bus = Bus(shapes.addresses(), curve=CurveKeys.make().of([Service.RECORD_PROCESSOR]))
    async with shapes.collector() as client:
        uploader = Uploader(bus, (RUN_ID, "intruder", 1), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await uploader.begin()
        assert "0 pods at work" in (await client.status()).message
    await bus.close(linger_ms=0)
