"""Runs commands in a rank through `rank_loop.sh`, which is connected by two FIFOs.

On a cluster the loop is process 1 of a container with the workload's image, and the folder with the
FIFOs is shared. Locally the loop is a child process.
"""

import asyncio
import logging
import os
import secrets
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import time_ns

from aiperf_svc.adapters.host.child_processes import end_children, end_with_parent
from aiperf_svc.adapters.host.private_files import user_mask
from aiperf_svc.adapters.ranks.launches import FifoLines, copy_script, make_fifo, open_fifo
from aiperf_svc.domain.errors import BenchmarkFailed, EnvironmentProblem
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT, USER_VARIABLES

LOOP = Path(__file__).with_name("rank_loop.sh")
READY_S = 120.0
"""Longest time for the loop to start, without an image pull."""
_SIGNALS = {128 + number: -number for number in signal.valid_signals()}
ORDERS, EVENTS, GATE = "orders", "events", "gate"
_GO = "go"

OnEvent = Callable[[str, int, int], None]
"""Called with a command's id, a number and the wall-clock time in ns."""
log = logging.getLogger(__name__)


def make_folder(folder: Path) -> None:
    """Create the files that the loop and its courier share: FIFOs, folders, and a copy of the loop.
    The two may run as different users."""
    for path in (folder, *(folder / name for name in ("commands", "stats", "work"))):
        path.mkdir(parents=True, exist_ok=True)
        # A pod's volume belongs to root and is open to the pod's containers.
        if path.stat().st_uid == os.getuid():
            path.chmod(0o777)
    make_fifo(folder / ORDERS)
    make_fifo(folder / EVENTS)
    copy_script(LOOP, folder)


