"""Worker of a benchmark on ranks: carries out the orders of the schedule in its rank.

A courier never decides what runs or when. It prepares a step, starts its commands at the due time,
waits for their end, reads the counters of the rank's interfaces and container, and sends the
commands' output to the record processor. Its status is sent repeatedly, as orders are, so a lost
message only causes a short delay.
"""

import asyncio
import os
import shutil
from collections.abc import Coroutine
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.host.child_processes import adopt_orphans, end_children, reap_children
from aiperf_svc.adapters.host.clocks import read_clocks
from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.adapters.ranks.launches import Launch, LaunchRequests
from aiperf_svc.adapters.ranks.rank_environment import (
    RankEnvironment,
    local_environment,
    pod_environment,
    with_own_volume,
)
from aiperf_svc.adapters.ranks.rank_shell import READY_S, RankShell, make_folder
from aiperf_svc.adapters.ranks.step_commands import Piece, StepCommands
from aiperf_svc.adapters.ranks.traffic import Traffic
from aiperf_svc.core.control.clock_offset import ClockOffset
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.credits import ClockReply
from aiperf_svc.protocol.messages.events import RosterPublished
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.messages.steps import (
    CommandLaunched,
    LaunchEnded,
    LaunchRequested,
    RankAttached,
    RankFiles,
    RankFilesRequested,
    RankReport,
    RankStatus,
    StepOrder,
    StepOutput,
    StepStage,
    rank_number,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import FINAL_STATES, RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, every
from aiperf_svc.services.clock_probes import handle_reply, probe_clock
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.registry import tool_of
from aiperf_svc.workloads.steps import PlannedStep

STATUS_S = 0.5
_STAGES = tuple(StepStage)


class Courier(BaseService):
    service = Service.WORKER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._rank = rank_number(self.id)
        identity = f"{self.id}.{context.epoch:x}".encode()
        self._orders = bus.connect(zmq.DEALER, Port.CREDIT_DROP, identity=identity)
        self._returns = bus.connect(zmq.PUSH, Port.CREDIT_RETURN)
        self._dataset = bus.connect(zmq.REQ, Port.DATASET_FRONT)
        self._raw: zmq.asyncio.Socket | None = None
        self._processor = b""
        self._has_processor = asyncio.Event()
        self._clock = ClockOffset()
        self._clock_known = asyncio.Event()
        self._shell: RankShell | None = None
        self._launches: LaunchRequests | None = None
        self._environment: RankEnvironment | None = None
        self._files: dict[str, bytes] = {}
        self._step: StepCommands | None = None
        self._stage: StepStage | None = None
        """The latest stage of the step that has started."""
        self._done: StepStage | None = None
        """The latest finished stage of the step."""
        self._wanted: asyncio.Queue[StepOrder] = asyncio.Queue()
        self._launched: dict[str, str] = {}
        """Launches of commands that run for another rank, by command."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._traffic: Traffic | None = None
        """Traffic of the current step."""
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.READY: self._connect_processor,
            **dict.fromkeys(FINAL_STATES, self.close),
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._orders, self._from_schedule),
            probe_clock(self, self._orders),
            self._carry_out_orders(),
            every(STATUS_S, self._send_status),
            every(STATUS_S, reap_children),
        ]

    # --- configuring -----------------------------------------------------------------------------

    async def _configure(self) -> None:
        volume = self.context.ranks.deployment.ranks.volume
        if "AIPERF_RANK_DIR" in os.environ:
            environment = pod_environment()
        else:
            environment = local_environment(
                self.context.state, self.id, volume.path if volume else None
            )
        if volume is not None and volume.kind == "host-path":
            environment = with_own_volume(environment, self.context.run_id)
        self._environment = environment
        reply = decode(await ask(self._dataset, encode(RankFilesRequested(*self.header))))
        assert isinstance(reply, RankFiles)
        self._files = reply.files
        if not environment.is_container:
            # In a pod, the init container has created it, and the loop may already run there.
            await asyncio.to_thread(make_folder, environment.folder)
            # A command may leave daemons with their own process groups.
            adopt_orphans(True)
        self._shell = RankShell(
            environment.folder, on_started=self._on_started, on_ended=self._on_ended
        )
        self._launches = LaunchRequests(environment.folder, self._on_launch_request)
        # In a pod, the image of the rank's container may still be pulled when the courier starts.
        longest_s = max(READY_S, self.context.ranks.deployment.ready_timeout / 1e9)
        await self._shell.open(starts_loop=not environment.is_container, longest_s=longest_s)
        await self._check_tools()
        await self._clock_known.wait()
        attached = RankAttached(
            *self.header,
            number=self._rank,
            address=environment.address,
            interface=environment.interface,
            node=environment.node,
            work=str(environment.folder / "work"),
            volume=str(environment.volume),
            agent=str(self._launches.agent),
            cores=environment.cores,
            memory_bytes=environment.memory_bytes,
        )
        await self._orders.send(encode(attached))

    async def _check_tools(self) -> None:
        """Raise EnvironmentProblem with the package name if a tool is missing."""
        config = self.context.ranks
        tools = tool_of(config).tools_of(config)
        assert self._shell is not None
        assert self._environment is not None
        names = " ".join(tool.name for tool in tools)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tool_check = ended
        script = f'for t in {names}; do command -v "$t" >/dev/null 2>&1 || echo "$t"; done'
        argv = ("sh", "-c", script if names else ":")
        self._shell.run("tools", argv, config.workload.env, self._environment.folder / "work")
        await ended
        missing = (self._shell.output("tools") / "stdout").read_text().split()
        for tool in tools:
            if tool.name in missing:
                image = config.workload.image or "the image of its kind"
                where = f"in {image}" if self._environment.is_container else "on this machine"
                raise EnvironmentProblem(
                    f"rank {self._rank}: there is no {tool.name} {where}; {tool.source}"
                )

    def on_roster(self, roster: RosterPublished) -> None:
        if roster.frozen and self.me is not None and self.me.processor:
            self._has_processor.set()

    async def _connect_processor(self) -> None:
        await self._has_processor.wait()
        assert self.roster is not None
        assert self.me is not None
        processor = self.me.processor
        address = next(m.address for m in self.roster.members if m.id == processor)
        self._processor = processor.encode()
        self._raw = self.bus.connect(zmq.DEALER, Port.RAW_DIRECT, address=address)

    # --- clock -----------------------------------------------------------------------------------

    def clock(self) -> ClockEstimate:
        return self._clock.latest

    def _offset_ns(self) -> int:
        return self._clock.at(read_clocks()).offset_ns

    # --- orders ----------------------------------------------------------------------------------

    async def _from_schedule(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        match message:
            case ClockReply():
                handle_reply(self, self._clock, message)
                if self._clock.is_known:
                    self._clock_known.set()
            case StepOrder():
                self._handle_order(message)
            case CommandLaunched():
                self._launch(message)
            case LaunchEnded() if self._launches is not None:
                number = message.launch.partition("-")[2]
                self._launches.reply(number, message.exit_code, message.stdout, message.stderr)

    def _handle_order(self, order: StepOrder) -> None:
        if self._shell is None or self._environment is None:
            return
        current = self._step.plan.number if self._step else 0
        if order.step < current:
            return
        if order.step > current:
            plan = msgspec.json.decode(order.plan, type=PlannedStep)
            spec = self.context.ranks.workload
            secrets = {name: os.environ.get(name, "") for name in spec.secret_env}
            self._step = StepCommands(
                plan,
                self._rank,
                shell=self._shell,
                environment=self._environment,
                files=self._files,
                env={**spec.env, **secrets},
                output_limit=spec.output_limit,
                to_reference_ns=self._offset_ns,
            )
            self._stage = self._done = None
        if self._stage is not None and _STAGES.index(order.stage) <= _STAGES.index(self._stage):
            return
        self._stage = order.stage
        if order.stage is StepStage.FINISH and self._running is not None:
            # Only an abort arrives while commands run. It ends the wait for the step.
            self._running.cancel()
        self._wanted.put_nowait(order)

    async def _carry_out_orders(self) -> None:
        while True:
            order = await self._wanted.get()
            step = self._step
            if step is None or order.step != step.plan.number:
                continue
            self._running = asyncio.create_task(self._carry_out(step, order), name=order.stage)
            try:
                await asyncio.shield(asyncio.gather(self._running, return_exceptions=True))
            finally:
                if not self._running.done():
                    self._running.cancel()
            running, self._running = self._running, None
            if not running.cancelled() and (error := running.exception()) is not None:
                self._note_failure(step, order, error)
            if not running.cancelled():
                self._done = order.stage
                await self._send_status()

    async def _carry_out(self, step: StepCommands, order: StepOrder) -> None:
        match order.stage:
            case StepStage.PREPARE:
                await step.prepare()
            case StepStage.RUN:
                self._traffic = Traffic()
                await step.run(order.due_wall_ns - self._offset_ns())
            case StepStage.FINISH:
                await self._finish(step, order)
                assert self._launches is not None
                self._launches.forget()

    def _note_failure(self, step: StepCommands, order: StepOrder, error: BaseException) -> None:
        self.log.error("%s of step %d failed", order.stage.value, order.step, exc_info=error)
        step.note(f"{type(error).__name__}: {error}")

    async def _send_status(self) -> None:
        step = self._step
        if step is None:
            return
        text = ""
        if self._running is not None and self._stage is StepStage.RUN:
            text = self._progress(step)
        await self._return(
            RankStatus(
                *self.header,
                step=step.plan.number,
                stage=self._done,
                problem=step.problem,
                progress=text,
            )
        )

    def _progress(self, step: StepCommands) -> str:
        """Return the progress of the commands, from their latest progress line."""
        config = self.context.ranks
        workload = tool_of(config)
        texts = (workload.progress(config, line) for line in step.last_lines())
        try:
            if text := next(filter(None, texts), ""):
                return text
        except Exception:
            # The parser may belong to a third-party package. If the line matters, it fails the step
            # when all output is parsed.
            return ""
        return self._traffic.text() if workload.shows_traffic and self._traffic else ""

    async def _return(self, message: Message) -> None:
        await self._returns.send(encode(message))

    async def _finish(self, step: StepCommands, order: StepOrder) -> None:
        """End the step, and send all its output followed by the courier's own report."""
        number = 0
        try:
            assert self._shell is not None
            for command in self._launched:
                # `mpirun` ends its daemons, unless it was killed or cannot reach them.
                self._shell.signal(command, "TERM")
            await step.finish(abort_reason=order.abort_reason)
            for piece in step.pieces():
                await self._send_piece(step, number, piece)
                number += 1
        except Exception as error:
            # Send the report nevertheless: without it, the step would have no record.
            self._note_failure(step, order, error)
        estimate = self._clock.at(read_clocks())
        report = RankReport(
            plan=order.plan,
            problem=step.problem,
            witness=step.witness(
                clock_uncertainty_ns=0 if estimate.same_host else estimate.uncertainty_ns
            ),
            ends=step.ends(),
        )
        await self._send_piece(step, number, Piece(-1, "", b""), report)

    async def _send_piece(
        self, step: StepCommands, number: int, piece: Piece, report: RankReport | None = None
    ) -> None:
        output = StepOutput(
            *self.header,
            step=step.plan.number,
            rank=self._rank,
            piece=number,
            command=piece.command,
            file=piece.file,
            data=piece.data,
            is_last=report is not None,
            report=report,
        )
        assert self._raw is not None
        await self._raw.send_multipart([self._processor, encode(output)])

    # --- events of the rank ----------------------------------------------------------------------

    def _on_started(self, command: str, _pid: int, wall_ns: int) -> None:
        if self._step is not None:
            self._step.on_started(command, wall_ns)

    def _on_ended(self, command: str, exit_code: int, wall_ns: int) -> None:
        if command == "tools":
            self._tool_check.set_result(None)
        elif command in self._launched:
            self._spawn(self._return_launch(command, exit_code))
        elif self._step is not None:
            self._step.on_ended(command, exit_code, wall_ns)

    def _on_launch_request(self, launch: Launch) -> None:
        step = self._step.plan.number if self._step else 0
        name = f"{self._rank}-{launch.number}"
        request = LaunchRequested(*self.header, step, name, launch.address, launch.command)
        self._spawn(self._return(request))

    def _launch(self, ordered: CommandLaunched) -> None:
        """Run a command for another rank. It ends with the step at the latest."""
        assert self._shell is not None
        assert self._environment is not None
        name = f"launch-{ordered.launch}"
        self._launched[name] = ordered.launch
        argv = ("sh", "-c", ordered.command)
        self._shell.run(
            name, argv, self.context.ranks.workload.env, self._environment.folder / "work"
        )

    async def _return_launch(self, command: str, exit_code: int) -> None:
        assert self._shell is not None
        assert self._environment is not None
        launch, folder = self._launched.pop(command), self._shell.output(command)
        paths = folder / "stdout", folder / "stderr"
        try:
            if not all(map(self._environment.is_left, paths)):
                raise OSError(f"{command} left no output")
            output = paths[0].read_bytes(), paths[1].read_bytes()
        except OSError as error:
            # As ssh reports its own errors. Without a reply, the other rank would wait.
            exit_code, output = 255, (b"", f"rank {self._rank}: {error}\n".encode())
        await self._return(LaunchEnded(*self.header, launch, exit_code, *output))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine, name=f"{self.id} launch")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._shell is not None:
            # Kubernetes restarts a container that ends, with a growing delay.
            is_container = self._environment is not None and self._environment.is_container
            has_others = self.context.experiment is not None
            await self._shell.close(leaves_loop=is_container and has_others)
            self._shell = None
            if not is_container:
                await asyncio.to_thread(end_children)
        if self._launches is not None:
            self._launches.close()
            self._launches = None
        if self._environment is not None and self._environment.is_volume_removed:
            await asyncio.to_thread(shutil.rmtree, self._environment.volume, ignore_errors=True)
