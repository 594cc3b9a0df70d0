"""The runner's side of `services.forks`: starts the process that imports the services, sends it the
orders, and takes over its forks.

It is started before the command line is understood, so this module imports little.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiperf_svc.adapters.host.child_processes import adopt_orphans
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.process_environment import OWN_PROGRAM, PROCESS_ENVIRONMENT
from aiperf_svc.services.forks import LENGTH_BYTES, Order

COMMAND = (*OWN_PROGRAM, "service", "--forks")
ROOM = 120
"""Characters in the server's command line for those of its forks: the names of five services."""
SWITCH = "AIPERF_FORK"
"""Variable; 0: each service is executed by itself, for what changes one at its start."""
_READ_AT_START = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")
READ_AT_START_PREFIXES = ("ASAN_", "LC_", "LD_", "LSAN_", "MALLOC_", "PYTHON", "UBSAN_")
"""Variables that the loader, the allocator and the interpreter read before the first order. A fork
is given the others with its order; what is not for it is never in its memory."""


class ForkServer:
    """The process whose forks the services will be."""

    def __init__(self) -> None:
        """Raises EnvironmentProblem when it cannot be started."""
        self._sock, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            environ = {
                name: value
                for name, value in os.environ.items()
                if name in _READ_AT_START or name.startswith(READ_AT_START_PREFIXES)
            }
            try:
                self.child = subprocess.Popen(
                    [*COMMAND, str(fd).ljust(ROOM)],
                    env=environ | PROCESS_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(fd,),
                )
            except OSError as error:
                self._sock.close()
                raise EnvironmentProblem(f"cannot start the services: {error}") from error

    def order(self, orders: Sequence[Order]) -> None:
        """Ask for these processes. Raises EnvironmentProblem."""
        body = json.dumps(orders).encode()
        try:
            self._sock.sendall(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        except OSError as error:
            raise EnvironmentProblem(f"cannot start the services: {error}") from error

    def close(self) -> None:
        """End it; its forks that were not adopted end by themselves."""
        self._sock.close()
        self.child.kill()
        self.child.wait()
        self._has_no_orphans()

    def adopt(self) -> list[int]:
        """Process ids of what was ordered, all running and children of this process; none where a
        fork is not safe. To be called when the server has ended. Raises EnvironmentProblem."""
        code = self.child.wait()
        if code != 0:
            raise EnvironmentProblem(f"cannot start the services: their process ended with {code}")
        self._has_no_orphans()
        pids: list[int] = json.loads(self._sock.recv(1 << 20))
        self._sock.sendall(b"." * len(pids))
        return pids

    def _has_no_orphans(self) -> None:
        _with_orphans.discard(self)
        adopt_orphans(bool(_with_orphans))


_with_orphans: set[ForkServer] = set()
"""Servers whose forks are not adopted yet. Each of several targets has one."""


@contextmanager
def starting(*, is_needed: bool = True) -> Iterator[ForkServer | None]:
    """A server while the run is prepared; None if it is not needed, and where services have to be
    executed one by one.

    Raises EnvironmentProblem when it cannot be started.
    """
    if not is_needed or os.environ.get(SWITCH) == "0" or not adopt_orphans(True):
        yield None
        return
    try:
        server = ForkServer()
    except BaseException:
        adopt_orphans(bool(_with_orphans))
        raise
    _with_orphans.add(server)
    try:
        yield server
    finally:
        server.close()
