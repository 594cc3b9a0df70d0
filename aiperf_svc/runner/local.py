"""A run on this machine: the services as processes, from the plan to the last one gone.

The first Ctrl-C stops the run and keeps what was measured, the second leaves at once; either way
nothing stays behind but the artifacts.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.adapters.results_api.local_socket import LocalResultsClient
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.plan.topology import Facts, Topology
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner import folders, log_tails
from aiperf_svc.runner.common_start import GiveStart, given
from aiperf_svc.runner.display import Display, make_display
from aiperf_svc.runner.ending import errors_of, finish
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.following import Following
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.outlets import make_outlets
from aiperf_svc.runner.processes import (
    Process,
    adopted_process,
    end_processes,
    ended,
    leftovers,
    start_process,
)
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.services.forks import Order
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import shapes_of
from aiperf_svc.workloads.stacks import plan_processes

SERVICE_COMMAND = (*OWN_PROGRAM, "service")
END_S, KILL_S = 3.0, 5.0
"""Time for processes to end by themselves after the run's end, and then when told to."""
REPLACEMENTS = 3
"""Most times that one process of an experiment is replaced: one that always ends is broken."""
LEFT_AT_ONCE = "left at once; no results were computed"


def run_local(
    config: Config,
    options: RunOptions,
    *,
    command: Sequence[str] = SERVICE_COMMAND,
    forks: ForkServer | None = None,
) -> ExitCode:
    """Run a benchmark, whose trials have one shape, with processes of this machine, and print its
    results.

    The services are forks of `forks`; without it `command` starts each process, with the names of
    its services added. Raises AiperfError for what prevents the run; a run that went on to its end
    is told by the exit code.
    """
    if options.resume is not None:
        from aiperf_svc.runner import resuming

        resuming.prepare(options.resume, config)
        if ended := resuming.ended_before(options.resume, config):
            return finish(ended, config.artifacts, options)
    facts = local_facts()
    (shape,) = shapes_of(config, "local")
    topology = plan_processes(shape, facts)
    show_warnings(config, facts, topology)
    with folders.private_folder() as private:
        if options.resume is None:
            artifacts = folders.make_artifact_folder(Path(config.artifacts.dir), config.name)
        else:
            artifacts = options.resume
            (artifacts / "logs").mkdir(exist_ok=True)
        logs = artifacts / "logs"
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
            with errors_of(run.run_id):
                outcome = asyncio.run(LocalLaunch(run, command, forks).run())
        finally:
            log_tails.remove_empty(logs)
            is_empty = folders.remove_if_empty(artifacts)
        if is_empty:
            outcome = replace(outcome, artifacts=None)
    if private.exists():
        raise LeakError(f"still there: {private}")
    return finish(outcome, config.artifacts, options)


def show_warnings(config: Config, facts: Facts, topology: Topology) -> None:
    """Print what may be wrong with a run, which goes on."""
    for warning in workload_of(config).warnings(config, facts, topology, os.environ):
        print(f"warning: {warning}", file=sys.stderr)


