"""Indexes with a real server beside them, and a collector with real sockets between them. Only the
cluster is played."""

import asyncio
import contextlib
import functools
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from aiperf_svc.adapters.exports.experiment_file import NAME
from aiperf_svc.adapters.jobs import shape_uploads
from aiperf_svc.adapters.jobs.cluster_jobs import DELETED, ClusterJobs, Object
from aiperf_svc.adapters.jobs.server_files import BUILT
from aiperf_svc.adapters.jobs.shape_uploads import Uploader
from aiperf_svc.adapters.messaging.bus import Addresses, Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.any_kind.loading import load_any
from aiperf_svc.any_kind.shapes import index_shapes
from aiperf_svc.core.experiments.fan_out import UNKNOWN, JobSeen, JobShapes
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.index_pods import COLLECTION_S
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.messages.indexes import STOPPED, IndexFile
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.fan_out.collector import Collector, CollectorPlace
from aiperf_svc.runner.fan_out.index import SENT, why_not_ready
from aiperf_svc.services.context import RunContext

JOB = "index-1-s"
RUN_ID, TOKEN = "0123456789abcdef", "of-the-test"
INDEX_S = 90.0
pytestmark = pytest.mark.skipif(not BUILT.is_file(), reason="no C compiler has made the launcher")


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class PlayedCluster:
    """A cluster that says of its one Job what the test wants."""

    def __init__(self) -> None:
        self.seen: JobSeen | None = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        self.alive: list[Object] = []
        self.lasts_s = math.inf
        self.parallelism: list[int] = []
        self.was_seen, self.is_told = threading.Event(), threading.Event()
        self.may_respond = threading.Event()
        self.may_respond.set()

    def see(self, name: str) -> JobSeen | None:
        assert name == JOB
        self.was_seen.set()
        return self.seen

    def set_parallelism(self, name: str, parallelism: int) -> bool:
        assert name == JOB
        if self.seen is None:
            return False
        self.parallelism.append(parallelism)
        self.is_told.set()
        assert self.may_respond.wait(INDEX_S)
        return True

    def pods(self) -> list[Object]:
        return self.alive

    def left_s(self) -> float:
        return self.lasts_s


