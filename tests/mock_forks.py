"""Mock servers as forks of one process that has imported what they import.

Importing is nearly all that the start of a mock server costs, and hundreds of tests start one. Each
server is a process group of its own with its owner's standard error and folder, as if it had just
been executed. Tests of the command itself execute it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

ORDER_BYTES = 65_536


class MockFork:
    """A mock server that is a fork: the part of `subprocess.Popen` that its owner uses."""

    def __init__(self, arguments: Sequence[str], owner_fd: int) -> None:
        self._ends, ends = socket.socketpair()
        read_fd, write_fd = os.pipe()
        self.stdout: IO[bytes] = os.fdopen(read_fd, "rb")
        order = json.dumps((list(arguments), str(Path.cwd()))).encode()
        with ends, os.fdopen(write_fd, "wb"):
            with _one_at_a_time:
                template = _template()
            socket.send_fds(template, [order], [ends.fileno(), owner_fd, write_fd, 2])
        self.pid = int(self._ends.recv(16))
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, minus the signal that ended it. Raises TimeoutExpired."""
        if self._status is None:
            self._ends.settimeout(timeout)
            try:
                self._status = int(self._ends.recv(16))
            except TimeoutError:
                raise subprocess.TimeoutExpired("mock server", timeout or 0) from None
            self._ends.close()
        return self._status

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


_one_at_a_time = threading.Lock()
"""Tests start servers from several threads."""


@cache
def _template() -> socket.socket:
    """The process whose forks the servers are. It ends when this one has, and is the child of none:
    a test leaves no child behind that it has not started."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        command = (sys.executable, __file__, str(theirs.fileno()))
        subprocess.run(command, pass_fds=(theirs.fileno(),), check=True)
    return ours


def _serve_orders(orders: socket.socket) -> None:
    while True:
        order, fds, _, _ = socket.recv_fds(orders, ORDER_BYTES, 4)
        if not order:
            return
        if os.fork() == 0:
            orders.close()
            _begin(*json.loads(order), *fds)
        for fd in fds:
            os.close(fd)


def _begin(arguments: list[str], folder: str, *fds: int) -> NoReturn:
    """Start a server, and say which process it is and how it ends."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ends = socket.socket(fileno=fds[0])
        if (pid := os.fork()) == 0:
            ends.close()
            status = _run(arguments, folder, *fds[1:])
        else:
            for fd in fds[1:]:
                os.close(fd)
            ends.send(str(pid).encode())
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ends.send(str(code).encode())
    finally:
        os._exit(status)


def _run(arguments: list[str], folder: str, owner_fd: int, out: int, errors: int) -> int:
    os.setpgid(0, 0)
    os.chdir(folder)
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.close(out)
    os.close(errors)
    sys.argv = ["mock_server", *arguments, f"--owner-fd={owner_fd}"]
    return mock_server.main()


if __name__ == "__main__":
    import hpack  # noqa: F401

    from aiperf_svc.mock_server import __main__ as mock_server

    if os.fork() == 0:
        os.setsid()
        # Nobody waits for those who wait for the servers.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _serve_orders(socket.socket(fileno=int(sys.argv[1])))
