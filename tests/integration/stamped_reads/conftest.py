"""Fixture of two connected sockets."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.read_pair import SO_TIMESTAMPNS, await_stamps


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection. The client socket, which is second, has receive stamps."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        with server:
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await_stamps(server, client)
            client.setblocking(False)
            yield server, client
