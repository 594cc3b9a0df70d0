"""Parents and command lines of processes. A service ends with the process that started it and
leaves nothing behind."""

import atexit
import ctypes
import hashlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from aiperf_svc.adapters.host.process_stats import all_stats, read_stat
from aiperf_svc.domain.errors import EnvironmentProblem

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ARG_START, _ARG_END = 45, 46
"""Index in /proc/PID/stat, counted from the state, of the command line's address in memory."""


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends. On exit, an orphaned process then removes
    the run's private folder (AIPERF_STATE_DIR), which a killed parent could not.

    Raises EnvironmentProblem if the parent has already ended. If it ended before the request to the
    kernel, only AIPERF_PARENT_PID reveals this.
    """
    end_with_parent()
    atexit.register(_remove_orphaned_folder)
    if _is_orphan():
        expected = os.environ["AIPERF_PARENT_PID"]
        raise EnvironmentProblem(f"process {expected}, which started this one, is gone")


def adopt_orphans(is_wanted: bool) -> bool:
    """Make this process the parent of orphaned descendants, or stop doing so. Return whether the
    kernel supports this."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) == 0)


def reap_children() -> None:
    """Reap the ended children of this process. No other process reaps the adopted ones."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_children(*, keep: int = -1) -> None:
    """Kill the children of this process and the orphans that it adopts as a result, until it has
    none left except `keep`."""
    while killed := [pid for pid in _children() if pid != keep and _is_killed(pid)]:
        for pid in killed:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    own = os.getpid()
    return [each.pid for each in all_stats() if each.parent == own]


def _is_killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:  # it has ended, or belongs to another user
        return False
    return True


def set_command_line(words: Sequence[str]) -> None:
    """Make `ps` show these words, as far as they fit into the current command line."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[_ARG_START]), int(stat[_ARG_END])
    room = end - start - 1
    text = "\0".join(words).encode(errors="surrogateescape")[:room]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)


def _is_orphan() -> bool:
    expected = os.environ.get("AIPERF_PARENT_PID")
    return bool(expected) and os.getppid() != int(expected or 0)


def _remove_orphaned_folder() -> None:
    folder = os.environ.get("AIPERF_STATE_DIR")
    if folder and _is_orphan():
        shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine is alive. Zombies are not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    found = read_stat(pid)
    return found is None or found.is_alive


def process_space() -> str:
    """Return an id of this boot and pid namespace, within which process ids are comparable."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        parts = (started, str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        # Not Linux, so there are no pid namespaces.
        parts = (socket.gethostname(), "")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]
