"""Whether the lock on a stack's state is a live process's. Pure but for the questions about it."""

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aiperf_svc.adapters.pulumi.cli import Lock
from aiperf_svc.domain.errors import EnvironmentProblem


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is alive. One that has ended and that nobody asks about
    is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def is_pulumi(pid: int) -> bool:
    """Whether a process of this machine is alive and, where that can be seen, is the CLI: numbers
    are used again."""
    if not is_alive(pid):
        return False
    try:
        return "pulumi" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return is_alive(pid)


def check_locks(
    locks: Iterable[Lock],
    *,
    stack: str,
    force: bool,
    host: str | None = None,
    is_alive: Callable[[int], bool] = is_pulumi,
) -> None:
    """Raises EnvironmentProblem unless every lock is a dead process's.

    That of another machine is believed dead with `force` only; that of a live process of this
    machine never.
    """
    here = host or socket.gethostname()
    for lock in locks:
        if lock.host == here and is_alive(lock.pid):
            raise EnvironmentProblem(
                f"stack {stack}: Pulumi is working on it ({lock}); wait for it, or interrupt it"
            )
        if lock.host != here and not force:
            raise EnvironmentProblem(
                f"stack {stack}: its state is locked from another machine ({lock}); if that "
                "process is gone, --force"
            )


def take_over(
    locks: Sequence[Lock],
    *,
    stack: str,
    say: Callable[[str], None],
    host: str | None = None,
    is_alive: Callable[[int], bool] = is_pulumi,
) -> bool:
    """Whether all of these locks are processes' of this machine that have ended, which is said:
    nobody works on the state, and they can be removed."""
    here = host or socket.gethostname()
    if not locks or any(lock.host != here or is_alive(lock.pid) for lock in locks):
        return False
    for lock in locks:
        say(f"stack {stack}: removing the lock of a process that has ended ({lock})")
    return True
