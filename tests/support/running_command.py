"""The command as a user runs it, in a folder of its own, and what it leaves behind."""

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
from tests.support.forked_commands import PROGRAM, ForkedCommand, needs_a_start
from tests.support.preparations import Preparation

WAIT_S = 180.0
LOOK_S = 0.02
"""Between two looks: a test that spins takes the CPU from what it waits for."""
OTHERS_S = 60.0
"""Longest time in which a folder in a shared place may be another command's that comes or goes."""
QUIET = ("--json", "--ui", "none")
FINISHED = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""A short run on a busy machine may rightly not be believed; both, where that is not a question."""
SHARED_FOLDERS = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))
"""Where a program may put files whatever TMPDIR says."""


class Command:
    """One run of the command, in a folder of its own."""

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
        """Start `profile` against the server at `url`, or without one as the flags say. `within` is
        a program, with its arguments, that starts the command; `words` are other than `profile`;
        with `is_executed` it has the interpreter's start and imports of its own, with `preparation`
        it is a fork that has done that first.
        """
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
        if within or is_executed or needs_a_start(environ):
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
        """Wait for its end; what it printed."""
        out, self.errors = self.process.communicate(timeout=WAIT_S)
        self.code = ExitCode(self.process.returncode)  # type: ignore[arg-type]
        return json.loads(out) if out.strip() else {}

    def processes(self) -> list[int]:
        """Process ids of all that the command has started, known by the folder for temporary files
        that is this command's only."""
        mark = f"TMPDIR={self.environ['TMPDIR']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            # A process may end between the listing and the reading.
            with suppress(OSError):
                is_ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if is_ours and int(entry.name) != self.process.pid:
                    found.append(int(entry.name))
        return found

    def service(self, name: str) -> int:
        """Process id of one service, known by the file that its standard error goes to."""
        for pid in self.processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/fd/2").readlink().name == f"{name}.stderr":
                    return pid
        raise AssertionError(f"no {name} among {self.processes()}")

    def note_ports(self) -> dict[str, str]:
        """Inode to address of the sockets on which the command's processes listen; none of them may
        stay open. Another command may take an address that this one has left."""
        inodes = set()
        for pid in (self.process.pid, *self.processes()):
            # A process may end, or close one, between the listing and the reading.
            with suppress(FileNotFoundError, ProcessLookupError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(FileNotFoundError):
                        target = str(link.readlink())
                        if target.startswith("socket:["):
                            inodes.add(target[8:-1])
        self._ports |= {i: a for i, a in listening_sockets().items() if i in inodes}
        return self._ports

    def wait_for_requests(self, mock: RunningMockServer, count: int) -> None:
        """Until the server has seen so many requests; it is what there is to wait for."""
        deadline = time.monotonic() + WAIT_S
        while mock.truth()["requests"] < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)

    def left_behind(self) -> list[str]:
        """What there is beside the artifacts: processes, open ports that `note_ports` has seen,
        files."""
        seen = private_folders() - self._before
        left = [f"process {pid}" for pid in self.processes()]
        left += [f"port {self._ports[i]}" for i in self._ports.keys() & listening_sockets().keys()]
        own = list((self.folder / "tmp").iterdir())
        own += [
            p for p in self.folder.iterdir() if p.name not in ("tmp", "artifacts", "input.jsonl")
        ]
        left += [f"file {path.relative_to(self.folder)}" for path in own]
        # Another command is making its folder, or its services remove that of a killed runner.
        deadline = time.monotonic() + OTHERS_S
        while (shared := private_folders() & seen) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return left + [f"file {path}" for path in shared]

    def assert_nothing_is_left(self) -> None:
        """No process, no listening port, no file but the artifacts."""
        left = self.left_behind()
        assert not left, f"left behind: {', '.join(left)}"


def private_folders() -> set[Path]:
    """Folders of runs in the places that all programs share, but for those of runs that go on."""
    roots = {*SHARED_FOLDERS, Path(tempfile.gettempdir())}
    return {path for root in roots for path in root.glob(f"{PREFIX}*") if not _is_in_use(path)}


def _is_in_use(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # Of another run that is just making or removing it, unless it stays.
        return not folder.exists()
    return False


def listening_sockets() -> dict[str, str]:
    """Inode to local address of every listening TCP socket."""
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
    rows = [line.split() for line in lines]
    return {row[9]: row[1] for row in rows if row[3] == "0A"}


def wait_for(
    is_true: Callable[[], bool], limit_s: float = WAIT_S, *, tell: Callable[[], str] = str
) -> None:
    """Wait until something is true; `tell` has the words if it never is."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, tell()
        time.sleep(LOOK_S)


def wait_until(command: Command, is_true: Callable[[], bool]) -> None:
    """Wait until something is true, while the command goes on."""

    def is_reached() -> bool:
        if is_true():
            return True
        assert command.process.poll() is None, command.process.communicate()
        return False

    wait_for(is_reached)


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """Return the trials of the experiment in a folder, as its file has them."""
    found: list[dict[str, Any]] = json.loads((folder / "experiment.json").read_bytes())["trials"]
    return found


def kill(command: Command) -> None:
    """Kill the runner, and wait until its processes are gone."""
    services = [os.pidfd_open(pid) for pid in command.processes()]
    command.process.kill()
    command.process.communicate()
    wait_gone(*services)


def wait_ended(pid: int) -> None:
    """Wait until a process that was killed is gone, or waits for its parent to take note."""

    def is_ended() -> bool:
        try:
            stat_line = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat_line.rpartition(")")[2].split()[0] in "ZX"

    wait_for(is_ended, tell=lambda: f"process {pid} is left")


def wait_gone(*pidfds: int) -> None:
    """Waits until the processes behind the descriptors have ended, and closes those."""
    for pidfd in pidfds:
        ended, _, _ = select.select([pidfd], [], [], WAIT_S)
        assert ended, f"a process is left: {_command_line(pidfd)}"
        os.close(pidfd)


def _command_line(pidfd: int) -> str:
    info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    pid = info.partition("Pid:")[2].split()[0]
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def artifacts(folder: Path) -> Path:
    """The one artifact folder below `folder`."""
    (found,) = (folder / "artifacts").iterdir()
    return found


def assert_only_the_user_reads(folder: Path) -> None:
    """Whether a folder and all that is in it are the user's only."""
    found = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    modes = {str(path): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in found}
    expected = {str(path): "700" if path.is_dir() else "600" for path in found}
    assert modes == expected
