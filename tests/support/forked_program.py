"""`aiperf-svc` for scripts: a program that has a fork of the template do what it is asked for.

It imports nothing of the project: that is what an executed command takes long for.
"""

import json
import os
import socket
import sys
from pathlib import Path


def write_program(path: Path, orders: socket.socket) -> None:
    """Write the program for those who inherit the socket that takes the template's orders."""
    words = f"'{sys.executable}' -I -S '{__file__}' {orders.fileno()}"
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)


def main() -> int:
    """Order the command, and wait for its exit code."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    said, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    order = [sys.argv[2:], str(Path.cwd()), dict(os.environ), []]
    body = json.dumps(["tests.support.forked_commands", order]).encode()
    with theirs:
        socket.send_fds(orders, [body], [theirs.fileno(), 0, 1, 2])
    said.recv(16)
    return int(said.recv(16))


if __name__ == "__main__":
    sys.exit(main())
