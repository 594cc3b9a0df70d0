"""The collector of an experiment in Jobs: runs the indexes of the Jobs, receives their results, and
serves the whole as one run, like a records manager.

`core/experiments/fan_out.py` decides; this service carries its decisions out. Received data is
stored in its folder, so it continues after a restart of its container.
"""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiperf_svc.adapters.cluster.api.pod_client import ApiServer, url_of_api
from aiperf_svc.adapters.host.logs import set_up_logs
from aiperf_svc.adapters.jobs.cluster_jobs import ClusterJobs, JobPods, JobShares, absent_job
from aiperf_svc.adapters.jobs.shape_uploads import Receiver
from aiperf_svc.adapters.results_api.run_api import RunnerMessage
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.adapters.storage.shape_trials import Attempts, ShapeTrials
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.fan_out import (
    Cancelled,
    Event,
    FailShape,
    FanOut,
    Finish,
    Instruction,
    JobFailed,
    JobSeen,
    JobShapes,
    OutOfTime,
    SetParallelism,
    ShapeEnded,
    ShapeTried,
)
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.index_pods import COLLECTION_S, COLLECTOR
from aiperf_svc.protocol.messages.indexes import STOPPED, IndexEnded
from aiperf_svc.services.context import RunContext, make_bus, read_context
from aiperf_svc.services.fan_out.progress import FanOutProgress
from aiperf_svc.services.serving import serve_results
from aiperf_svc.workloads.shapes import index_shapes

POLL_S = 1.0
"""Seconds between checks of the Jobs."""
OUT_OF_TIME = f"deployment.ttl expires in {COLLECTION_S} s: trials that have not ended are not run"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CollectorPlace:
    """The settings of a collector, from the environment variables of its pod."""

    context: RunContext
    jobs: tuple[JobShapes, ...]
    cluster: ClusterJobs


def run_collector(environ: Mapping[str, str] = os.environ) -> int:
    """Collect until SIGTERM. Raises AiperfError."""
    place = read_place(environ)
    set_up_logs(place.context.run_id, [COLLECTOR], instance=COLLECTOR, environ=environ)
    asyncio.run(_run(place))
    return int(ExitCode.OK)


async def _run(place: CollectorPlace) -> None:
    collector, loop = Collector(place), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, collector.end)
    await collector.run()


def read_place(environ: Mapping[str, str]) -> CollectorPlace:
    """Read the settings of this collector. Raises ConfigError, EnvironmentProblem."""
    context = read_context(environ)
    try:
        named = json.loads(environ["AIPERF_JOBS"])
        stack, url = environ["AIPERF_STACK"], url_of_api(environ)
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; a collector runs only in a pod of a stack"
        ) from error
    try:
        api = ApiServer(url)
    except OSError as error:
        raise EnvironmentProblem(f"no service account: {error}") from error
    return CollectorPlace(
        context=context,
        jobs=tuple(JobShapes(name, tuple(shapes)) for name, shapes in named.items()),
        cluster=ClusterJobs(api, namespace=context.namespace, stack=stack),
    )


