"""Whether the lock on a stack's state is a live process's. Pure but for the two questions."""

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from aiperf_svc.adapters.pulumi_cli import Lock
from aiperf_svc.domain.errors import EnvironmentProblem


def is_pulumi(pid: int) -> bool:
    """Whether a process of this machine is alive and, where that can be seen, is the CLI: numbers
    are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return "pulumi" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return True


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
