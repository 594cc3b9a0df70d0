"""Runs the commands of one step on one rank: prepares them, starts them at the due time, ends them,
and collects their files."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.ranks.counters import Counters, listens, pressure_shares, read_counters
from aiperf_svc.adapters.ranks.rank_environment import RankEnvironment
from aiperf_svc.adapters.ranks.rank_shell import RankShell
from aiperf_svc.protocol.messages.steps import CommandEnd, RankWitness
from aiperf_svc.workloads.gathering import (
    STDERR,
    STDOUT,
    TAIL_BYTES,
    commands_of,
    failure_text,
    newest_lines,
)
from aiperf_svc.workloads.steps import Command, PlannedStep

SERVER_S = 20.0
"""Longest time for a server to start listening."""
LISTEN_POLL_S = 0.02
"""Poll interval while servers start; nothing is measured then."""
TERM_S = 5.0
"""Time between SIGTERM and SIGKILL."""
SERVER_END_S = 10.0
"""Time for a server that ends by itself after its client has ended."""
LINES_BYTES = 4_096
"""Bytes at the end of the output in which a line about the command's progress is searched."""
PIECE_BYTES = 256 * 2**10
RESTARTED = "the rank's container was restarted, possibly because it ran out of memory"
WAKE_AHEAD_S = 0.002
"""The event loop's timers have a resolution of a millisecond; the rest is slept exactly."""


class _Running:
    def __init__(self, index: int, command: Command, *, is_server: bool) -> None:
        self.index = index
        self.command = command
        self.is_server = is_server
        self.is_prepared = False
        self.is_let_go = False
        """Whether its start was ordered; `started_wall_ns` is set when it has started."""
        self.started_wall_ns = 0
        self.ended_wall_ns = 0
        self.exit_code = 0
        self.was_told_to_end = False
        self.has_ended = asyncio.Event()


class Piece(NamedTuple):
    """A part of a file that a command has written."""

    command: int
    file: str
    data: bytes


