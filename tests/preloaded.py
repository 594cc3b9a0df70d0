"""Commands as forks of one process that has imported what they import.

Importing is most of what a short command does. Here one process has done it: a command begins as
if it had just been executed, with a folder, an environment, standard streams and a command line of
its own, and so does the process of which its services are forks. What is tested about the start of
a process, its memory or its speed is executed instead.
"""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn

from aiperf_svc.__main__ import main as run_command
from aiperf_svc.adapters.host.child_processes import set_command_line
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.runner import fork_server
from aiperf_svc.services import forks

PROGRAM = (sys.executable, "-m", "aiperf_svc")
AHEAD = (
    "adapters.storage.experiment_artifacts",
    "cli.checks",
    "cli.commands.profile",
    "cli.commands.run",
    "cli.commands.service",
    "cli.experiments",
    "cli.flag_config",
    "cli.runs",
    "runner.experiment_tables",
    "runner.live_display",
    "runner.local_shapes",
    "runner.local_targets",
    "runner.run_tables",
)
"""Modules that are imported when they are needed, beside those of services."""
READ_AT_START = ("ASAN_", "LD_", "LSAN_", "MALLOC_", "PYTHON", "UBSAN_")
"""Beginnings of variables that only a new process reads."""
ROOM = 32_768
"""Bytes for the command line of a fork, and as many for its environment."""
_ENV_START, _ENV_END = 47, 48
"""In /proc/PID/stat, counted from the state: where the environment is in memory."""


class Preloaded:
    """A command that is a fork; what tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        """Start the command `words`, without the program."""
        self.returncode: int | None = None
        self._files: tuple[IO[str], IO[str]] = (_unnamed_file(), _unnamed_file())
        self._said, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        order = json.dumps((list(words), str(cwd), dict(env))).encode()
        with theirs:
            fds = (theirs.fileno(), *(file.fileno() for file in self._files))
            with _one_at_a_time:
                control = _control()
            socket.send_fds(control, [order], fds)
        self.pid = int(self._said.recv(16))

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._said], [], [], 0)[0]:
            self.returncode = int(self._said.recv(16))
            self._said.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        if self.returncode is None:
            select.select([self._said], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(PROGRAM, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it wrote to its standard output and error. Raises
        TimeoutExpired."""
        self.wait(timeout)
        out, errors = (_whole_text(file) for file in self._files)
        return out, errors

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def finished(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str] = os.environ, timeout: float = 90
) -> "subprocess.CompletedProcess[str]":
    """The command `words`, when it has ended. Raises TimeoutExpired."""
    process = Preloaded(words, cwd=cwd, env=env)
    out, errors = process.communicate(timeout)
    return subprocess.CompletedProcess([*PROGRAM, *words], process.wait(), out, errors)


def needs_a_start(environ: Mapping[str, str]) -> bool:
    """Whether only a process that is executed has what these variables ask for."""
    return any(name.startswith(READ_AT_START) for name in environ)


def _unnamed_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", dir="/tmp", encoding="utf-8")


def _whole_text(file: IO[str]) -> str:
    if file.closed:
        return ""
    with file:
        file.seek(0)
        return file.read()


def server_processes() -> set[int]:
    """Process ids of what goes on until this process ends."""
    return {server.pid for server in _servers}


_one_at_a_time = threading.Lock()
_servers: "list[subprocess.Popen[bytes]]" = []


@cache
def _control() -> socket.socket:
    """The socket of the process that forks, which ends when this process does."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), " " * ROOM],
            env=os.environ | PROCESS_ENVIRONMENT | {"ROOM": " " * ROOM},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    _servers.append(server)
    atexit.register(_end, ours, server)
    return ours


def _end(control: socket.socket, server: "subprocess.Popen[bytes]") -> None:
    control.close()
    server.wait()


def _serve(control: socket.socket) -> None:
    """Fork for each order, and say its process id and its end; returns in the forks."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([control, *running], [], [])[0]:
            if ready is control:
                order, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
                if not order:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    _become(*json.loads(order), streams=fds[1:])
                    return
                said = socket.socket(fileno=fds[0])
                said.send(str(pid).encode())
                running[os.pidfd_open(pid)] = (pid, said)
                for fd in fds[1:]:
                    os.close(fd)
            else:
                pid, said = running.pop(ready)
                _, status = os.waitpid(pid, 0)
                with said:
                    said.send(str(os.waitstatus_to_exitcode(status)).encode())
                os.close(ready)


def _become(words: list[str], folder: str, environ: dict[str, str], streams: list[int]) -> None:
    for target, fd in enumerate(streams, start=1):
        os.dup2(fd, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    sys.path[0] = folder
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _begin([*PROGRAM, *words], environ)


def _begin(command: Sequence[str], environ: dict[str, str]) -> None:
    """Have the environment and the command line that the process would have been executed with."""
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    _show_environ(environ)
    set_command_line(command)
    sys.argv[1:] = command[len(PROGRAM) :]
    # Of the libraries; the command's own comes first, as in a process that has imported nothing.
    atexit._clear()


def _show_environ(environ: dict[str, str]) -> None:
    """Have `/proc/PID/environ` show these variables."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[_ENV_START]), int(stat[_ENV_END])
    text = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environ.items())
    assert len(text) <= end - start, "no room for the environment"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


class _ForkedProcess:
    """Stands for `subprocess.Popen` where a command starts the process of its services: that has
    its imports too."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str],
        stdin: int,
        start_new_session: bool,
        pass_fds: tuple[int],
    ) -> None:
        assert stdin == subprocess.DEVNULL
        assert start_new_session
        self.pid = os.fork()
        self._code: int | None = None
        if self.pid == 0:
            (kept,) = pass_fds
            os.setsid()
            os.closerange(3, kept)
            os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
            _begin(command, env)
            _run()

    def poll(self) -> int | None:
        if self._code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._code = os.waitstatus_to_exitcode(ended[1])
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run() -> NoReturn:
    """Run the command, and end as the interpreter does."""
    try:
        run_command()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(1)


def main() -> None:
    """Import, and serve; each fork is a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    forks._import_services()
    for name in AHEAD:
        import_module(f"aiperf_svc.{name}")
    gc.enable()
    gc.freeze()
    assert forks._is_single_threaded()
    fork_server.subprocess = SimpleNamespace(Popen=_ForkedProcess, DEVNULL=subprocess.DEVNULL)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run()


if __name__ == "__main__":
    main()
