"""Two ends of one connection, for what a serving process does with a socket."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def loopback_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the server's, which never waits, and the client's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=20) as client,
    ):
        server, _ = listener.accept()
        with server:
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield server, client


def received(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data