class StepCommands:
    def __init__(
        self,
        plan: PlannedStep,
        rank: int,
        *,
        shell: RankShell,
        environment: RankEnvironment,
        files: Mapping[str, bytes],
        env: Mapping[str, str],
        output_limit: int,
        to_reference_ns: Callable[[], int],
    ) -> None:
        """`to_reference_ns`: offset from this machine's clock to the timing manager's."""
        self.plan = plan
        self.rank = rank
        self.problem = ""
        self._shell = shell
        self._environment = environment
        self._files = files
        self._env = env
        self._limit = output_limit
        self._to_reference_ns = to_reference_ns
        self._running = {
            f"{plan.number}-{index}": _Running(index, command, is_server=is_server)
            for index, command, is_server in commands_of(plan)
            if command.rank == rank
        }
        self._due_wall_ns = 0
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._restarts = shell.restarts

    # --- events of the shell ---------------------------------------------------------------------

    def on_started(self, command: str, wall_ns: int) -> None:
        """Record that the process of a command exists."""
        if command in self._running:
            self._running[command].started_wall_ns = wall_ns

    def on_ended(self, command: str, exit_code: int, wall_ns: int) -> None:
        """Record that a command has ended."""
        running = self._running.get(command)
        if running is not None:
            running.exit_code, running.ended_wall_ns = exit_code, wall_ns
            running.has_ended.set()

    # --- stages ----------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """End the processes of earlier steps, empty the work and output folders, write the input
        files, create the commands' processes, start the servers and wait until each listens."""
        work = self._environment.folder / "work"
        # Commands launched for other ranks have other names; they may still be ending.
        steps = (name.partition("-")[0] for name in self._shell.unfinished)
        if stuck := next(filter(str.isdecimal, steps), ""):
            self.note(f"SIGKILL did not end a command of step {stuck}")
            return
        await self._shell.reset()
        # The files and output of earlier steps have been sent.
        for folder in (work, self._environment.folder / "commands"):
            await asyncio.to_thread(_empty, folder)
        for name, data in self._files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if data.startswith(b"#!") else 0o644)
        for name, running in self._running.items():
            self._shell.prepare(
                name, running.command.argv, {**self._env, **running.command.env}, work
            )
            running.is_prepared = True
        for name, running in self._running.items():
            if running.is_server:
                self._start(name)
                await self._until_listening(running)
        if not self.problem:
            self._before = await self._read_counters("before")

    def _start(self, name: str) -> None:
        self._shell.start(name)
        self._running[name].is_let_go = True

    async def _until_listening(self, running: _Running) -> None:
        port = running.command.listens_on
        if not port:
            return
        try:
            async with asyncio.timeout(SERVER_S):
                while not listens(port):
                    if running.has_ended.is_set():
                        break
                    await asyncio.sleep(LISTEN_POLL_S)
        except TimeoutError:
            self.note(f"{running.command.argv[0]} did not listen on port {port} within 20 s")
        else:
            if running.has_ended.is_set():
                self.note(self._end_text(running))

    async def run(self, due_wall_ns: int) -> None:
        """Start the commands at a time of this machine's wall clock, and wait for their ends."""
        self._due_wall_ns = due_wall_ns
        mine = {name: r for name, r in self._running.items() if not r.is_server}
        delay_s = (due_wall_ns - time.time_ns()) / 1e9
        await asyncio.sleep(max(0.0, delay_s - WAKE_AHEAD_S))
        rest_s = (due_wall_ns - time.time_ns()) / 1e9
        if rest_s > 0:
            time.sleep(rest_s)  # noqa: ASYNC251 - at most some milliseconds, and exact
        for name in mine:
            self._start(name)
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(running.has_ended.wait(), name=name)
            for name, running in mine.items()
            if not running.command.ends_with_step
        ]
        watch = asyncio.create_task(self._watch(), name="watch the output")
        try:
            while not all(task.done() for task in waits):
                await asyncio.wait(
                    {*(task for task in waits if not task.done()), watch},
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for running in mine.values():
                    ended = running.has_ended.is_set() and not running.command.ends_with_step
                    if ended and running.exit_code and not self.problem:
                        end_text = RESTARTED if self._was_restarted else self._end_text(running)
                        self.note(end_text)
                if self.problem:
                    break
        finally:
            await cancel(*waits, watch)
        if mine:
            # A rank that only serves works until the step is over.
            await self._count_after()

    @property
    def _was_restarted(self) -> bool:
        return self._shell.restarts > self._restarts

    async def _watch(self) -> None:
        """Return when an output file has become too large, or the container was restarted."""
        while not self.problem:
            await asyncio.sleep(1.0)
            if self._was_restarted:
                self.note(RESTARTED)
            for name, running in self._running.items():
                for file in (STDOUT, STDERR):
                    path = self._shell.output(name) / file
                    if self._environment.is_left(path) and path.stat().st_size > self._limit:
                        self.note(self._too_large(running, file, path.stat().st_size))

    async def finish(self, *, abort_reason: str) -> None:
        """End the running commands; with a reason, which means a failed step, all of them."""
        if abort_reason:
            self.problem = self.problem or abort_reason
            await self._end(self._running)
        else:
            ending = {n: r for n, r in self._running.items() if r.command.ends_with_step}
            await self._end(ending)
            waiting = [r.has_ended.wait() for r in self._running.values() if r.is_server]
            try:
                async with asyncio.timeout(SERVER_END_S):
                    await asyncio.gather(*waiting)
            except TimeoutError:
                late = next(r for r in self._running.values() if not r.has_ended.is_set())
                self.note(f"{late.command.argv[0]} did not end after its client had")
                await self._end(self._running)
        if self._after is None and self._before is not None:
            await self._count_after()
        for name, running in self._running.items():
            # Processes that a command left in its process group.
            if running.is_let_go:
                self._shell.signal(name, "KILL")

    async def _end(self, some: Mapping[str, _Running]) -> None:
        alive = {n: r for n, r in some.items() if r.is_prepared and not r.has_ended.is_set()}
        for name, running in alive.items():
            if running.is_let_go:
                running.was_told_to_end = True
                self._shell.signal(name, "TERM")
            else:
                self._shell.discard(name)
        if await _first_overdue(alive):
            for name in alive:
                self._shell.signal(name, "KILL")
            if late := await _first_overdue(alive):
                self.note(f"SIGKILL did not end {late.command.argv[0]}")

    # --- leftovers -------------------------------------------------------------------------------

    def pieces(self) -> Iterator[Piece]:
        """Yield all files that the commands wrote, in pieces. A file over the limit is named in
        `problem`, and only its beginning is yielded."""
        work = self._environment.folder / "work"
        for name, running in self._running.items():
            folder = self._shell.output(name)
            paths = {file: folder / file for file in (STDOUT, STDERR)}
            for pattern in running.command.keeps:
                for path in sorted(work.glob(pattern)):
                    # A file name may contain bytes that are not UTF-8, but messages cannot.
                    kept = os.fsencode(path.relative_to(work)).decode(errors="backslashreplace")
                    # Pieces with one name are one file: several patterns may match it, and a tool
                    # may write its own file `stdout`.
                    paths.setdefault(kept, path)
            for file, path in paths.items():
                if self._environment.is_left(path):
                    yield from self._pieces_of(running, file, path)

    def _pieces_of(self, running: _Running, file: str, path: Path) -> Iterator[Piece]:
        size = path.stat().st_size
        if size > self._limit:
            self.note(self._too_large(running, file, size))
        left = min(size, self._limit)
        if not left:
            yield Piece(running.index, file, b"")
        with path.open("rb") as stream:
            while left > 0 and (data := stream.read(min(PIECE_BYTES, left))):
                left -= len(data)
                yield Piece(running.index, file, data)

    def ends(self) -> tuple[CommandEnd, ...]:
        """Return how the started commands ended, by the timing manager's clock."""
        offset_ns = self._to_reference_ns()
        return tuple(
            CommandEnd(
                index=r.index,
                exit_code=r.exit_code,
                started_wall_ns=r.started_wall_ns + offset_ns,
                ended_wall_ns=r.ended_wall_ns + offset_ns,
                was_told_to_end=r.was_told_to_end,
            )
            for r in self._running.values()
            if r.started_wall_ns and r.has_ended.is_set()
        )

    def last_lines(self) -> Iterator[str]:
        """Return the last complete lines that each measured command has printed, newest first."""
        for name, running in self._running.items():
            path = self._shell.output(name) / STDOUT
            if not running.is_server and self._environment.is_left(path):
                yield from newest_lines(_tail(path, LINES_BYTES))

    # --- counters --------------------------------------------------------------------------------

    async def _count_after(self) -> None:
        self._after = await self._read_counters("after")
        if self._was_restarted and self._before is not None:
            # The counters are those of a new container.
            self._before = msgspec.structs.replace(
                self._before, cpu_ns=0, throttled_ns=0, oom_kills=0, memory_peak_bytes=0
            )

    async def _read_counters(self, name: str) -> Counters:
        of_container = None
        if self._environment.is_container:
            of_container = await self._shell.counters(f"{self.plan.number}-{name}")
        return read_counters(of_container, self._environment.interface)

    def witness(self, *, clock_uncertainty_ns: int) -> RankWitness:
        """Return what this courier observed of the step."""
        before, after = self._before or Counters(), self._after or self._before or Counters()
        peak = after.memory_peak_bytes
        offset_ns = self._to_reference_ns()
        commands = [r for r in self._running.values() if not r.is_server and r.started_wall_ns]
        started = max((r.started_wall_ns for r in commands), default=0)
        ended = max((r.ended_wall_ns for r in commands), default=0)
        waited = pressure_shares(before, after)
        return RankWitness(
            rank=self.rank,
            node=self._environment.node,
            due_wall_ns=self._due_wall_ns + offset_ns if self._due_wall_ns else 0,
            started_wall_ns=started + offset_ns if started else 0,
            ended_wall_ns=ended + offset_ns if ended else 0,
            clock_uncertainty_ns=clock_uncertainty_ns,
            interface_rx_bytes=after.rx_bytes - before.rx_bytes,
            interface_tx_bytes=after.tx_bytes - before.tx_bytes,
            loopback_bytes=after.loopback_bytes - before.loopback_bytes,
            dropped_packets=after.drops - before.drops,
            tcp_retransmits=after.tcp_retransmits - before.tcp_retransmits,
            udp_errors=after.udp_errors - before.udp_errors,
            cpu_ns=after.cpu_ns - before.cpu_ns,
            throttled_ns=after.throttled_ns - before.throttled_ns,
            memory_peak_bytes=peak if peak > before.memory_peak_bytes else 0,
            memory_limit_bytes=self._environment.memory_bytes,
            oom_kills=after.oom_kills - before.oom_kills,
            cpu_pressure=waited.get("cpu"),
            io_pressure=waited.get("io"),
            memory_pressure=waited.get("memory"),
            stolen_ns=after.stolen_ns - before.stolen_ns,
            courier_cpu_ns=after.own_cpu_ns - before.own_cpu_ns,
            is_shared_network=self._environment.is_shared_network,
        )

    # --- texts -----------------------------------------------------------------------------------

    def note(self, problem: str) -> None:
        """Record a problem. Only the first one counts; later ones follow from it."""
        self.problem = self.problem or f"rank {self.rank}: {problem}"

    def _end_text(self, running: _Running) -> str:
        folder = self._shell.output(f"{self.plan.number}-{running.index}")
        left = filter(self._environment.is_left, (folder / STDERR, folder / STDOUT))
        nonempty = next((path for path in left if path.stat().st_size), None)
        text = _tail(nonempty, TAIL_BYTES) if nonempty else ""
        return failure_text(running.command, running.exit_code, text)

    def _too_large(self, running: _Running, file: str, size: int) -> str:
        return (
            f"{running.command.argv[0]} left {size:,} bytes in {file}, more than "
            f"workload.output_limit ({self._limit:,})"
        )


async def _first_overdue(some: Mapping[str, _Running]) -> _Running | None:
    """Wait until the commands end, and return one that has not ended after `TERM_S`."""
    try:
        async with asyncio.timeout(TERM_S):
            await asyncio.gather(*(r.has_ended.wait() for r in some.values()))
    except TimeoutError:
        pass
    return next((r for r in some.values() if not r.has_ended.is_set()), None)


def _tail(path: Path, size: int) -> str:
    """Return the end of a file that may be larger than the memory."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - size))
        return stream.read(size).decode("utf-8", "replace")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
