"""Runs commands as forks. Each fork has its own folder, environment, standard streams and command
line, as if it had just been executed. The same holds for the process that forks the services of its
run.

Tests of process start, memory or speed execute the command instead.
"""

import ctypes
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

from aiperf_svc.__main__ import main as run_command
from aiperf_svc.adapters.host.child_processes import set_command_line
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.runner import fork_server
from aiperf_svc.services import forks
from tests.support.forking import Fork, end_like_a_program, forget_signals, keep_only
from tests.support.preparations import Preparation, prepare_fork

PROGRAM = OWN_PROGRAM
AHEAD = (
    "adapters.storage.experiment_artifacts",
    "cli.checks",
    "cli.commands.local_runs",
    "cli.commands.runs",
    "cli.commands.service",
    "cli.flag_config",
    "cli.main",
    "adapters.terminal.experiment_tables",
    "adapters.terminal.live_display",
    "runner.joining",
    "runner.process_placement",
    "runner.printing",
)
"""Modules that commands import lazily, in addition to those of services."""
_ENV_START, _ENV_END = 47, 48
"""Fields of /proc/PID/stat with the environment's addresses, counted from the state field."""


class ForkedCommand(Fork):
    """A command that runs as a fork."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        preparation: Preparation = (),
        terminal_fd: int | None = None,
    ) -> None:
        """Start the command `words` (without the program name), on a terminal if there is one."""
        self._streams: tuple[IO[str], ...] = ()
        if terminal_fd is None:
            self._streams = (_unnamed_file(), _unnamed_file())
            fds = [stream.fileno() for stream in self._streams]
        else:
            fds = [terminal_fd] * 3
        order = [list(words), str(cwd), dict(env), preparation]
        super().__init__(__name__, order, fds)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return standard output and error. Raises TimeoutExpired."""
        self.wait(timeout)
        out, errors = (_whole_text(stream) for stream in self._streams)
        return out, errors


def finished(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str] = os.environ, timeout: float = 180
) -> "subprocess.CompletedProcess[str]":
    """Run the command `words` and return it when it has ended. Raises TimeoutExpired."""
    process = ForkedCommand(words, cwd=cwd, env=env)
    out, errors = process.communicate(timeout)
    return subprocess.CompletedProcess([*PROGRAM, *words], process.wait(), out, errors)


def needs_exec(environ: Mapping[str, str]) -> bool:
    """Return whether these variables take effect only in an executed process."""
    return any(name.startswith(fork_server.READ_AT_START_PREFIXES) for name in environ)


def prepare() -> None:
    """Import the modules of commands and services."""
    forks._import_services()
    for name in AHEAD:
        import_module(f"aiperf_svc.{name}")
    fork_server.subprocess = SimpleNamespace(Popen=_ForkedProcess, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment, attr-defined]


def begin(order: tuple[list[str], str, dict[str, str], Preparation], fds: Sequence[int]) -> int:
    """Run a command in this process and return its exit code."""
    words, folder, environ, preparation = order
    for target, fd in enumerate(fds, start=3 - len(fds)):
        os.dup2(fd, target)
        os.close(fd)
    cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(folder)
    added = environ.get("PYTHONPATH", "")
    sys.path[:0] = [folder, *filter(None, added.split(os.pathsep))]
    return _run([*PROGRAM, *words], environ, preparation)


def _run(command: Sequence[str], environ: dict[str, str], preparation: Preparation = ()) -> int:
    """Set up the environment and command line of an executed process and run the command."""
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    _show_environ(environ)
    set_command_line(command)
    sys.argv[1:] = command[len(PROGRAM) :]
    prepare_fork(preparation)
    return run_command()


def _show_environ(environ: dict[str, str]) -> None:
    """Make `/proc/PID/environ` show these variables."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[_ENV_START]), int(stat[_ENV_END])
    text = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environ.items())
    assert len(text) <= end - start, "no room for the environment"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


class _ForkedProcess:
    """The part of `subprocess.Popen` that `runner.fork_server` uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str],
        stdin: int,
        start_new_session: bool,
        pass_fds: Sequence[int],
    ) -> None:
        assert stdin == subprocess.DEVNULL
        assert start_new_session
        self.pid = os.fork()
        self._code: int | None = None
        if self.pid == 0:
            os.setsid()
            keep_only(pass_fds)
            forget_signals()
            end_like_a_program(lambda: _run(command, env))

    def poll(self) -> int | None:
        return self._code if self._code is not None else self._ended(os.WNOHANG)

    def wait(self) -> int | None:
        return self._code if self._code is not None else self._ended(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        pid, status = os.waitpid(self.pid, options)
        self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _unnamed_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", dir="/tmp", encoding="utf-8")


def _whole_text(stream: IO[str]) -> str:
    if stream.closed:
        return ""
    with stream:
        stream.seek(0)
        return stream.read()