class LocalLaunch:
    """The processes of one run."""

    def __init__(self, run: LocalRun, command: Sequence[str], forks: ForkServer | None) -> None:
        self._run = run
        self._command = command
        self._forks = forks
        self._processes: list[Process] = []
        self._control: list[Process] = []
        self._given: dict[str, Order] = {}
        """What each process is, by name."""
        self._replaced: Counter[str] = Counter()

    async def run(
        self,
        *,
        counting: Callable[[], AbstractContextManager[Interrupts]] = Interrupts,
        show: Callable[[LocalRun], Display] | None = None,
        give_start: GiveStart | None = None,
    ) -> RunOutcome:
        """From the first process to the last one gone. `show` makes another display than the usual
        one; `give_start` starts a run that is held."""
        status, results, is_over = None, None, False
        with counting() as interrupts:
            try:
                orders = self._orders()
                if self._forks is not None:
                    self._forks.order(list(orders.values()))
                else:
                    self._execute(orders)
                # This takes as long to import as the services to start: both at the same time.
                import_module("aiperf_svc.runner.tables")

                display = show(self._run) if show is not None else self._display()
                client = LocalResultsClient(self._run.results_socket)
                try:
                    if self._forks is not None:
                        await self._adopt(self._forks, orders, interrupts)
                    following = Following(
                        client,
                        processes=self._processes,
                        control=self._control,
                        logs=self._run.logs,
                        interrupts=interrupts,
                        display=display,
                        show_logs=self._run.options.verbose,
                        replace=self._replace,
                        outlets=make_outlets(
                            self._run.options,
                            run_id=self._run.run_id,
                            name=self._run.config.name,
                            display=display,
                        ),
                    )
                    async with given(give_start, client, display.note):
                        results = await following.run()
                    status, is_over = following.status, following.is_over
                finally:
                    display.close()
            finally:
                await self._end_all(is_over=is_over, at_once=interrupts.count > 1)
            return RunOutcome(
                run_id=self._run.run_id,
                state=status.state if status and is_over else RunState.CANCELLED,
                reason=status.reason if status and is_over else LEFT_AT_ONCE,
                failure=(status and status.exit_code) or ExitCode.BENCHMARK_FAILED,
                results=results,
                artifacts=self._run.artifacts,
                artifact_error=status.artifact_error if status else "",
                uploaded_to=status.uploaded_to if status else "",
                was_interrupted=interrupts.count > 0,
            )

    def _display(self) -> Display:
        return make_display(self._run.options, self._run.title, self._run.topology)

    def _orders(self) -> dict[str, Order]:
        """What the processes are to be, by name."""
        shared = self._run.shared_environment()
        orders = {}
        for group in self._run.topology.groups:
            for number in range(group.replicas):
                name = f"{group.name}-{number}" if _is_many(group.services) else group.name
                services = [service.value for service in group.services]
                orders[name] = Order(
                    services=services,
                    environ=self._run.environment_of(name, group.services, shared),
                    output=str(self._output(name)),
                    command=[*SERVICE_COMMAND, *services],
                )
        return orders

    def _output(self, name: str) -> Path:
        return self._run.logs / f"{name}.stderr"

    def _execute(self, orders: Mapping[str, Order]) -> None:
        for name, order in orders.items():
            process = start_process(
                name,
                [*self._command, *order.services],
                environ=order.environ,
                stderr=self._output(name),
            )
            self._add(process, order)

    async def _adopt(
        self,
        forks: ForkServer,
        orders: Mapping[str, Order],
        interrupts: Interrupts,
    ) -> None:
        """Take over what was ordered; nothing when the user leaves before. Raises
        EnvironmentProblem."""
        server = asyncio.create_task(ended(forks.pid, forks.poll), name="fork server")
        leave = asyncio.create_task(interrupts.reached(2), name="leave")
        try:
            await asyncio.wait((server, leave), return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.cancel()
            leave.cancel()
            await asyncio.gather(server, leave, return_exceptions=True)
        if server.cancelled():
            return
        pids = forks.adopt()
        if not pids:
            self._execute(orders)
        for (name, order), pid in zip(orders.items(), pids, strict=False):
            self._add(adopted_process(name, pid, stderr=self._output(name)), order)

    def _replace(self, process: Process) -> Process | None:
        """Start another process in place of one that is lost, where a trial may follow."""
        if self._run.config.experiment is None or self._replaced[process.name] == REPLACEMENTS:
            return None
        self._replaced[process.name] += 1
        order = self._given[process.name]
        another = start_process(
            process.name,
            [*self._command, *order.services],
            environ=order.environ,
            stderr=self._output(process.name),
        )
        self._add(another, order)
        return another

    def _add(self, process: Process, order: Order) -> None:
        self._given[process.name] = order
        self._processes.append(process)
        if not _is_many(order.services):
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


def _is_many(services: Iterable[str]) -> bool:
    return bool({Service.WORKER, Service.RECORD_PROCESSOR} & set(services))
