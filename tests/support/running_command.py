"""Runs the command as a user does, in its own folder, and checks that nothing is left behind."""

import fcntl
import json
import os
import select
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.storage.folders import PREFIX
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.running import RunningMockServer
from tests.support.forked_commands import PROGRAM, ForkedCommand, needs_exec
from tests.support.preparations import Preparation

WAIT_S = 180.0
POLL_S = 0.02
"""Interval between polls. A busy loop would take CPU time from the process that it waits for."""
OTHERS_S = 60.0
"""Longest time in which another command may create or remove a folder in a shared place."""
QUIET = ("--json", "--ui", "none")
FINISHED = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""Exit codes of a complete run. The verdict of a short run on a busy machine may be `invalid`."""
SHARED_FOLDERS = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))
"""Folders that programs may write to regardless of TMPDIR."""


class Command:
    """One run of the command in its own folder."""

    def __init__(
        self,
        folder: Path,
        url: str | None,
        *flags: str,
        within: Sequence[str] = (),
        words: Sequence[str] = ("profile",),
        is_executed: bool = False,
        preparation: Preparation = (),
        **environ: str,
    ) -> None:
        """Start `profile` against the server at `url`, or without a server. `within` is a wrapper
        program with its arguments. `words` replace `profile`. With `is_executed`, the command
        starts its own interpreter; otherwise it is a fork, which `preparation` changes first."""
        self.folder = folder
        self._ports: dict[str, str] = {}
        self._before = private_folders()
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.environ = os.environ | {"TMPDIR": str(temporary), "HOME": str(folder)} | environ
        self.environ.pop("XDG_RUNTIME_DIR", None)
        target = () if url is None else ("-u", url, "-m", "mock", "--streaming")
        arguments = (*words, *target, *flags, *QUIET)
        self.process: subprocess.Popen[str] | ForkedCommand
        if within or is_executed or needs_exec(environ):
            self.process = subprocess.Popen(
                [*within, *PROGRAM, *arguments],
                cwd=folder,
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            self.process = ForkedCommand(
                arguments, cwd=folder, env=self.environ, preparation=preparation
            )

    def finish(self) -> dict[str, Any]:
        """Wait for the end and return the printed JSON."""
        out, self.errors = self.process.communicate(timeout=WAIT_S)
        self.code = ExitCode(self.process.returncode)  # type: ignore[arg-type]
        return json.loads(out) if out.strip() else {}

    def processes(self) -> list[int]:
        """Return the ids of all child processes, which are identified by this command's TMPDIR."""
        mark = f"TMPDIR={self.environ['TMPDIR']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            # A process may end between listing and reading.
            with suppress(OSError):
                is_ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if is_ours and int(entry.name) != self.process.pid:
                    found.append(int(entry.name))
        return found

    def service(self, name: str) -> int:
        """Return the process id of a service, identified by the file of its standard error."""
        for pid in self.processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/fd/2").readlink().name == f"{name}.stderr":
                    return pid
        raise AssertionError(f"no {name} among {self.processes()}")

    def note_ports(self) -> dict[str, str]:
        """Return the listening sockets of the command's processes as inode to address. All must be
        closed at the end. They are compared by inode because another command may reuse an
        address."""
        inodes = set()
        for pid in (self.process.pid, *self.processes()):
            # A process may end or close a socket between listing and reading.
            with suppress(FileNotFoundError, ProcessLookupError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(FileNotFoundError):
                        target = str(link.readlink())
                        if target.startswith("socket:["):
                            inodes.add(target[8:-1])
        self._ports |= {i: a for i, a in listening_sockets().items() if i in inodes}
        return self._ports

    def wait_for_requests(self, mock: RunningMockServer, count: int) -> None:
        """Wait until the server has received this many requests."""
        deadline = time.monotonic() + WAIT_S
        while mock.truth()["requests"] < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(POLL_S)

    def left_behind(self) -> list[str]:
        """Return everything left behind besides the artifacts: processes, files, and open ports
        that `note_ports` found."""
        seen = private_folders() - self._before
        left = [f"process {pid}" for pid in self.processes()]
        left += [f"port {self._ports[i]}" for i in self._ports.keys() & listening_sockets().keys()]
        own = list((self.folder / "tmp").iterdir())
        own += [
            p for p in self.folder.iterdir() if p.name not in ("tmp", "artifacts", "input.jsonl")
        ]
        left += [f"file {path.relative_to(self.folder)}" for path in own]
        # Another command may be creating its folder, or services remove that of a killed runner.
        deadline = time.monotonic() + OTHERS_S
        while (shared := private_folders() & seen) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left + [f"file {path}" for path in shared]

    def assert_nothing_is_left(self) -> None:
        """Fail if a process, a listening port or a file other than the artifacts is left."""
        left = self.left_behind()
        assert not left, f"left behind: {', '.join(left)}"


def private_folders() -> set[Path]:
    """Return the run folders in shared places, except those of active runs."""
    roots = {*SHARED_FOLDERS, Path(tempfile.gettempdir())}
    return {path for root in roots for path in root.glob(f"{PREFIX}*") if not _is_in_use(path)}


def _is_in_use(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Another run is creating or removing it, unless it stays.
        return not folder.exists()
    return False


def listening_sockets() -> dict[str, str]:
    """Return the local address of every listening TCP socket by inode."""
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
    rows = [line.split() for line in lines]
    return {row[9]: row[1] for row in rows if row[3] == "0A"}


def wait_for(
    is_true: Callable[[], bool], limit_s: float = WAIT_S, *, tell: Callable[[], str] = str
) -> None:
    """Wait until a condition is true; `tell` returns the error message."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, tell()
        time.sleep(POLL_S)


def wait_until(command: Command, is_true: Callable[[], bool]) -> None:
    """Wait until a condition is true. Fails if the command ends first."""

    def is_reached() -> bool:
        if is_true():
            return True
        assert command.process.poll() is None, command.process.communicate()
        return False

    wait_for(is_reached)


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """Return the trials in the experiment file of a folder."""
    found: list[dict[str, Any]] = json.loads((folder / "experiment.json").read_bytes())["trials"]
    return found


def kill(command: Command) -> None:
    """Kill the runner and wait until its processes are gone."""
    services = [os.pidfd_open(pid) for pid in command.processes()]
    command.process.kill()
    command.process.communicate()
    wait_gone(*services)


def wait_ended(pid: int) -> None:
    """Wait until a killed process is gone or a zombie."""

    def is_ended() -> bool:
        try:
            stat_line = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat_line.rpartition(")")[2].split()[0] in "ZX"

    wait_for(is_ended, tell=lambda: f"process {pid} is still running")


def wait_gone(*pidfds: int) -> None:
    """Wait until the processes behind these descriptors have ended, and close the descriptors."""
    for pidfd in pidfds:
        ended, _, _ = select.select([pidfd], [], [], WAIT_S)
        assert ended, f"still running: {_command_line(pidfd)}"
        os.close(pidfd)


def _command_line(pidfd: int) -> str:
    info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    pid = info.partition("Pid:")[2].split()[0]
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def artifacts(folder: Path) -> Path:
    """Return the only artifact folder in `folder`."""
    (found,) = (folder / "artifacts").iterdir()
    return found


def assert_only_the_user_reads(folder: Path) -> None:
    """Fail unless only the user can access the folder and everything in it."""
    found = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    modes = {str(path): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in found}
    expected = {str(path): "700" if path.is_dir() else "600" for path in found}
    assert modes == expected
