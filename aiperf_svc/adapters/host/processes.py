"""Starts, watches and ends the processes of a local run, and finds leftover ones.

Each process leads its own session, so a Ctrl-C in the terminal reaches only the runner, and its
process group shows whether it left anything running.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiperf_svc.adapters.host.process_stats import all_stats
from aiperf_svc.domain.errors import EnvironmentProblem

POLL_S = 0.05
"""Seconds between checks of a process if the kernel does not support pidfds."""
LEFTOVER_CHECKS = 40


class Process:
    def __init__(self, name: str, pid: int, poll: Callable[[], int | None], stderr: Path) -> None:
        """Wrap a child. `poll` reaps it and returns its exit code; None while it runs."""
        self.name = name
        self.pid = pid
        self.stderr = stderr
        """File with its standard error and output."""
        self._poll = poll

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs; negative if a signal ended it."""
        return self._poll()

    @property
    def end_text(self) -> str:
        """Describe how the process ended."""
        code = self.exit_code
        if code is None:
            return "is running"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def wait(self) -> int:
        """Wait until it has ended and return its exit code."""
        return await ended(self.pid, self._poll)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still exists."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """Kill the rest of its process group; return whether there was any."""
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
    """Return a child that another process has started."""
    code: int | None = None

    def poll() -> int | None:
        nonlocal code
        if code is None:
            found, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
        return code

    return Process(name, pid, poll, stderr)


async def ended(pid: int, poll: Callable[[], int | None]) -> int:
    """Wait until a child has ended and return its exit code."""
    if poll() is None:
        if hasattr(os, "pidfd_open"):
            await _readable(os.pidfd_open(pid))
        while poll() is None:  # noqa: ASYNC110 - systems without pidfd send no notice
            await asyncio.sleep(POLL_S)
    code = poll()
    assert code is not None
    return code


async def end_processes(
    processes: Sequence[Process], *, terminate_after_s: float, kill_after_s: float
) -> list[str]:
    """Wait until all have ended. Send SIGTERM after one timeout, SIGKILL after another. Return the
    names of the killed ones."""
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
    """Kill the processes that ended ones have left running, and reap all that have ended. Returns a
    line for each that still exists."""
    left = [process for process in processes if process.kill_group()]
    for _ in range(LEFTOVER_CHECKS):
        # A killed process stays in its group until its new parent, init, reaps it.
        alive = _living_groups()
        left = [process for process in left if process.pid in alive]
        if not left:
            break
        await asyncio.sleep(POLL_S)
    # A killed process may end after the last wait. Read its exit code to reap it.
    left += [each for each in processes if each.exit_code is None and each not in left]
    return [f"process group {process.pid} of {process.name}" for process in left]


def _living_groups() -> set[int]:
    """Return the process groups with a process that is not a zombie."""
    return {each.group for each in all_stats() if each.is_alive}


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


LINES = 8
BYTES = 16 * 1024


def last_lines(folder: Path, name: str, count: int = LINES) -> str:
    """Return the end of a process's standard error and logs, indented; may be empty."""
    logged = [(line, path.stem) for path in _logs_of(folder, name) for line in _tail(path)]
    # Logs of several services are merged in order of time.
    logged.sort(key=lambda pair: _time(pair[0]))
    lines = [_log_text(line, service) for line, service in logged]
    lines += _tail(folder / f"{name}.stderr")
    return "\n".join(f"  {line}" for line in lines[-count:])


def remove_empty(folder: Path) -> None:
    """Remove empty standard-error files."""
    for path in folder.glob("*.stderr"):
        if path.stat().st_size == 0:
            path.unlink()


class Tails:
    """Reads the new lines of the logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new_lines(self) -> list[str]:
        """Return the complete new lines, formatted; lines of a file are in order."""
        lines: list[str] = []
        for path in sorted(self._folder.glob("*.log")):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = begin + len(whole) + len(newline)
            text = whole.decode(errors="replace")
            lines += [_log_text(line, path.stem) for line in text.splitlines()]
        return lines


def _logs_of(folder: Path, process: str) -> list[Path]:
    """Return the log of a process that is one service, or the logs of all unnumbered services."""
    own = folder / f"{process}.log"
    if own.is_file():
        return [own]
    return [path for path in folder.glob("*.log") if not path.stem[-1].isdigit()]


def _tail(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES))
        return file.read().decode(errors="replace").splitlines()


def _time(line: str) -> str:
    try:
        return str(json.loads(line)["time"])
    except (ValueError, TypeError, KeyError):
        return ""


def _log_text(line: str, process: str) -> str:
    """Format a structured line without its constant parts."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    service = entry.get("service", "")
    who = process if process.startswith(service) else service
    text = f"{entry.get('level', '')} {who}: {entry.get('message', '')}"
    return f"{text}\n{entry['exception']}" if "exception" in entry else text
