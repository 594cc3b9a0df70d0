"""A run on this machine: the services as processes, from the plan to the last one gone.

The launcher knows nothing of the run but what its HTTP API says and which processes have ended. It
stops the run on the first Ctrl-C and leaves on the second; either way nothing stays behind.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.machine import local_facts
from aiperf_svc.adapters.results_client import ApiRefused, ApiUnavailable, ResultsClient
from aiperf_svc.adapters.run_status import Status
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.domain.errors import (
    AiperfError,
    BenchmarkFailed,
    EnvironmentProblem,
    LeakError,
)
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.topology import plan
from aiperf_svc.protocol.messages import RunState, Service
from aiperf_svc.runner import folders, log_tails, manifests, printing
from aiperf_svc.runner.display import Display, Silent, make_display
from aiperf_svc.runner.environment import LOOPBACK, LocalRun
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import Outcome
from aiperf_svc.runner.processes import Process, end_processes, leftovers, start_process

SERVICE_COMMAND = (sys.executable, "-m", "aiperf_svc", "service")
POLL_S = 1.0
"""Longest time without news of the run."""
UNANSWERED_S = 30.0
"""So long may the API be silent while its process lives."""
SETTLE_S = 60.0
"""Longest time from the final state to the results."""
END_S, KILL_S = 3.0, 5.0
"""To end by themselves, and then to end when told to."""
_BACKLOG = 128


def run_local(
    config: BenchmarkConfig, options: RunOptions, *, command: Sequence[str] = SERVICE_COMMAND
) -> ExitCode:
    """Run the benchmark with processes of this machine and print its results.

    `command` starts a process that runs the services named after it. Raises AiperfError for what
    prevents the run; a run that went on to its end is told by the exit code.
    """
    topology = plan(config, local_facts())
    parent = Path(config.artifacts.dir)
    artifact_error = ""
    with folders.private_folder() as private:
        try:
            artifacts = folders.make_artifact_folder(parent, config.name)
            logs = artifacts / "logs"
        except EnvironmentProblem as error:
            # The measurement is worth more than its files: it goes on, and says so at the end.
            artifact_error = str(error)
            artifacts, logs = parent / config.name, private / "logs"
            logs.mkdir()
        run = LocalRun(
            config=config,
            topology=topology,
            options=options,
            private=private,
            artifacts=artifacts,
            logs=logs,
        )
        run.write_files()
        try:
            outcome = asyncio.run(_Launch(run, command).run(artifact_error))
        except AiperfError as error:
            if options.json:
                printing.print_failure(run.run_id, error)
            raise
        finally:
            log_tails.remove_empty(logs)
        if outcome.summary is not None:
            manifests.refresh(artifacts)
    if private.exists():
        raise LeakError(f"still there: {private}")
    printing.print_outcome(outcome, options)
    return outcome.exit_code


class _Launch:
    """The processes of one run and the watch over them."""

    def __init__(self, run: LocalRun, command: Sequence[str]) -> None:
        self._run = run
        self._command = command
        self._processes: list[Process] = []
        self._control: list[Process] = []
        """Those without which a run cannot go on."""
        self._status: Status | None = None
        self._signals = 0
        self._signalled = asyncio.Event()
        self._display: Display = Silent()

    async def run(self, artifact_error: str) -> Outcome:
        """From the first process to the last one gone."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            base_url = self._start()
            self._display = make_display(self._run.options, self._run.title, self._run.topology)
            async with ResultsClient(base_url, token=self._run.token) as client:
                status, summary = await self._follow_until_left(client)
        finally:
            await self._end_all()
            self._display.close()
            for number in numbers:
                loop.remove_signal_handler(number)
        return Outcome(
            run_id=self._run.run_id,
            state=status.state if status else RunState.CANCELLED,
            reason=status.reason if status else "left at once",
            summary=summary,
            artifacts=None if artifact_error else self._run.artifacts,
            artifact_error=artifact_error or (status.artifact_error if status else ""),
            was_interrupted=self._signals > 0,
        )

    # --- start -----------------------------------------------------------------------------------

    def _start(self) -> str:
        """Start all processes; the API's address."""
        shared = self._run.shared_environment()
        with socket.create_server((LOOPBACK, 0), backlog=_BACKLOG) as listener:
            for group in self._run.topology.groups:
                for number in range(group.replicas):
                    self._start_one(group.name, group.services, number, shared, listener)
            return f"http://{LOOPBACK}:{listener.getsockname()[1]}"

    def _start_one(
        self,
        group: str,
        services: tuple[Service, ...],
        number: int,
        shared: dict[str, str],
        listener: socket.socket,
    ) -> None:
        is_many = Service.WORKER in services or Service.RECORD_PROCESSOR in services
        name = f"{group}-{number}" if is_many else group
        environ = self._run.environment_of(name, services, shared)
        fds = []
        if Service.RECORDS_MANAGER in services:
            fds = [listener.fileno()]
            environ["AIPERF_RESULTS_FD"] = str(listener.fileno())
        process = start_process(
            name,
            [*self._command, *(service.value for service in services)],
            environ=environ,
            stderr=self._run.logs / f"{name}.stderr",
            pass_fds=fds,
        )
        self._processes.append(process)
        if not is_many:
            self._control.append(process)

    # --- while it runs ---------------------------------------------------------------------------

    async def _follow_until_left(
        self, client: ResultsClient
    ) -> tuple[Status | None, dict[str, Any] | None]:
        """The last status and the summary. Raises BenchmarkFailed."""
        follow = asyncio.create_task(self._follow(client), name="follow")
        others = [
            asyncio.create_task(self._watch_processes(), name="watch processes"),
            asyncio.create_task(self._obey_signals(client), name="obey signals"),
        ]
        tasks = [follow, *others]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if follow.done():
                return follow.result()
            for task in others:
                if task.done():
                    task.result()
            return self._status, None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, client: ResultsClient) -> tuple[Status, dict[str, Any] | None]:
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        settle_by: float | None = None
        while True:
            after = None if self._status is None else self._status.number
            try:
                status = await client.status(after=after, timeout_s=POLL_S)
            except ApiUnavailable as error:
                if loop.time() - answered_at > UNANSWERED_S:
                    raise BenchmarkFailed(f"the services do not answer: {error}") from error
                await asyncio.sleep(0.1)
                continue
            answered_at = loop.time()
            self._status = status
            self._display.show(status)
            if RunState(status.state).is_final:
                settle_by = settle_by or loop.time() + SETTLE_S
                if status.is_settled or status.results_ready or loop.time() > settle_by:
                    break
        summary = None
        if status.results_ready:
            with contextlib.suppress(ApiRefused):
                summary = await client.summary()
        with contextlib.suppress(ApiUnavailable):
            await client.collected()
        return status, summary

    async def _watch_processes(self) -> None:
        """Raises BenchmarkFailed when a process is gone that the run cannot do without."""
        waits = {
            asyncio.create_task(process.wait(), name=f"wait for {process.name}"): process
            for process in self._processes
        }
        try:
            while waits:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._check_end(waits.pop(task))
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await asyncio.Event().wait()

    def _check_end(self, process: Process) -> None:
        state = RunState(self._status.state) if self._status else RunState.PENDING
        if state.is_final:
            return
        if process in self._control or state is RunState.PENDING:
            story = log_tails.last_lines(self._run.logs, process.name)
            raise BenchmarkFailed(f"{process.name} {process.how_it_ended}\n{story}".rstrip())
        self._display.note(f"{process.name} {process.how_it_ended}; the run goes on without it")

    # --- Ctrl-C ----------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._signals += 1
        self._signalled.set()

    async def _obey_signals(self, client: ResultsClient) -> None:
        """Ends at the second signal."""
        await self._next_signal()
        self._display.note("stopping: what was measured is kept; once more to leave at once")
        second = asyncio.create_task(self._next_signal(), name="second signal")
        cancel = asyncio.create_task(self._cancel_run(client), name="cancel the run")
        try:
            await second
        finally:
            for task in (second, cancel):
                task.cancel()
            await asyncio.gather(second, cancel, return_exceptions=True)

    async def _next_signal(self) -> None:
        seen = self._signals
        while self._signals == seen:
            self._signalled.clear()
            await self._signalled.wait()

    async def _cancel_run(self, client: ResultsClient) -> None:
        while True:
            try:
                await client.cancel("stopped by the user")
            except (ApiUnavailable, ApiRefused):
                await asyncio.sleep(0.2)
            else:
                return

    # --- the end ---------------------------------------------------------------------------------

    async def _end_all(self) -> None:
        """Every process gone, whatever happened before. Raises LeakError."""
        finished = self._status is not None and RunState(self._status.state).is_final
        if self._signals > 1:
            for process in self._processes:
                process.kill_group()
        await end_processes(
            self._processes,
            terminate_after_s=END_S if finished else 0.0,
            kill_after_s=KILL_S,
        )
        left = await leftovers(self._processes)
        if left:
            raise LeakError("still there: " + ", ".join(left))
