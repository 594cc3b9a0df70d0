"""The runner's side of `services.forks`: starts the process that imports the services, sends it
orders, and adopts its forks.

The process starts before the command line is parsed, so this module imports little.
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
COMMAND_LINE_ROOM = 120
"""Characters reserved in the server's command line for its forks to write the names of up to five
services."""
FORK_VARIABLE = "AIPERF_FORK"
"""Environment variable. If it is 0, each service is executed, not forked, as tools that change a
process at its start require."""
_READ_AT_START = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")
READ_AT_START_PREFIXES = ("ASAN_", "LC_", "LD_", "LSAN_", "MALLOC_", "PYTHON", "UBSAN_")
"""Variables that the loader, the allocator and the interpreter read before the first order. A fork
gets the others with its order, so variables of other services are never in its memory."""


class ForkServer:
    """The process that forks the services."""

    def __init__(self) -> None:
        """Start the process. Raises EnvironmentProblem."""
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
                    [*COMMAND, str(fd).ljust(COMMAND_LINE_ROOM)],
                    env=environ | PROCESS_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(fd,),
                )
            except OSError as error:
                self._sock.close()
                raise EnvironmentProblem(f"cannot start the services: {error}") from error

    def order(self, orders: Sequence[Order]) -> None:
        """Send the orders for these processes. Raises EnvironmentProblem."""
        body = json.dumps(orders).encode()
        try:
            self._sock.sendall(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        except OSError as error:
            raise EnvironmentProblem(f"cannot start the services: {error}") from error

    def close(self) -> None:
        """End the server. Forks that were not adopted end by themselves."""
        self._sock.close()
        self.child.kill()
        self.child.wait()
        self._stop_adopting()

    def adopt(self) -> list[int]:
        """Return the ids of the ordered processes, which are running children of this process; none
        where a fork is not safe. Waits for the end of the server. Raises EnvironmentProblem."""
        code = self.child.wait()
        if code != 0:
            raise EnvironmentProblem(f"cannot start the services: their process ended with {code}")
        self._stop_adopting()
        pids: list[int] = json.loads(self._sock.recv(1 << 20))
        self._sock.sendall(b"." * len(pids))
        return pids

    def _stop_adopting(self) -> None:
        _not_adopted.discard(self)
        adopt_orphans(bool(_not_adopted))


_not_adopted: set[ForkServer] = set()
"""Servers whose forks are not adopted yet. Several targets have one each."""


@contextmanager
def starting(*, is_needed: bool = True) -> Iterator[ForkServer | None]:
    """Run a server while the run is prepared. Yields None if none is needed, or if services have to
    be executed one by one. Raises EnvironmentProblem if the server cannot be started."""
    if not is_needed or os.environ.get(FORK_VARIABLE) == "0" or not adopt_orphans(True):
        yield None
        return
    try:
        server = ForkServer()
    except BaseException:
        adopt_orphans(bool(_not_adopted))
        raise
    _not_adopted.add(server)
    try:
        yield server
    finally:
        server.close()
