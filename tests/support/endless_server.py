"""A server that sends endless responses as fast as the client reads them, and lower size limits
that such responses exceed quickly."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from aiperf_svc.adapters.inference.stamped_reads import CONSTANTS, compiled  # type: ignore[attr-defined]
from tests.support.raw_batches import chunk

MIB = 2**20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'


RESPONSES = {
    # the beginning, and the part that repeats for ever
    "events": (HEAD, chunk(EVENT) * 2_000),
    "comments": (HEAD, chunk(b": nothing" * 1_000 + b"\n") * 8),
    "line": (HEAD + chunk(b"data: "), chunk(b"x" * 65_000)),
    "lines": (HEAD, chunk(b"data: x\n") * 5_000),
    "chunk": (HEAD + b"7fffffff\r\ndata: ", b"x" * 65_536),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 1_000),
    "interim heads": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000),
    "trailers": (HEAD + chunk(EVENT) + b"0\r\n", b"X-More: and %b\r\n" % (b"more " * 180) * 64),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b" " * 65_536),
}


class EndlessServer:
    """Address of the server, and the number of bytes it has sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent_bytes = 0


@contextmanager
def endless_server(kind: str) -> Iterator[EndlessServer]:
    """Serve the endless response `kind`, a key of RESPONSES."""
    beginning, rest = RESPONSES[kind]
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    open_sockets: set[socket.socket] = set()
    threads: list[threading.Thread] = []

    def serve(conn: socket.socket) -> None:
        with suppress(OSError), conn:
            conn.recv(MIB)
            conn.sendall(beginning)
            while True:
                conn.sendall(rest)
                server.sent_bytes += len(rest)

    def accept() -> None:
        with suppress(OSError):
            while True:
                conn, _ = listener.accept()
                open_sockets.add(conn)
                threads.append(threading.Thread(target=serve, args=(conn,)))
                threads[-1].start()

    server = EndlessServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for conn in open_sockets:
            with suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


RESPONSE_BYTES, EVENT_BYTES = 24 * MIB, 8 * MIB


@contextmanager
def lowered_bounds() -> Iterator[None]:
    """Lower the limits for a response and for one event, including in the compiled reader."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiperf_svc.core.responses.sse.MAX_EVENT_BYTES", EVENT_BYTES)
        name = "aiperf_svc.adapters.inference.response_reader.MAX_RESPONSE_BYTES"
        patch.setattr(name, RESPONSE_BYTES)
        if compiled is not None:
            compiled.set_constants({**CONSTANTS, "MAX_RESPONSE_BYTES": RESPONSE_BYTES})
        try:
            yield
        finally:
            if compiled is not None:
                compiled.set_constants(CONSTANTS)
