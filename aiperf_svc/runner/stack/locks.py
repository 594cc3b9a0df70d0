"""Decides whether a lock on a stack's state belongs to a live process. Pure except for the queries
about processes."""

import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aiperf_svc.adapters.cluster.ownership import StackInUse
from aiperf_svc.adapters.host.child_processes import is_alive
from aiperf_svc.adapters.pulumi.cli import Lock
from aiperf_svc.domain.errors import EnvironmentProblem


def is_pulumi(pid: int) -> bool:
    """Return whether a process of this machine is alive and, as far as can be seen, is the CLI:
    process numbers are reused."""
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
    """Raise EnvironmentProblem unless every lock belongs to a dead process; StackInUse if one
    belongs to a live one.

    A lock of another machine counts as dead with `force` only; one of a live process of this
    machine never does.
    """
    here = host or socket.gethostname()
    for lock in locks:
        if lock.host == here and is_alive(lock.pid):
            raise StackInUse(
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
    """Return whether all of these locks belong to ended processes of this machine, and print so.
    The locks can then be removed."""
    here = host or socket.gethostname()
    if not locks or any(lock.host != here or is_alive(lock.pid) for lock in locks):
        return False
    for lock in locks:
        say(f"stack {stack}: removing the lock of a process that has ended ({lock})")
    return True
