"""An experiment of two shapes. Indexes and the collector communicate over real sockets. Only the
cluster is fake."""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from aiperf_svc.adapters.jobs.cluster_jobs import ClusterJobs
from aiperf_svc.adapters.jobs.shape_uploads import Uploader
from aiperf_svc.adapters.messaging.bus import Addresses, Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.experiments.fan_out import JobSeen, JobShapes
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.messages.indexes import STOPPED
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.job_index import UPLOADED
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.fan_out.collector import Collector, CollectorPlace
from aiperf_svc.workloads.registry import load_benchmark
from aiperf_svc.workloads.shapes import index_shapes
from tests.support.fake_folders import list_trials
from tests.support.fake_results import as_json
from tests.support.forked_commands import finished
from tests.support.ports import free_ports

JOB = "index-1-s"
RUN_ID, TOKEN = "0123456789abcdef", "of-the-test"
COMMAND = "aiperf-svc run variants --api-key ***"
INDEX_S = 180.0


class FakeIndexCluster:
    """A cluster with one Job whose state the test sets."""

    def __init__(self) -> None:
        self.seen: JobSeen | None = JobSeen(JOB, frozenset(), frozenset(), pods=0)
        self.alive: list[Json] = []
        self.lasts_s = math.inf
        self.parallelism: list[int] = []
        self.was_seen, self.is_applied = threading.Event(), threading.Event()
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
        self.is_applied.set()
        assert self.may_respond.wait(INDEX_S)
        return True

    def pods(self) -> list[Json]:
        return self.alive

    def left_s(self) -> float:
        return self.lasts_s


class TwoShapes:
    """Two shapes of an experiment, and the folder, addresses and keys that indexes and the
    collector share."""

    def __init__(self, folder: Path, *, retries: int = 0, **experiment: Any) -> None:
        self.folder, self.retries = folder, retries
        self.blocked = ""
        """File below the artifacts of indexes that none can write."""
        records_port, self.api_port, self.server_port = free_ports(3)
        self.ports = {"RECORDS": records_port}
        keys = CurveKeys.make()
        for name, service in (("collector", "records-manager"), ("index", "record-processor")):
            (folder / name).mkdir()
            keys.of([Service(service)]).save(folder / name)
        args = "deployment.target.args"
        config = {
            "name": "variants",
            "endpoint": {"url": "http://target", "model": "m", "streaming": True},
            "load": {"duration": "2s", "concurrency": 2, "grace_period": "2s"},
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
        self.cluster = FakeIndexCluster()

    def addresses(self) -> Addresses:
        return Addresses(base="tcp://127.0.0.1", ports=self.ports)

    @contextlib.asynccontextmanager
    async def collector(self) -> AsyncIterator[ResultsClient]:
        """Run the collector and yield a client of its API."""
        artifacts = self.folder / "artifacts"
        artifacts.mkdir(exist_ok=True)
        context = RunContext(
            run_id=RUN_ID,
            instance="collector",
            config=load_benchmark(self.config),
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
        """Run an index as in its pod and return its result."""
        return await asyncio.to_thread(self._index, number, failures)

    def _index(self, number: int, failures: int) -> "subprocess.CompletedProcess[str]":
        own = self.folder / f"pod-{number}-{failures}"
        (own / "server").mkdir(parents=True)
        (own / "artifacts" / self.blocked).mkdir(parents=True)
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
            "AIPERF_CLI_COMMAND": COMMAND,
            "JOB_COMPLETION_INDEX": str(number),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        finished(["index-setup"], cwd=own, env=environ, timeout=INDEX_S).check_returncode()
        with serving(own / "server", environ):
            return finished(["index"], cwd=own, env=environ, timeout=INDEX_S)


@contextlib.contextmanager
def serving(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """Run the server of an index in its own container's environment."""
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


async def final_state(client: ResultsClient) -> tuple[Status, dict[str, Any]]:
    """Wait for the collector's final state. Return its status and summary."""
    status = await until(client, lambda status: status.is_settled)
    return status, as_json(await client.results())


@contextlib.asynccontextmanager
async def uploading(
    shapes: TwoShapes, *, pod: str = "a", shape: int = 1
) -> AsyncIterator[Uploader]:
    bus = Bus(shapes.addresses(), curve=CurveKeys.load(shapes.folder / "index"))
    try:
        yield Uploader(bus, (RUN_ID, pod, 1), shape)
    finally:
        await bus.close()


def stopped_index(shapes: TwoShapes, count: int) -> Path:
    """Write the folder of an index of the first shape that was stopped after `count` trials."""
    left, ended = shapes.folder / f"played-{count}", list[tuple[Trial, str]]()
    for position, trial in enumerate(
        index_shapes(load_benchmark(shapes.config))[0].trials[: count + 1]
    ):
        folder = left / "trials" / trial.folder
        folder.mkdir(parents=True)
        (folder / "profile_export_aiperf.json").write_text('{"aiperf_svc": {"verdict": "valid"}}')
        ended.append((trial, "done" if position < count else "cancelled"))
    list_trials(left, ended)
    return left


async def send_first_shape(shapes: TwoShapes) -> None:
    """Upload all measurements of an index of the first shape."""
    async with uploading(shapes) as uploader:
        await uploader.begin()
        await uploader.end("", await uploader.upload(stopped_index(shapes, 2), UPLOADED))


async def stop(uploader: Uploader, left: Path) -> None:
    """Upload the folder of an index whose pod is stopped."""
    await uploader.end(STOPPED, await uploader.upload(left, UPLOADED), is_tried_again=True)
