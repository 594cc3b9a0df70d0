"""Starts the services of a local run as forks of one process that has imported all of them.

Importing is nearly all that a service does before it registers. Here it is done once, while the
runner still reads the config:

    runner                        this process             its forks
    starts this process           imports
    sends one Order for each      forks, replies, ends     wait
    reaps it, adopts its forks                             wait
    sends a byte for each                                  begin

The runner is made the parent of the forks by the kernel (`adopt_orphans`), so nothing of this is
left when the run begins: a service is a child of the runner with its own session, environment and
command line, as if it had been executed.

A fork copies the forking thread only, so a lock that another one holds stays locked in the copy.
No import may have started a thread.
"""

import gc
import json
import os
import socket
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.adapters.host.child_processes import set_command_line
from aiperf_svc.domain.exit_codes import ExitCode

LENGTH_BYTES = 8
"""Length of the prefix that gives the size of the orders in bytes, little-endian."""
_REPLIED = 0


class Order(NamedTuple):
    """A process that the runner requests."""

    services: list[str]
    environ: dict[str, str]
    output: str
    """File for its standard output and error."""
    command: list[str]
    """Words of its command line."""


def become_ordered(fd: int) -> list[str]:
    """Import all services, then fork as ordered over the socket `fd`.

    Returns in each fork, when the runner has adopted it: the names of the services to run. This
    process itself ends here.
    """
    _import_services()
    sock = socket.socket(fileno=fd)
    orders = _receive(sock)
    pids: list[int] = []
    # Without it the first collection in each fork would copy every page.
    gc.freeze()
    for order in orders if _is_single_threaded() else ():
        pid = os.fork()
        if pid == 0:
            return _become_service(order, sock)
        pids.append(pid)
    sock.sendall(json.dumps(pids).encode())
    # The runner waits for this end, so there is no cleanup.
    os._exit(_REPLIED)


def _import_services() -> None:
    # Not at the top: the runner imports this module.
    from aiperf_svc.adapters.host.machine import raise_fd_limit
    from aiperf_svc.protocol.services import Service
    from aiperf_svc.services.host import service_class
    from aiperf_svc.workloads import inference  # noqa: F401

    for service in Service:
        service_class(service)
    # The runner plans with the limit that its own call of this returned.
    raise_fd_limit()


def _receive(sock: socket.socket) -> list[Order]:
    """Return the orders. Ends this process if the runner has ended or sends none."""
    with sock.makefile("rb") as stream:
        head = stream.read(LENGTH_BYTES)
        if not head:
            os._exit(_REPLIED)
        body = stream.read(int.from_bytes(head, "little"))
    return [Order(*fields) for fields in json.loads(body)]


def _is_single_threaded() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _become_service(order: Order, sock: socket.socket) -> list[str]:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    os.environ.clear()
    os.environ.update(order.environ)
    set_command_line(order.command)
    with sock:
        if not _is_adopted(sock):
            os._exit(ExitCode.INTERRUPTED)
    return order.services


def _is_adopted(sock: socket.socket) -> bool:
    """Wait for the runner. Returns False if it ended instead of continuing with the run."""
    try:
        return bool(sock.recv(1))
    except ConnectionResetError:
        return False  # It ended without reading the reply.
