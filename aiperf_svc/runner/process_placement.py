"""Places the parts of a session on this machine: their services are processes, forked or executed.

However a part ends, only its artifacts remain.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from importlib import import_module
from itertools import zip_longest
from pathlib import Path

from aiperf_svc.adapters.host import processes
from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.adapters.host.processes import (
    Process,
    adopted_process,
    end_processes,
    ended,
    leftovers,
    start_process,
)
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.results_api.local_socket import LocalResultsClient
from aiperf_svc.adapters.results_api.run_api import RunApi
from aiperf_svc.adapters.storage import folders
from aiperf_svc.config.load_config import target_configs
from aiperf_svc.config.workload import Config
from aiperf_svc.core.cluster.stack_stages import Stage
from aiperf_svc.domain.errors import BenchmarkFailed, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.plan.topology import share_of
from aiperf_svc.protocol.ports import REPLICAS
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import fork_server
from aiperf_svc.runner.environment import LocalRun, new_run_id
from aiperf_svc.runner.follower import Follower, Watch, make_outlets
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunEnd, RunOutcome
from aiperf_svc.runner.parts import Expansion, Member, PartContext, Placement, Work, expand
from aiperf_svc.runner.session import Session
from aiperf_svc.services.forks import Order
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Where, shape_config
from aiperf_svc.workloads.stacks import plan_processes
from aiperf_svc.workloads.trials import TrialConfig, trial_configs

SERVICE_COMMAND = (*OWN_PROGRAM, "service")
END_S, KILL_S = 3.0, 5.0
"""Time for processes to exit after the end of the run, and then after a signal."""
LOGS_S = 0.25
"""Seconds between two reads of the logs, if they are shown."""
REPLACEMENTS = 3
"""Maximum replacements of one process of an experiment. A process that keeps ending is broken."""


def run_local(
    config: Config,
    options: RunOptions,
    *,
    trials: Sequence[TrialConfig] = (),
    forks: ForkServer | None = None,
) -> ExitCode:
    """Run a benchmark with processes of this machine, and print its results. `trials` are the
    trials of the config, if the caller has them. Raises AiperfError if the run cannot start; after
    that, it ends with an exit code."""
    expansion = expand_local(config, trials)
    placement = ProcessPlacement(expansion, options, forks)
    return Session(expansion, placement, options).run()


def expand_local(config: Config, trials: Sequence[TrialConfig] = ()) -> Expansion:
    """Return the parts of a config on this machine. `trials` are the trials of the config, if the
    caller has them. Raises ConfigError."""
    targets = target_configs(config)
    members = [
        Member(
            name=each.name,
            where=each.config.endpoint.url,
            config=each.config,
            trials=trial_configs(each.config),
        )
        for each in targets
    ]
    if not targets:
        members = [Member(config=config, trials=tuple(trials) or trial_configs(config))]
    return expand(members, "local")


class ProcessPlacement(Placement):
    """Processes of this machine. One round runs at a time: measurements at the same time would
    compete for CPU."""

    where: Where = "local"
    lead_s = 2.0
    """Short, because all parts are on this machine."""

    def __init__(
        self, expansion: Expansion, options: RunOptions, forks: ForkServer | None = None
    ) -> None:
        """The services of the first part are forks of `forks`; without it, each is executed."""
        self._expansion, self._options = expansion, options
        self._forks, self._has_forks = forks, forks is not None
        self._facts = local_facts()
        self.run_id = new_run_id()

    def prepare(self, *, shows_warnings: bool = True) -> bool:
        """Plan the parts, and print warnings. Raises ConfigError if this machine has too few cores
        for the members, which would compete for CPU."""
        members = self._expansion.members
        if len(members) > 1:
            self._facts = share_of(self._facts, len(members))
        for member in members:
            for shape in self._expansion.shapes[member.name]:
                topology = plan_processes(shape, self._facts)
                if not shows_warnings or len(members) > 1:
                    continue
                config = shape_config(member.config, shape)
                for text in workload_of(config).warnings(config, self._facts, topology, os.environ):
                    print(f"warning: {text}", file=sys.stderr)
        return True

    async def upload_keys(self, member: Member) -> Mapping[str, str]:
        return os.environ

    async def run(self, work: Work, context: PartContext) -> RunOutcome:
        context.screen.begin(Stage.RUN)
        context.is_counting.set()
        work.logs.mkdir(parents=True, exist_ok=True)
        with self._fork_server() as forks, folders.private_folder() as private:
            run = LocalRun(
                config=work.config,
                topology=plan_processes(work.shape, self._facts),
                options=self._options,
                run=replace(work.run, is_resumed=work.is_resumed),
                private=private,
                artifacts=work.folder,
                logs=work.logs,
                run_id=work.run_id,
            )
            outcome = await LocalServices(run, forks).run(context)
        if private.exists():
            raise LeakError(f"still there: {private}")
        return outcome

    def _fork_server(self) -> AbstractContextManager[ForkServer | None]:
        """Return the constructor's fork server for the first part, a new one for each later."""
        first, self._forks = self._forks, None
        return nullcontext(first) if first else fork_server.starting(is_needed=self._has_forks)


