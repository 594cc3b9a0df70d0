"""An index of a Job: runs the trials of its shape beside the server in its pod, as a local run, and
uploads their files to the collector."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import NAME, is_experiment, read_experiment_file
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.jobs.index_pod import (
    ChosenShape,
    choose_shape,
    end_of_server,
    readiness_problem,
)
from aiperf_svc.adapters.jobs.shape_uploads import Uploader
from aiperf_svc.adapters.messaging.bus import Bus
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal.screens import Screen
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import AiperfError, BenchmarkFailed, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.index_pods import LAUNCH_DIR, index_config, index_topology
from aiperf_svc.plan.pods import ImagePlan
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.target import target_pod
from aiperf_svc.protocol.messages.indexes import STOPPED, IndexFile
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import fork_server
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import PartContext
from aiperf_svc.runner.process_placement import LocalServices
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.services.context import read_addresses, read_curve
from aiperf_svc.workloads.shapes import shape_config

UPLOADED = (NAME, TRIALS, "logs")
"""Parts of the run's folder that are uploaded. The rest would describe one index only."""
SECRETS = (PAGES_KEY_ENV, TARGET_KEY_ENV)
"""Secret variables that the services of the run need."""
POLL_S = 0.25
"""Seconds between two checks of the server."""


def run_index(environ: Mapping[str, str] = os.environ) -> int:
    """Run the index that the environment describes, and return its exit code. The Job does not
    retry BAD_CONFIG. Raises AiperfError if the index cannot start."""
    chosen = choose_shape(environ)
    with fork_server.starting() as forks:
        return int(asyncio.run(_Index(chosen, environ, forks).run()))


def local_config(chosen: ChosenShape) -> BenchmarkConfig:
    """Return the config of the local run. The Job counts the attempts, and the collector uploads to
    the bucket."""
    shape = shape_config(chosen.config, chosen.shape).inference
    assert shape is not None
    config = index_config(shape)
    experiment = config.experiment
    assert experiment is not None
    changed = {"retries": 0, "on_failure": "continue", "fan_out": "stacks", "parallel": 1}
    return config.model_copy(
        update={
            "experiment": experiment.model_copy(update=changed),
            "artifacts": config.artifacts.model_copy(update={"s3": None}),
        }
    )


class _Index:
    def __init__(
        self, chosen: ChosenShape, environ: Mapping[str, str], forks: ForkServer | None
    ) -> None:
        self._chosen, self._environ, self._forks = chosen, environ, forks
        self._config = local_config(chosen)
        self._folder = Path(environ["AIPERF_ARTIFACTS"]) / f"shape-{chosen.number}"
        self._server = Path(environ.get("AIPERF_SERVER", LAUNCH_DIR))
        """Folder of the server's launcher."""
        self._server_end = ""
        """How the server ended; empty while it runs."""
        self._missing_files = ""
        """Why files of a trial are missing, although all trials have results."""

    async def run(self) -> ExitCode:
        environ = self._environ
        bus = Bus(read_addresses(environ), curve=read_curve(environ))
        attempt = (environ["AIPERF_RUN_ID"], environ["AIPERF_SERVICE_ID"], time.time_ns())
        uploader = Uploader(bus, attempt, self._chosen.number)
        failures = environ.get("AIPERF_FAILURES") or "0"
        may_be_tried_again = int(failures) < int(environ["AIPERF_RETRIES"])

        def hurry() -> None:
            # The end of the server also interrupts the run, but not the upload.
            if not self._server_end:
                uploader.hurry()

        try:
            with Interrupts(hurry) as interrupts:
                await uploader.begin()
                try:
                    reason = await self._run_trials(interrupts)
                except ConfigError as error:
                    await uploader.end(str(error))
                    return self._report_failure(str(error), ExitCode.BAD_CONFIG)
                except AiperfError as error:
                    reason = str(error)
                if interrupts.count and not self._server_end:
                    # The collector knows whether it stopped this index itself.
                    await uploader.end(STOPPED, await self._upload(uploader), is_tried_again=True)
                    return ExitCode.INTERRUPTED
                # The files of this attempt count if no later attempt uploads any.
                await uploader.end(
                    reason or self._missing_files,
                    await self._upload(uploader),
                    is_tried_again=bool(reason) and may_be_tried_again,
                )
        finally:
            await bus.close()
        return self._report_failure(reason, ExitCode.BENCHMARK_FAILED) if reason else ExitCode.OK

    def _report_failure(self, reason: str, code: ExitCode) -> ExitCode:
        print(f"error: {reason}", file=sys.stderr, flush=True)
        return code

    async def _upload(self, uploader: Uploader) -> tuple[IndexFile, ...]:
        """Upload the files of the trials, if any has ended."""
        return await uploader.upload(self._folder, UPLOADED) if is_experiment(self._folder) else ()

    async def _run_trials(self, interrupts: Interrupts) -> str:
        """Run all trials. Returns why the attempt failed, else empty. Raises AiperfError."""
        await self._wait_until_ready(interrupts)
        if interrupts.count:
            return STOPPED
        async with Tasks() as tasks:
            tasks.start(self._watch_server(interrupts), "watch the server")
            outcome = await self._run_local(interrupts)
        self._server_end = self._server_end or end_of_server(self._server)
        if self._server_end:
            return f"the server {self._server_end}"
        if outcome.state == RunState.FAILED:
            return outcome.reason
        folder = self._folder
        trials = read_experiment_file(folder).trials if is_experiment(folder) else ()
        failed = (t for t in trials if t.state == RunState.FAILED)
        reason = next((f"trial {t.number} failed: {t.reason}" for t in failed), "")
        if len(trials) < len(self._chosen.shape.trials):
            return reason or outcome.artifact_error
        self._missing_files = outcome.artifact_error
        return reason

    async def _run_local(self, interrupts: Interrupts) -> RunOutcome:
        secrets = {name: self._environ[name] for name in SECRETS if name in self._environ}
        with folders.private_folder() as private:
            run = LocalRun(
                config=self._config,
                topology=index_topology(self._chosen.configs),
                options=RunOptions(ui="plain", secrets=secrets),
                run=RunValues.read(self._environ),
                private=private,
                artifacts=folders.make_folder(self._folder),
                logs=self._folder / "logs",
            )
            context = PartContext(interrupts, Screen(run.options.ui))
            return await LocalServices(run, self._forks).run(context)

    async def _watch_server(self, interrupts: Interrupts) -> None:
        """Stop the run when the server has ended."""
        while not self._server_end:
            await asyncio.sleep(POLL_S)
            self._server_end = end_of_server(self._server)
        interrupts.add()

    async def _wait_until_ready(self, interrupts: Interrupts) -> None:
        """Wait for the server, or an interrupt. Raises BenchmarkFailed if the server has ended or
        takes too long."""
        config = self._chosen.configs[0]
        target = config.deployment.target
        pod = target_pod(config, ImagePlan("", ""))
        assert pod is not None
        assert pod.probe is not None
        until_mono_s = time.monotonic() + target.ready_timeout / 1e9
        reason = "not tried"
        while reason and not interrupts.count:
            if ended := end_of_server(self._server):
                raise BenchmarkFailed(f"the server {ended} before it was ready")
            reason = await asyncio.to_thread(readiness_problem, target.port, pod.probe.path)
            if reason and time.monotonic() > until_mono_s:
                raise BenchmarkFailed(
                    f"the server is not ready after {format_duration(target.ready_timeout)} "
                    f"(deployment.target.ready_timeout): {reason}"
                )
            if reason:
                await asyncio.sleep(POLL_S)