class Place:
    """Two shapes of an experiment, and what their indexes and the collector share."""

    def __init__(self, folder: Path, *, retries: int = 0, **experiment: Any) -> None:
        self.folder, self.retries = folder, retries
        self.ports = {"RECORDS": free_port()}
        self.api_port, self.server_port = free_port(), free_port()
        keys = CurveKeys.make()
        for name, service in (("collector", "records-manager"), ("index", "record-processor")):
            (folder / name).mkdir()
            keys.of([Service(service)]).save(folder / name)
        args = "deployment.target.args"
        config = {
            "name": "variants",
            "endpoint": {"url": "http://target", "model": "m", "streaming": True},
            "load": {"duration": "1s", "concurrency": 2, "grace_period": "2s"},
            "workers": {"max": 1},
            "dataset": {"entries": 20, "output_tokens": {"mean": 4}},
            "experiment": {
                "product": {args: [["--ttft", "30ms", "--tokens", "4"], ["--no-such-flag"]]},
                "repetitions": 2,
                "fan_out": "jobs",
                "retries": retries,
                **experiment,
            },
            "deployment": {"target": {"kind": "mock", "port": self.server_port}},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.cluster = PlayedCluster()

    def addresses(self) -> Addresses:
        return Addresses(base="tcp://127.0.0.1", ports=self.ports)

    @contextlib.asynccontextmanager
    async def collector(self) -> AsyncIterator[ResultsClient]:
        """The collector at work, and a client of its API."""
        artifacts = self.folder / "artifacts"
        artifacts.mkdir(exist_ok=True)
        context = RunContext(
            run_id=RUN_ID,
            instance="collector",
            config=load_any(self.config),
            topology=Topology("compact", (), 0, 0, "direct"),
            addresses=self.addresses(),
            artifacts=artifacts,
            state=artifacts,
            api_token=TOKEN,
            api_port=self.api_port,
            curve=CurveKeys.load(self.folder / "collector"),
        )
        jobs = (JobShapes(JOB, (1, 2)),)
        cluster = cast(ClusterJobs, self.cluster)
        collector = Collector(CollectorPlace(context=context, jobs=jobs, cluster=cluster))
        task = asyncio.create_task(collector.run(), name="collector")
        try:
            url = f"http://127.0.0.1:{self.api_port}"
            async with ResultsClient(url, token=TOKEN) as client:
                await until(client, lambda _: True)
                yield client
        finally:
            collector.end()
            await task

    async def index(self, number: int, *, failures: int = 0) -> subprocess.CompletedProcess[str]:
        """How an index ends, which runs as in its pod."""
        return await asyncio.to_thread(self._index, number, failures)

    def _index(self, number: int, failures: int) -> "subprocess.CompletedProcess[str]":
        own = self.folder / f"pod-{number}-{failures}"
        (own / "server").mkdir(parents=True)
        (own / "artifacts").mkdir()
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("AIPERF_")},
            "AIPERF_CONFIG": str(self.config),
            "AIPERF_SHAPES": "1,2",
            "AIPERF_RETRIES": str(self.retries),
            "AIPERF_FAILURES": str(failures),
            "AIPERF_RUN_ID": RUN_ID,
            "AIPERF_SERVICE_ID": f"{JOB}-{number}-{failures}",
            "AIPERF_BUS": "tcp://127.0.0.1",
            "AIPERF_PORTS": json.dumps(self.ports),
            "AIPERF_CURVE_DIR": str(self.folder / "index"),
            "AIPERF_ARTIFACTS": str(own / "artifacts"),
            "AIPERF_SERVER": str(own / "server"),
            "JOB_COMPLETION_INDEX": str(number),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        program = (sys.executable, "-m", "aiperf_svc")
        subprocess.run((*program, "index-setup"), env=environ, check=True, timeout=INDEX_S)
        with serving(own / "server", environ):
            return subprocess.run(
                (*program, "index"),
                env=environ,
                check=False,
                capture_output=True,
                text=True,
                timeout=INDEX_S,
            )


