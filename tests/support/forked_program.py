"""An `aiperf-svc` program for scripts that delegates each command to a fork of the template.

It does not import the project, because imports take most of the time of an executed command.
"""

import json
import os
import socket
import sys
from pathlib import Path


def write_program(path: Path, orders: socket.socket) -> None:
    """Write a program for processes that inherit the socket of the template."""
    words = f"'{sys.executable}' -I -S '{__file__}' {orders.fileno()}"
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)


def main() -> int:
    """Send the command to the template and wait for its exit code."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    order = [sys.argv[2:], str(Path.cwd()), dict(os.environ), []]
    body = json.dumps(["tests.support.forked_commands", order]).encode()
    with theirs:
        socket.send_fds(orders, [body], [theirs.fileno(), 0, 1, 2])
    reports.recv(16)
    return int(reports.recv(16))


if __name__ == "__main__":
    sys.exit(main())
