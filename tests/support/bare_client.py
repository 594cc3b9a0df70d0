"""A minimal HTTP client that works byte by byte, and a pair of connected sockets."""

import contextlib
import json
import select
import socket
from collections.abc import Iterator

from aiperf_svc.mock_server.running import RunningMockServer

CHAT = "/v1/chat/completions"
HANG_GUARD_S = 60.0
"""Longest silence of a socket before a test gives up. No assertion depends on it."""


def request_bytes(
    path: str = CHAT, *, headers: dict[str, str] | None = None, **body: object
) -> bytes:
    """Return one POST request as bytes; its body is a streaming chat request by default."""
    if path == CHAT:
        body = {"model": "m", "messages": [], "stream": True} | body
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: mock", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Client:
    """A connection that sends bytes and reads complete responses."""

    def __init__(self, server: RunningMockServer, *, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, server.port), timeout=HANG_GUARD_S)
        self._buffer = b""

    def send(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(self._buffer)
        self._buffer += data

    def until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def response(self) -> tuple[int, bytes]:
        """Return the status and body of the next response, however it is framed."""
        head = self.until(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"Transfer-Encoding: chunked" not in head:
            length = head.partition(b"Content-Length: ")[2].partition(b"\r")[0]
            return status, self.exactly(int(length))
        body = b""
        while size := int(self.until(b"\r\n").partition(b";")[0], 16):
            body += self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        while self.until(b"\r\n").strip():
            pass  # trailers
        return status, body

    def rest(self) -> bytes:
        """Return everything up to the end of the connection."""
        with contextlib.suppress(EOFError):
            while True:
                self._more()
        return self._buffer

    def is_silent(self) -> bool:
        """Return whether there is nothing to read."""
        return not self._buffer and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def connected(server: RunningMockServer, **options: str) -> Iterator[Client]:
    client = Client(server, **options)
    try:
        yield client
    finally:
        client.close()


def events_of(body: bytes) -> list[bytes]:
    return [part.removeprefix(b"data: ") for part in body.split(b"\n\n")[:-1]]


@contextlib.contextmanager
def loopback_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection: the non-blocking server socket and the client socket."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=HANG_GUARD_S) as client,
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