class LocalServices:
    """The processes of one run."""

    def __init__(self, run: LocalRun, forks: ForkServer | None) -> None:
        self._run, self._forks = run, forks
        self._processes: list[Process] = []
        self._orders: dict[str, Order] = {}
        """The order for each process, by name."""
        self._replaced: Counter[str] = Counter()

    async def run(self, context: PartContext) -> RunOutcome:
        """Start the processes, follow the run, and end them. Raises AiperfError."""
        run, interrupts = self._run, context.interrupts
        run.write_files()
        follower, results = None, None
        try:
            self._orders = self._make_orders()
            if self._forks is not None:
                self._forks.order(list(self._orders.values()))
            else:
                for name in self._orders:
                    self._execute(name)
            # This import takes as long as the start of the services, so the two overlap.
            import_module("aiperf_svc.runner.printing")

            api = LocalResultsClient(run.results_socket)
            title = f"{run.config.name} · {workload_of(run.config).subject(run.config)}"
            with closing(context.screen.display(title, run.topology)) as display:
                follower = Follower(
                    api,
                    interrupts=interrupts,
                    display=display,
                    watches=(self._watch_processes, self._copy_logs, *_event_watches(run, api)),
                    gate=context.gate,
                    outlets=make_outlets(
                        run.options, run_id=run.run_id, name=run.config.name, display=display
                    ),
                )
                if self._forks is not None:
                    await self._adopt(self._forks, context)
                results = await follower.run()
        finally:
            is_over = follower is not None and follower.is_over
            await self._end_all(is_over=is_over, at_once=interrupts.count > 1)
        assert follower is not None
        return RunEnd(
            run_id=run.run_id,
            status=follower.status,
            error=follower.failure,
            results=results,
            artifacts=run.artifacts,
            was_interrupted=interrupts.count > 0,
        ).outcome()

    def _make_orders(self) -> dict[str, Order]:
        """Return the order for each process, by name."""
        shared = self._run.shared_environment()
        orders = {}
        for group in self._run.topology.groups:
            for number in range(group.replicas):
                is_single = REPLICAS.isdisjoint(group.services)
                name = group.name if is_single else f"{group.name}-{number}"
                services = [service.value for service in group.services]
                orders[name] = Order(
                    services=services,
                    environ=self._run.environment_of(name, group.services, shared),
                    output=str(self._run.logs / f"{name}.stderr"),
                    command=[*SERVICE_COMMAND, *services],
                )
        return orders

    def _execute(self, name: str) -> Process:
        order = self._orders[name]
        stderr = Path(order.output)
        process = start_process(name, order.command, environ=order.environ, stderr=stderr)
        self._processes.append(process)
        return process

    async def _adopt(self, forks: ForkServer, context: PartContext) -> None:
        """Adopt the ordered processes, unless the user exits first. Raises EnvironmentProblem."""
        async with Tasks() as tasks:
            server = tasks.start(ended(forks.child.pid, forks.child.poll), "fork server")
            tasks.start(context.interrupts.reached(2), "leave")
            await tasks.first()
        if server.cancelled():
            return
        for (name, order), pid in zip_longest(self._orders.items(), forks.adopt()):
            if pid is None:
                self._execute(name)
            else:
                self._processes.append(adopted_process(name, pid, stderr=Path(order.output)))

    # --- while it runs ---------------------------------------------------------------------------

    async def _watch_processes(self, follower: Follower) -> None:
        """Raise BenchmarkFailed when a process ends that the run needs."""
        async with Tasks() as tasks:
            watches = [
                tasks.start(self._watch(p, follower), f"watch {p.name}") for p in self._processes
            ]
            await asyncio.gather(*watches)
            await asyncio.Event().wait()

    async def _watch(self, process: Process, follower: Follower) -> None:
        code = await process.wait()
        status = follower.status
        state = RunState(status.state) if status is not None else RunState.PENDING
        # A process that exits with 0 learned of the run's end before this process did. A run that
        # failed at once may still be pending here.
        if state.is_final or code == 0:
            return
        is_first = status is None or status.experiment is None or not status.experiment.ended
        is_starting = state is RunState.PENDING and is_first
        # The run fails without a process that has no replicas.
        if is_starting or REPLICAS.isdisjoint(self._orders[process.name].services):
            log_end = processes.last_lines(self._run.logs, process.name)
            raise BenchmarkFailed(f"{process.name} {process.end_text}\n{log_end}".rstrip())
        replacement = self._replace(process)
        effect = "the run continues without it"
        if replacement is not None:
            effect = "a new one takes part in the next trial"
        follower.display.note(f"{process.name} {process.end_text}; {effect}")
        if replacement is not None:
            await self._watch(replacement, follower)

    def _replace(self, process: Process) -> Process | None:
        """Start a replacement for a lost process, if another trial may follow."""
        if self._run.config.experiment is None or self._replaced[process.name] == REPLACEMENTS:
            return None
        self._replaced[process.name] += 1
        return self._execute(process.name)

    async def _copy_logs(self, follower: Follower) -> None:
        """Copy new lines of the services' logs to the screen, with `--verbose`."""
        tails = processes.Tails(self._run.logs)
        while self._run.options.verbose:
            for line in tails.new_lines():
                follower.display.note(line)
            await asyncio.sleep(LOGS_S)
        await asyncio.Event().wait()

    async def _end_all(self, *, is_over: bool, at_once: bool) -> None:
        """End every process. Raises LeakError."""
        if at_once:
            for process in self._processes:
                process.kill_group()
        await end_processes(
            self._processes, terminate_after_s=END_S if is_over else 0.0, kill_after_s=KILL_S
        )
        left = await leftovers(self._processes)
        processes.remove_empty(self._run.logs)
        if left:
            raise LeakError(f"still there: {', '.join(left)}")


def _event_watches(run: LocalRun, api: RunApi) -> tuple[Watch, ...]:
    config = run.config.inference
    if config is None or not config.events:
        return ()
    from aiperf_svc.adapters.events.local_processes import LocalServer
    from aiperf_svc.runner.events import EventWatch

    return (EventWatch(api, config, LocalServer(config).perform),)