@contextlib.contextmanager
def serving(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """The server of an index, in its own container."""
    process = subprocess.Popen((folder / "server_launcher", folder, "30"), env=environ)
    try:
        yield
    finally:
        process.terminate()
        process.wait(INDEX_S)


async def until(client: ResultsClient, is_so: Any) -> Status:
    async with asyncio.timeout(INDEX_S):
        while True:
            with contextlib.suppress(EnvironmentProblem):
                status = await client.status()
                if is_so(status):
                    return status
                await client.status(after=status.number, timeout_s=1.0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, retries=0)


async def test_what_indexes_measure_becomes_one_experiment(place: Place) -> None:
    async with place.collector() as client:
        good = await place.index(0)
        assert good.returncode == ExitCode.OK, good.stderr
        status = await client.status()
        assert status.experiment is not None
        assert (status.experiment.ended, status.experiment.failed) == (2, 0)
        bad = await place.index(1)
        assert bad.returncode == ExitCode.BENCHMARK_FAILED, bad.stderr
        assert "the server ended with exit code 2 before it was ready" in bad.stderr
        status = await until(client, lambda status: status.is_settled)
        assert (status.state, status.artifact_error) == ("done", "")
        summary = await client.summary()
        await client.download_all(place.folder / "fetched")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2
    assert "exit code 2" in summary["trials"][1]["reason"]
    assert 30 <= summary["trials"][0]["values"]["time_to_first_token_p50"] < 90
    fetched = place.folder / "fetched"
    assert len(list((fetched / "trials").iterdir())) == 2
    assert (fetched / "report.html").is_file()
    assert json.loads((fetched / "experiment.json").read_bytes()) == summary


def test_the_server_of_an_index_is_asked_without_the_images_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    page = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            assert why_not_ready(server.server_port, "/") == ""
            assert why_not_ready(server.server_port, "/health") == "/health: status 404"
        finally:
            server.shutdown()
            serving.join()


async def test_an_attempt_that_is_tried_again_leaves_no_results(tmp_path: Path) -> None:
    place = Place(tmp_path, retries=1)
    async with place.collector() as client:
        bad = await place.index(1)
        assert bad.returncode == ExitCode.BENCHMARK_FAILED, bad.stderr
        status = await client.status()
        assert status.experiment is not None
        assert status.experiment.ended == 0
        await place.index(1, failures=1)
        status = await client.status()
        assert status.experiment is not None
        assert (status.experiment.ended, status.experiment.failed) == (2, 2)


async def test_a_collector_that_is_started_again_goes_on(place: Place) -> None:
    async with place.collector():
        assert (await place.index(0)).returncode == ExitCode.OK
    place.cluster.seen = JobSeen(JOB, frozenset({0}), frozenset({1}), pods=0)
    async with place.collector() as client:
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert status.state == "done"
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2


async def test_a_cancelled_experiment_lets_no_index_run(place: Place) -> None:
    async with place.collector() as client:
        assert (await place.index(0)).returncode == ExitCode.OK
        await client.cancel("by the test")
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert (status.state, status.reason) == ("cancelled", "by the test")
    assert [trial["number"] for trial in summary["trials"]] == [1, 3]
    assert place.cluster.parallelism == [1, 0]


async def test_a_job_is_stopped_although_it_is_being_started(place: Place) -> None:
    place.cluster.may_respond.clear()
    async with place.collector() as client:
        assert await asyncio.to_thread(place.cluster.is_told.wait, INDEX_S)
        await client.cancel("by the test")
        place.cluster.may_respond.set()
        await until(client, lambda status: status.is_settled)
    assert place.cluster.parallelism == [1, 0]


@contextlib.asynccontextmanager
async def uploading(place: Place, *, pod: str = "a", shape: int = 1) -> AsyncIterator[Uploader]:
    bus = Bus(place.addresses(), curve=CurveKeys.load(place.folder / "index"))
    try:
        yield Uploader(bus, (RUN_ID, pod, 1), shape)
    finally:
        await bus.close()


def played(place: Place, count: int) -> Path:
    """What an index of the first shape leaves that is stopped after so many trials."""
    left, listed = place.folder / f"played-{count}", []
    for position, trial in enumerate(index_shapes(load_any(place.config))[0].trials[: count + 1]):
        folder = left / "trials" / trial.folder
        folder.mkdir(parents=True)
        (folder / "profile_export_aiperf.json").write_text('{"aiperf_svc": {"verdict": "valid"}}')
        listed.append(
            {
                "number": trial.number,
                "repetition": trial.repetition,
                "parameters": trial.parameters,
                "state": "done" if position < count else "cancelled",
                "reason": "",
                "folder": trial.folder,
            }
        )
    written = {"schema_version": "experiment/1", "version": "1", "trials": listed, "config": {}}
    (left / NAME).write_text(json.dumps(written))
    return left


async def test_a_shape_is_taken_again_after_its_trials_were_and_could_not_be_noted(
    place: Place,
) -> None:
    left = played(place, 2)
    shutil.copytree(left / "trials", place.folder / "artifacts" / "trials")
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        await uploader.end("", await uploader.upload(left, SENT))
        status = await client.status()
    assert status.experiment is not None
    assert (status.experiment.ended, status.experiment.failed) == (2, 0)


async def test_with_stop_a_shape_that_is_stopped_keeps_the_trials_that_have_ended(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, on_failure="stop")
    left = played(place, 2)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=2)
    async with (
        place.collector() as client,
        uploading(place) as stopped,
        uploading(place, pod="b", shape=2) as failed,
    ):
        await stopped.begin()
        await failed.begin()
        await failed.end("the server is broken")
        files = await stopped.upload(left, SENT)
        await stopped.end(STOPPED, files, is_tried_again=True)
        place.cluster.seen = JobSeen(JOB, frozenset(), frozenset({1}), pods=0)
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert (status.state, status.reason.rpartition(": ")[2]) == (
        "failed",
        "stop, and shape 2 failed",
    )
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2