class Collector:
    def __init__(self, place: CollectorPlace) -> None:
        """Raises ConfigError if its folder cannot be read."""
        context = self._context = place.context
        self._jobs, self._cluster = place.jobs, place.cluster
        config = context.config
        assert config.experiment is not None
        limit = config.experiment.parallel
        self._machine = FanOut(
            place.jobs,
            limit=None if limit == "auto" else limit,
            stops_on_failure=config.experiment.on_failure == "stop",
        )
        self._shapes = index_shapes(config)
        self._trials = ShapeTrials(
            config,
            self._shapes,
            context.artifacts,
            bucket_folder=context.run.bucket_folder(
                uploads.folder_of(config.name, context.run_id, time.time_ns())
            ),
        )
        self._attempts = Attempts(self._trials)
        self._shares = JobShares(place.cluster)
        self._progress = FanOutProgress(
            total=sum(len(each.trials) for each in self._shapes), started_mono_s=time.monotonic()
        )
        self._job_pods = JobPods(unplaced_s=config.deployment.ready_timeout / 1e9)
        self._cancelled = context.state / "cancelled"
        """File with the reason of a cancellation; a restarted collector continues with it."""
        self._missing_files = context.state / "missing-files"
        """File with the reason why files of a shape are missing, which a restarted collector still
        reports."""
        self._jobs_file = context.state / "jobs.json"
        """File with the names of the Jobs that have existed, by which a restarted collector
        recognises that a missing Job was deleted."""
        self._present: set[str] = set()
        """The names in that file."""
        self._next_ttl_check_mono_s = 0.0
        """Time at which the end of the stack's time to live is read from the cluster again."""
        self._reported: set[str] = set()
        """Pods that have reported their end."""
        self._ended = asyncio.Event()
        self._results: ExperimentResult | None = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Serve until `end` is called."""
        context, bus = self._context, make_bus(self._context)
        try:
            await bus.start()
            api = await serve_results(self, context)
            try:
                await self._restore()
                receiver = Receiver(
                    bus,
                    (context.run_id, COLLECTOR, context.epoch),
                    folder_of=self._trials.folder_of,
                    shapes=frozenset(range(1, len(self._shapes) + 1)),
                    known=frozenset(
                        n for n in range(1, len(self._shapes) + 1) if self._trials.has_all(n)
                    ),
                    on_begin=self._begin,
                    on_end=self._collect,
                )
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(receiver.run(), name="receive"),
                        group.create_task(self._follow_jobs(), name="follow the Jobs"),
                    ]
                    await self._ended.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                await api.close()
        finally:
            await bus.close()

    def end(self) -> None:
        self._ended.set()

    # --- messages of indexes ---------------------------------------------------------------------

    def _begin(self, shape: int, pod: str) -> None:
        self._progress.running[shape] = pod
        self._progress.changes.note()

    async def _collect(self, ended: IndexEnded, folder: Path) -> bool:
        """Record the end of an attempt; return whether the shape now has an outcome."""
        async with self._lock:
            shape, reason = ended.shape, one_line(ended.reason)
            self._progress.running.pop(shape, None)
            if reason != STOPPED:
                self._reported.add(ended.sender)
            if ended.is_tried_again and not self._machine.is_ending:
                log.info("shape %d: %s; it is tried again", shape, reason)
                await asyncio.to_thread(self._attempts.set_aside, shape, folder)
                self._carry_out(self._machine.handle(ShapeTried(shape, reason)))
                return False
            # A stopped shape keeps its finished trials, and has not failed.
            failure = "" if ended.is_tried_again else reason
            await asyncio.to_thread(self._attempts.collect, shape, folder)
            if failure and not self._progress.is_cancelling:
                self._trials.fail_unfinished(shape, failure, with_stopped=True)
                if not self._count(shape):
                    # All trials have results: files are missing, or the server ended later.
                    missing = self._progress.artifact_error = f"shape {shape}: {failure}"
                    write_file(self._missing_files, missing.encode)
                await asyncio.to_thread(self._trials.write_progress)
            self._end_shape(shape)
            return True

    def _end_shape(self, shape: int) -> None:
        has_failed = self._count(shape)
        self._carry_out(self._machine.handle(ShapeEnded(shape, has_failed)))

    def _count(self, shape: int) -> bool:
        """Count the finished trials of a shape; return whether one has failed."""
        return self._progress.count(self._trials.rows_of(shape))

    async def _restore(self) -> None:
        """Read the data from before a restart of this container, and continue. Raises ConfigError,
        EnvironmentProblem."""
        self._carry_out(self._machine.begin())
        if self._jobs_file.exists():
            self._present |= set(json.loads(self._jobs_file.read_bytes()))
        await asyncio.to_thread(self._trials.add, self._context.artifacts)
        await asyncio.to_thread(self._attempts.collect_begun)
        for shape in range(1, len(self._shapes) + 1):
            if self._trials.has_all(shape):
                self._end_shape(shape)
            else:
                self._count(shape)
        self._progress.end_earlier()
        if self._missing_files.exists():
            self._progress.artifact_error = self._missing_files.read_text()
        if self._cancelled.exists():
            self._progress.is_cancelling = True
            self._carry_out(self._machine.handle(Cancelled(self._cancelled.read_text())))

    # --- state of the cluster --------------------------------------------------------------------

    async def _follow_jobs(self) -> None:
        last_error = ""
        while not self._progress.is_settled:
            try:
                await self._check_jobs()
                last_error = ""
            except EnvironmentProblem as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("%s", last_error)
            if self._progress.state.is_final:
                await self._apply_last_shares()
                await self._finish()
                return
            await asyncio.sleep(POLL_S)

    async def _check_jobs(self) -> None:
        """Check all Jobs and their pods once. Raises EnvironmentProblem."""
        await self._check_time_left()
        await self._shares.apply()
        pods = await asyncio.to_thread(self._cluster.pods)
        seen = [await self._read_job(job.name, pods) for job in self._jobs]
        released, progress = self._shares.released, self._progress
        async with self._lock:
            found = self._job_pods.handle(pods, released, now_s=time.monotonic())
            shapes = {job.name: job.shapes for job in self._jobs}
            events: list[Event] = [
                ShapeTried(shapes[job][index], reason)
                for pod, job, index, reason in found.pods
                if job in shapes and pod not in self._reported
            ]
            events += seen
            events += [JobFailed(*each) for each in found.jobs.items()]
            ended = {pod for pod, *_ in found.pods}
            running = progress.running.items()
            progress.running = {n: pod for n, pod in running if pod not in ended}
            failed = progress.failed
            for event in events:
                self._carry_out(self._machine.handle(event))
            if progress.failed > failed:
                await asyncio.to_thread(self._trials.write_progress)

    async def _check_time_left(self) -> None:
        """End the experiment while there is time to collect it. Raises EnvironmentProblem."""
        if self._next_ttl_check_mono_s > time.monotonic() or self._machine.is_ending:
            return
        left_s = await asyncio.to_thread(self._cluster.left_s) - COLLECTION_S
        self._next_ttl_check_mono_s = time.monotonic() + left_s
        if left_s <= 0:
            self._carry_out(self._machine.handle(OutOfTime(OUT_OF_TIME)))

    async def _read_job(self, name: str, pods: Sequence[Json]) -> JobSeen:
        """Return the state of a Job. Raises EnvironmentProblem."""
        found = await asyncio.to_thread(self._cluster.see, name)
        if found is None:
            return absent_job(name, pods, was_there=name in self._present)
        if name not in self._present:
            names = sorted({*self._present, name})
            write_file(self._jobs_file, lambda: json.dumps(names).encode())
            self._present.add(name)
        return found

    async def _apply_last_shares(self) -> None:
        """Set the parallelism that the cluster has not accepted: after the last check, a Job may
        still create pods."""
        try:
            await self._shares.apply()
        except EnvironmentProblem as error:
            log.warning("%s", error)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            match each:
                case SetParallelism(name, parallelism):
                    self._shares.set(name, parallelism)
                case FailShape(shape, reason):
                    log.warning("shape %d failed: %s", shape, reason)
                    self._progress.running.pop(shape, None)
                    self._fail(shape, reason)
                    self._end_shape(shape)
                case Finish(state, reason):
                    self._progress.state, self._progress.reason = state, reason
        self._progress.changes.note()

    def _fail(self, shape: int, reason: str) -> None:
        """Keep the finished trials of a shape, and let the others fail."""
        try:
            self._attempts.collect(shape)
        except AiperfError as error:
            log.error("%s", error)
        self._trials.fail_unfinished(shape, reason, with_stopped=True)

    async def _finish(self) -> None:
        """Write the files of the experiment, and upload them."""
        progress = self._progress
        try:
            for shape in self._attempts.set_aside_shapes:
                await asyncio.to_thread(self._attempts.collect, shape)
                self._count(shape)
            write = self._trials.write
            self._results = await asyncio.to_thread(write, self._context.run_id)
            progress.has_summary = self._results is not None
            progress.uploaded_to = await asyncio.to_thread(self._trials.upload, os.environ)
        except AiperfError as error:
            log.error("%s", error)
            progress.artifact_error = str(error)
        progress.is_settled = True
        progress.changes.note()

    # --- requests of the results API -------------------------------------------------------------

    def status(self) -> Status:
        """Return the progress of the experiment."""
        return self._progress.status(time.monotonic())

    async def wait_change(self, after: int, timeout_s: float) -> None:
        await self._progress.changes.wait(after, timeout_s)

    def cancel(self, reason: str) -> None:
        """Start no more indexes, and end the running ones, which send their finished trials."""
        if not self._progress.is_cancelling and not self._progress.state.is_final:
            self._progress.is_cancelling = True
            try:
                write_file(self._cancelled, reason.encode)
            except EnvironmentProblem as error:
                log.error("%s", error)
            self._carry_out(self._machine.handle(Cancelled(reason)))

    def handle_message(self, message: RunnerMessage) -> None:
        """Do nothing: indexes have no common start or events, and a server in each pod."""

    def collected(self) -> None:
        """Let this process end, because it is no longer needed."""
        # Kubernetes would restart a container that ends, so it runs until the stack is removed.

    def results(self) -> ExperimentResult | None:
        return self._results

    def folder(self) -> Path:
        return self._context.artifacts
