"""A run on this machine: the services as processes, from the plan to the last one gone.

The first Ctrl-C stops the run and keeps what was measured, the second leaves at once; either way
nothing stays behind but the artifacts.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.target_notices import target_notices
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.ceiling import beyond_ceiling
from aiperf_svc.plan.topology import Group, plan
from aiperf_svc.protocol.messages import RunState, Service
from aiperf_svc.runner import folders, log_tails, manifests, printing
from aiperf_svc.runner.display import make_display
from aiperf_svc.runner.environment import LOOPBACK, LocalRun
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.processes import Process, end_processes, leftovers, start_process
from aiperf_svc.runner.signals import Interrupts

SERVICE_COMMAND = (sys.executable, "-m", "aiperf_svc", "service")
END_S, KILL_S = 3.0, 5.0
"""To end by themselves after the run's end, and then to end when told to."""
LEFT_AT_ONCE = "left at once; no results were computed"


def run_local(
    config: BenchmarkConfig, options: RunOptions, *, command: Sequence[str] = SERVICE_COMMAND
) -> ExitCode:
    """Run the benchmark with processes of this machine and print its results.

    `command` starts a process that runs the services named after it. Raises AiperfError for what
    prevents the run; a run that went on to its end is told by the exit code.
    """
    facts = local_facts()
    topology = plan(config, facts)
    notices = target_notices(config, os.environ)
    for warning in (*notices, *beyond_ceiling(config, facts, topology)):
        print(f"warning: {warning}", file=sys.stderr)
    with folders.private_folder() as private:
        artifacts, logs, problem = _artifact_folder(config, private)
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
            outcome = asyncio.run(_Launch(run, command).run(problem))
        except AiperfError as error:
            if options.json:
                printing.print_failure(run.run_id, error)
            raise
        finally:
            log_tails.remove_empty(logs)
            is_empty = folders.remove_if_empty(artifacts)
        if is_empty:
            outcome = replace(outcome, artifacts=None)
        if outcome.artifacts is not None:
            manifests.refresh(artifacts)
    if private.exists():
        raise LeakError(f"still there: {private}")
    printing.print_outcome(outcome, options)
    return outcome.exit_code


def _artifact_folder(config: BenchmarkConfig, private: Path) -> tuple[Path, Path, str]:
    """The folders of artifacts and logs, and what is wrong with the first.

    The measurement is worth more than its files: without a folder it goes on, and says so at its
    end.
    """
    parent = Path(config.artifacts.dir)
    try:
        artifacts = folders.make_artifact_folder(parent, config.name)
    except EnvironmentProblem as error:
        logs = private / "logs"
        logs.mkdir()
        return parent / config.name, logs, str(error)
    return artifacts, artifacts / "logs", ""


class _Launch:
    """The processes of one run."""

    def __init__(self, run: LocalRun, command: Sequence[str]) -> None:
        self._run = run
        self._command = command
        self._processes: list[Process] = []
        self._control: list[Process] = []

    async def run(self, artifact_error: str) -> RunOutcome:
        """From the first process to the last one gone."""
        status, summary, is_over = None, None, False
        with Interrupts() as interrupts:
            try:
                base_url = self._start()
                # HTTP takes as long to import as a service to start: both at the same time.
                from aiperf_svc.adapters.results_api.client import ResultsClient
                from aiperf_svc.runner.following import Following

                display = make_display(self._run.options, self._run.title, self._run.topology)
                try:
                    async with ResultsClient(base_url, token=self._run.token) as client:
                        following = Following(
                            client,
                            processes=self._processes,
                            control=self._control,
                            logs=self._run.logs,
                            interrupts=interrupts,
                            display=display,
                            show_logs=self._run.options.verbose,
                        )
                        summary = await following.run()
                        status, is_over = following.status, following.is_over
                    # The processes take a moment to end: time enough to import what prints.
                    import_module("aiperf_svc.runner.tables")
                finally:
                    display.close()
            finally:
                await self._end_all(is_over=is_over, at_once=interrupts.count > 1)
            return RunOutcome(
                run_id=self._run.run_id,
                state=status.state if status and is_over else RunState.CANCELLED,
                reason=status.reason if status and is_over else LEFT_AT_ONCE,
                failure=(status and status.exit_code) or ExitCode.BENCHMARK_FAILED,
                summary=summary,
                artifacts=None if artifact_error else self._run.artifacts,
                artifact_error=artifact_error or (status.artifact_error if status else ""),
                uploaded_to=status.uploaded_to if status else "",
                was_interrupted=interrupts.count > 0,
            )

    def _start(self) -> str:
        """Start all processes; the API's address."""
        shared = self._run.shared_environment()
        with socket.create_server((LOOPBACK, 0)) as listener:
            for group in self._run.topology.groups:
                for number in range(group.replicas):
                    self._start_one(group, number, shared, listener)
            return f"http://{LOOPBACK}:{listener.getsockname()[1]}"

    def _start_one(
        self, group: Group, number: int, shared: dict[str, str], listener: socket.socket
    ) -> None:
        is_many = {Service.WORKER, Service.RECORD_PROCESSOR} & set(group.services)
        name = f"{group.name}-{number}" if is_many else group.name
        environ = self._run.environment_of(name, group.services, shared)
        fds = []
        if Service.RECORDS_MANAGER in group.services:
            fds = [listener.fileno()]
            environ["AIPERF_RESULTS_FD"] = str(listener.fileno())
        process = start_process(
            name,
            [*self._command, *(service.value for service in group.services)],
            environ=environ,
            stderr=self._run.logs / f"{name}.stderr",
            pass_fds=fds,
        )
        self._processes.append(process)
        if not is_many:
            self._control.append(process)

    async def _end_all(self, *, is_over: bool, at_once: bool) -> None:
        """Every process gone, whatever happened before. Raises LeakError."""
        if at_once:
            for process in self._processes:
                process.kill_group()
        await end_processes(
            self._processes, terminate_after_s=END_S if is_over else 0.0, kill_after_s=KILL_S
        )
        left = await leftovers(self._processes)
        if left:
            raise LeakError(f"still there: {', '.join(left)}")