def _environment_of_tools(own: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without this run's token and folders, and without the limits on
    threads and memory that suit a service but would affect a tool's measurements."""
    added = PROCESS_ENVIRONMENT.keys() - own.get(USER_VARIABLES, "").split()
    return {
        name: value
        for name, value in own.items()
        if not name.startswith("AIPERF_") and name not in added
    }


class RankShell:
    """The courier's side of the connection."""

    def __init__(self, folder: Path, *, on_started: OnEvent, on_ended: OnEvent) -> None:
        """`on_started` gets a command's process id, `on_ended` its exit code or negative signal."""
        self.folder = folder
        self._on_started = on_started
        self._on_ended = on_ended
        self._token = secrets.token_hex(4)
        """Token of the reset; the loop's messages after it are for this object."""
        self._is_ready = asyncio.Event()
        self._copied: dict[str, asyncio.Event] = {}
        self._orders = -1
        self._events: FifoLines | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._gates: dict[str, int] = {}
        """Commands that have not ended, with the FIFO at which each waits before it starts."""
        self.restarts = -1
        """Number of restarts of the loop, each after a restart of its container."""

    async def open(self, *, starts_loop: bool, longest_s: float = READY_S) -> None:
        """Connect to the loop, or start it as a child, and end the commands of an earlier courier.
        Raises EnvironmentProblem if the loop has not started after `longest_s`."""
        self._orders = open_fifo(self.folder / ORDERS)
        self._events = FifoLines(self.folder / EVENTS, self._handle_events)
        if starts_loop:
            self._child = self._start_loop()
        self._order(f"reset {self._token}")
        try:
            async with asyncio.timeout(longest_s):
                await self._is_ready.wait()
        except TimeoutError:
            raise EnvironmentProblem(
                f"the rank's loop did not start within {longest_s:g} s: its image was not pulled "
                "by then (deployment.ready_timeout), or has no POSIX shell"
            ) from None

    def _start_loop(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["sh", str(self.folder / LOOP.name), str(self.folder), "child"],
            # The loop ends when this input ends, which happens when the courier dies.
            stdin=subprocess.PIPE,
            env=_environment_of_tools(os.environ),
            start_new_session=True,
            umask=user_mask(),
            # When the courier dies, the loop gets a signal and ends its commands before itself.
            preexec_fn=end_with_parent,
        )

    def run(self, command: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """Start a command now. Its output is written to files in `output(command)`."""
        self.prepare(command, argv, env, cwd)
        self.start(command)

    def prepare(self, command: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """Create a command's process, which waits until `start`. Creating a process takes
        milliseconds on a busy machine; the other ranks' commands would have started meanwhile."""
        folder = self.output(command)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        gate = folder / GATE
        make_fifo(gate)
        self._gates[command] = open_fifo(gate)
        lines = [f"echo $$ >{shlex.quote(str(folder / 'pid'))}"]
        lines += [f"read -r word <{shlex.quote(str(gate))}", f'[ "$word" = {_GO} ] || exit 0']
        lines += [f'echo "started {command} $$" >&4']
        lines += [f"cd {shlex.quote(str(cwd))} || exit 126"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        lines.append(f"exec {shlex.join(argv)} 4>&-")
        (folder / "run.sh").write_text("\n".join(lines) + "\n")
        self._order(f"run {command}")

    def start(self, command: str) -> None:
        """Start a prepared command, unless its process has ended in the meantime."""
        self._write_to_gate(command, _GO)

    def discard(self, command: str) -> None:
        """End a prepared command that was not started."""
        self._write_to_gate(command, "leave")

    def _write_to_gate(self, command: str, word: str) -> None:
        if command in self._gates:
            os.write(self._gates[command], f"{word}\n".encode())

    def signal(self, command: str, name: str) -> None:
        """Send TERM or KILL to a command's process group, if it exists."""
        self._order(f"{name} {command}")

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Return the prepared commands that have not ended."""
        return tuple(self._gates)

    async def reset(self) -> None:
        """End all commands and their processes, including daemons in other process groups."""
        self._is_ready.clear()
        self._order(f"reset {self._token}")
        await self._is_ready.wait()
        for command in self.unfinished:
            self._handle_end(command, -signal.SIGKILL, time_ns())
        if self._child is not None:
            # They are children of the courier, like the loop.
            await asyncio.to_thread(end_children, keep=self._child.pid)

    def output(self, command: str) -> Path:
        """Return the folder with the files `stdout` and `stderr` of a command."""
        return self.folder / "commands" / command

    async def counters(self, name: str) -> dict[str, str]:
        """Return the container's counters: `FILE FIELD` or `FILE` to the value."""
        copied = self._copied[name] = asyncio.Event()
        self._order(f"stat {name}")
        await copied.wait()
        del self._copied[name]
        found = {}
        for line in (self.folder / "stats" / name).read_text().splitlines():
            key, _, value = line.rpartition(" ")
            found[key] = value
        return found

    def _order(self, line: str) -> None:
        """Send an order. It is shorter than PIPE_BUF, so the write is atomic."""
        try:
            os.write(self._orders, f"{line}\n".encode())
        except BlockingIOError as error:
            raise BenchmarkFailed("the rank's loop does not read its orders") from error

    def _handle_events(self, lines: list[str]) -> None:
        now = time_ns()
        for line in lines:
            match line.split():
                case ["ready", _]:
                    self.restarts += 1
                    # The commands in the container have ended with it.
                    for command in tuple(self._gates):
                        self._handle_end(command, -signal.SIGKILL, now)
                case ["reset", token] if token == self._token:
                    self._is_ready.set()
                case _ if not self._is_ready.is_set():
                    pass  # from an earlier trial
                case ["started", command, pid]:
                    self._on_started(command, int(pid), now)
                case ["ended", command, code] if command in self._gates:
                    self._handle_end(command, _SIGNALS.get(int(code), int(code)), now)
                case ["copied", name] if name in self._copied:
                    self._copied[name].set()
                case _:
                    log.warning("unknown line from the rank's loop: %r", line)

    def _handle_end(self, command: str, exit_code: int, wall_ns: int) -> None:
        os.close(self._gates.pop(command))
        self._on_ended(command, exit_code, wall_ns)

    async def close(self, *, leaves_loop: bool = False) -> None:
        """End all commands, and the loop too unless another courier will use it."""
        if self._events is None:
            return
        self._events.stop()
        with suppress(BenchmarkFailed):
            self._order(f"reset {self._token}" if leaves_loop else "end")
        if self._child is not None:
            # It must not be killed here: only the loop knows the process ids of its commands.
            await asyncio.to_thread(self._child.wait)
            assert self._child.stdin is not None
            self._child.stdin.close()
        for fd in (self._orders, *self._gates.values()):
            os.close(fd)
        self._gates.clear()
        self._events.close()
        self._events = None
