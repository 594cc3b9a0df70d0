"""Parents of processes, and their command lines. A service's process ends with the one that started
it, and leaves nothing in its place."""

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
"""In /proc/PID/stat, counted from the state: where the command line is in memory."""


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone. A process that ends then removes the
    run's private folder (AIPERF_STATE_DIR), which a killed parent could not.

    Raises EnvironmentProblem when it is gone already: AIPERF_PARENT_PID, when set, names it. A
    parent that dies before the request to the kernel is known by that only.
    """
    end_with_parent()
    atexit.register(_remove_orphaned_folder)
    if _is_orphan():
        expected = os.environ["AIPERF_PARENT_PID"]
        raise EnvironmentProblem(f"process {expected}, which started this one, is gone")


def adopt_orphans(is_wanted: bool) -> bool:
    """Make this process the parent of descendants that lose theirs, or stop doing so; whether the
    kernel can."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) == 0)


def reap_children() -> None:
    """Reap the children of this process that have ended. Those that it has adopted have nobody else
    who does."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_children(*, but: int = -1) -> None:
    """Kill the children of this process, then those that it adopts by that, until it has none or
    only the one that is named."""
    while killed := [pid for pid in _children() if pid != but and _is_killed(pid)]:
        for pid in killed:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    own = os.getpid()
    return [each.pid for each in all_stats() if each.parent == own]


def _is_killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:  # Gone, or of another user.
        return False
    return True


def set_command_line(words: Sequence[str]) -> None:
    """Have `ps` show these words, as far as the present command line has room for them."""
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
    """Return whether a process of this machine is alive. A zombie process is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    found = read_stat(pid)
    return found is None or found.is_alive


def process_space() -> str:
    """Return a short text that is the same for all processes whose numbers `is_alive` can tell
    apart: those of one start of one machine, in one pid namespace."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        parts = (started, str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        # Not Linux, so there are no pid namespaces.
        parts = (socket.gethostname(), "")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]
