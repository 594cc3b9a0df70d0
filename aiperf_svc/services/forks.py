"""Starts the services of a local run as forks of one process that has imported all of them.

Imports are nearly all the work of a service before it registers. This process imports once for all
services, while the runner still reads the config:

  runner                        this process             its forks
  starts this process           imports
  sends one Order for each      forks, replies, ends     wait
  reaps it, adopts its forks                             wait
  sends a byte for each                                  start

The kernel makes the runner the parent of the forks (`adopt_orphans`), so this process is gone when
the run starts: a service is a child of the runner with its own session, environment and command
line, as if it had been executed.

A fork copies only the forking thread, so a lock that another thread holds would stay locked in the
copy. Therefore no import may have started a thread.
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
"""Length of the size prefix of the orders, little-endian."""
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

    In each fork that the runner has adopted, returns the names of the services to run. The original
    process ends here.
    """
    _import_services()
    sock = socket.socket(fileno=fd)
    orders = _receive(sock)
    pids: list[int] = []
    # Without a freeze, the first collection in each fork would copy every page.
    gc.freeze()
    for order in orders if _is_single_threaded() else ():
        pid = os.fork()
        if pid == 0:
            return _become_service(order, sock)
        pids.append(pid)
    sock.sendall(json.dumps(pids).encode())
    # The runner waits for this process to end, so skip the cleanup.
    os._exit(_REPLIED)


def _import_services() -> None:
    # Not at the top, because the runner imports this module.
    from aiperf_svc.adapters.host.machine import raise_fd_limit
    from aiperf_svc.protocol.services import Service
    from aiperf_svc.services.host import service_class
    from aiperf_svc.workloads import inference  # noqa: F401

    for service in Service:
        service_class(service)
    # The runner plans with the limit that its own call returned.
    raise_fd_limit()


def _receive(sock: socket.socket) -> list[Order]:
    """Return the orders. Ends this process if the runner has ended or sends no orders."""
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
    """Wait for the runner. Returns False if the runner has ended."""
    try:
        return bool(sock.recv(1))
    except ConnectionResetError:
        return False  # it ended without reading the reply
