"""The processes of a local run: started, watched, ended, and looked for afterwards.

Each is the leader of a session of its own, so that Ctrl-C in the terminal reaches the runner only,
and so that its process group tells whether it left anything running.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiperf_svc.domain.errors import EnvironmentProblem

POLL_S = 0.05
"""Seconds between two checks of a process if the kernel has no process descriptors."""
LEFTOVER_LOOKS = 40


class Process:
    """One child process."""

    def __init__(self, name: str, pid: int, poll: Callable[[], int | None], stderr: Path) -> None:
        """Wrap a child. `poll` reaps it and returns its exit code, None while it runs."""
        self.name = name
        self.pid = pid
        self.stderr = stderr
        """File with its standard output and error."""
        self._poll = poll

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs; negative: the signal that ended it."""
        return self._poll()

    @property
    def how_it_ended(self) -> str:
        """The end of the process in words."""
        code = self.exit_code
        if code is None:
            return "is running"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def wait(self) -> int:
        """Its exit code, as soon as it has ended."""
        return await ended(self.pid, self._poll)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, if it is still there."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """Kill what is left of its process group; whether anything was."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def start_process(
    name: str,
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    stderr: Path,
) -> Process:
    """Start a child whose output goes to the file `stderr`. Raises EnvironmentProblem."""
    try:
        with stderr.open("ab") as output:
            child = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise EnvironmentProblem(f"cannot start {name}: {error}") from error
    return Process(name, child.pid, child.poll, stderr)


def adopted_process(name: str, pid: int, *, stderr: Path) -> Process:
    """A child that another process has started."""
    code: int | None = None

    def poll() -> int | None:
        nonlocal code
        if code is None:
            found, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
        return code

    return Process(name, pid, poll, stderr)


async def ended(pid: int, poll: Callable[[], int | None]) -> int:
    """Exit code of a child, as soon as it has ended."""
    if poll() is None:
        if hasattr(os, "pidfd_open"):
            await _readable(os.pidfd_open(pid))
        while poll() is None:  # noqa: ASYNC110 - systems without pidfd tell nobody
            await asyncio.sleep(POLL_S)
    code = poll()
    assert code is not None
    return code


async def end_processes(
    processes: Sequence[Process], *, terminate_after_s: float, kill_after_s: float
) -> list[str]:
    """Wait until all have ended: SIGTERM after a while, SIGKILL after another. The names of those
    that had to be killed."""
    if await _all_end(processes, terminate_after_s):
        return []
    for process in processes:
        process.signal(signal.SIGTERM)
    if await _all_end(processes, kill_after_s):
        return []
    stuck = [process for process in processes if process.exit_code is None]
    for process in stuck:
        process.kill_group()
    await _all_end(processes, kill_after_s)
    return [process.name for process in stuck]


async def leftovers(processes: Sequence[Process]) -> list[str]:
    """Kill the processes that ended ones left running. Returns one line for each that still
    exists."""
    left = [process for process in processes if process.kill_group()]
    for _ in range(LEFTOVER_LOOKS):
        # A killed process stays in its group until its new parent, init, takes notice.
        alive = _living_groups()
        left = [process for process in left if process.pid in alive]
        if not left:
            return []
        await asyncio.sleep(POLL_S)
    return [f"process group {process.pid} of {process.name}" for process in left]


def _living_groups() -> set[int]:
    """Process groups with a process that is no zombie."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may hold anything; state, parent and group follow it.
            state, _parent, group, *_ = path.read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found.add(int(group))
    return found


async def _all_end(processes: Sequence[Process], within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            for process in processes:
                await process.wait()
    except TimeoutError:
        return False
    return True


async def _readable(fd: int) -> None:
    """Wait until a descriptor is readable, then close it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