async def test_an_end_that_comes_again_is_taken_by_a_collector_that_was_started_again_too(
    place: Place,
) -> None:
    async with uploading(place) as uploader:
        for _ in range(2):
            async with place.collector() as client:
                for _ in range(2):
                    await uploader.end("it failed")
                status = await client.status()
                assert status.experiment is not None
                assert (status.experiment.ended, status.experiment.failed) == (2, 2)
                with pytest.raises(EnvironmentProblem, match="the outcome of shape 1 is known"):
                    async with uploading(place, pod="b") as other:
                        await other.begin()
    # What ended before the collector was started again says nothing of its pace since then.
    assert status.experiment.left_s is None


async def test_a_cancel_and_the_trials_before_it_outlive_a_restart_of_the_collector(
    place: Place,
) -> None:
    left = played(place, 1)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        await client.cancel("by the test")
        await uploader.end(STOPPED, await uploader.upload(left, SENT), is_tried_again=True)
    place.cluster.parallelism.clear()
    async with place.collector() as client:
        status = await until(client, lambda status: status.is_cancelling)
        assert status.experiment is not None
        assert status.experiment.ended == 2
        place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert (status.state, status.reason) == ("cancelled", "by the test")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "cancelled"]
    assert set(place.cluster.parallelism) == {0}


async def test_why_a_shape_failed_outlives_a_restart_of_the_collector(tmp_path: Path) -> None:
    place = Place(tmp_path, retries=1)
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        await uploader.end("the server is broken", is_tried_again=True)
        place.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0}), pods=0)
        await until(client, lambda status: status.experiment.ended == 2)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
    async with place.collector() as client:
        await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert [t["reason"] for t in summary["trials"]] == ["the server is broken", UNKNOWN] * 2


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_the_trials_of_an_index_that_was_stopped_count_if_no_attempt_follows(
    place: Place, is_restarted: bool
) -> None:
    left = played(place, 1)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        await uploader.end(STOPPED, await uploader.upload(left, SENT), is_tried_again=True)
        status = await client.status()
        assert status.experiment is not None
        assert status.experiment.ended == 0
        if not is_restarted:
            place.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
            await until(client, lambda status: status.is_settled)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
    async with place.collector() as client:
        await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed", "failed", "failed"]
    assert list((place.folder / "artifacts").glob("shapes/*-stopped*")) == []


async def test_an_attempt_that_follows_a_stopped_one_counts_in_its_place(place: Place) -> None:
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with place.collector() as client:
        async with uploading(place) as stopped:
            await stopped.begin()
            files = await stopped.upload(played(place, 2), SENT)
            await stopped.end(STOPPED, files, is_tried_again=True)
        async with uploading(place, pod="b") as failed:
            await failed.begin()
            await failed.end("the server is broken", await failed.upload(played(place, 1), SENT))
        await client.cancel("by the test")
        place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert [(t["number"], t["state"]) for t in summary["trials"]] == [(1, "done"), (3, "failed")]


async def test_a_job_that_somebody_deletes_ends_when_its_pods_have_sent_their_trials(
    place: Place,
) -> None:
    left = played(place, 1)
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        assert await asyncio.to_thread(place.cluster.was_seen.wait, INDEX_S)
        labels = {
            "batch.kubernetes.io/job-name": JOB,
            "batch.kubernetes.io/job-completion-index": "0",
        }
        pod = {"metadata": {"name": "a", "labels": labels}, "status": {"phase": "Running"}}
        place.cluster.alive, place.cluster.seen = [pod], None
        await uploader.end(STOPPED, await uploader.upload(left, SENT), is_tried_again=True)
        assert (await client.status()).state == "profiling"
        place.cluster.alive = []
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert status.state == "done"
    assert [t["state"] for t in summary["trials"]] == ["done", "failed", "failed", "failed"]
    assert {t["reason"] for t in summary["trials"][1:]} == {DELETED}


async def test_the_trials_that_have_ended_are_there_before_the_stack_deletes_itself(
    place: Place,
) -> None:
    place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=1)
    place.cluster.lasts_s = COLLECTION_S + 0.01
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        assert await asyncio.to_thread(place.cluster.was_seen.wait, INDEX_S)
        place.cluster.lasts_s = COLLECTION_S
        await until(client, lambda _: place.cluster.parallelism == [1, 0])
        await uploader.end(
            STOPPED, await uploader.upload(played(place, 1), SENT), is_tried_again=True
        )
        place.cluster.seen = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        status = await until(client, lambda status: status.is_settled)
        summary = await client.summary()
    assert (status.state, status.exit_code) == ("failed", ExitCode.BENCHMARK_FAILED)
    assert status.reason.startswith("deployment.ttl is over in 120 s")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "cancelled"]


async def test_a_job_that_is_not_made_yet_is_waited_for(place: Place) -> None:
    there, place.cluster.seen = place.cluster.seen, None
    async with place.collector() as client:
        assert await asyncio.to_thread(place.cluster.was_seen.wait, INDEX_S)
        place.cluster.seen = there
        status = await until(client, lambda _: place.cluster.parallelism == [1])
    assert (status.state, status.reason) == ("profiling", "")


async def test_files_that_are_not_whole_are_no_trial(place: Place) -> None:
    sent = place.folder / "sent"
    (sent / "trials").mkdir(parents=True)
    (sent / "trials" / "one").write_bytes(b"x" * 3_000_000)
    async with place.collector() as client, uploading(place) as uploader:
        await uploader.begin()
        (file,) = await uploader.upload(sent, ["trials"])
        for broken in (
            IndexFile(file.name, file.size, "0" * 64),
            IndexFile(file.name, file.size + 1, file.sha256),
            IndexFile("trials/two", 1, file.sha256),
        ):
            with pytest.raises(EnvironmentProblem, match="has not arrived as it was sent"):
                await uploader.end("", (broken,))
        with pytest.raises(EnvironmentProblem, match="is not in the list of files"):
            await uploader.end("", ())
        status = await client.status()
    assert status.experiment is not None
    assert status.experiment.ended == 0
    assert not (place.folder / "artifacts" / "trials").exists()


async def test_an_attempt_that_another_has_replaced_is_not_taken(place: Place) -> None:
    async with place.collector(), uploading(place) as old, uploading(place, pod="b") as new:
        await old.begin()
        await new.begin()
        with pytest.raises(EnvironmentProblem, match="another attempt of shape 1 has begun"):
            await old.end("it failed")


async def test_a_name_cannot_lead_out_of_the_folder(place: Place) -> None:
    async with place.collector(), uploading(place) as uploader:
        await uploader.begin()
        with pytest.raises(EnvironmentProblem, match="no name of a result"):
            await uploader.end("", (IndexFile("../x", 1, ""),))


async def test_an_index_that_is_told_to_end_does_not_wait_long_for_the_collector(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_uploads, "HURRIED_S", 0.1)
    async with uploading(place) as uploader:
        waiting = asyncio.create_task(uploader.begin(), name="begin")
        await asyncio.sleep(0)
        uploader.hurry()
        for sending in (waiting, uploader.end(STOPPED, is_tried_again=True)):
            with pytest.raises(EnvironmentProblem, match=r"has not responded for 0\.1 s"):
                await sending


async def test_who_has_no_key_is_not_heard(place: Place) -> None:
    bus = Bus(place.addresses(), curve=CurveKeys.make().of([Service.RECORD_PROCESSOR]))
    async with place.collector() as client:
        uploader = Uploader(bus, (RUN_ID, "intruder", 1), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await uploader.begin()
        assert "0 pods at work" in (await client.status()).message
    await bus.close(linger_ms=0)
