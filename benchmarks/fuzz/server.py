"""A server that answers each request with the response of its number, and records the answers."""

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from time import time_ns

from aiperf_svc.domain.request_ids import INDEX_BASE
from benchmarks.fuzz.reply import Ending, Reply, Truth
from benchmarks.stream_server import server_in_thread

_REQUEST_ID = re.compile(rb"\r\nx-request-id: *\S*-(\d+)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class FuzzServer:
    """Runs in its own thread. Its counters may be read at any time."""

    def __init__(self, reply_to: Callable[[int], Reply]) -> None:
        self._reply_to = reply_to
        self.arrivals: Counter[int] = Counter()
        """How many times each request arrived completely."""
        self.served: Counter[int] = Counter()
        """How many times each request got a complete good response."""
        self.in_last_part: set[int] = set()
        """Requests whose last part may have been written."""
        self.ended_wall_ns: dict[int, int] = {}
        """When the last byte of each response was written."""
        self.port = 0
        self._open = contextlib.ExitStack()

    def start(self) -> None:
        """Listen on a free port of the loopback interface."""
        self.port = self._open.enter_context(server_in_thread(self._connection, backlog=1024))

    def close(self) -> None:
        """Close every connection and end the thread. May be called repeatedly."""
        self._open.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # `drain` then waits until the kernel has all bytes, so that `ended_wall_ns` is exact.
        writer.transport.set_write_buffer_limits(high=0)
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Respond to one request and return whether the connection continues."""
        head = await reader.readuntil(b"\r\n\r\n")
        length, number = _LENGTH.search(head), _REQUEST_ID.search(head)
        if head.startswith(b"GET "):
            # The search for metrics pages.
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        assert length is not None
        assert number is not None
        await reader.readexactly(int(length[1]))
        index = int(number[1]) - INDEX_BASE
        self.arrivals[index] += 1
        reply = self._reply_to(index)
        for number_of_part, (pause_s, part) in enumerate(reply.parts, start=1):
            if pause_s:
                await asyncio.sleep(pause_s)
            if number_of_part == len(reply.parts):
                self.in_last_part.add(index)
            writer.write(part)
            await writer.drain()
        self.served[index] += reply.truth is Truth.GOOD
        self.ended_wall_ns[index] = time_ns()
        match reply.ending:
            case Ending.HANG:
                await reader.read()
            case Ending.RESET:
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case Ending.CLOSE:
                writer.close()
                await writer.wait_closed()
        return reply.ending is Ending.KEEP


@contextlib.contextmanager
def serving(reply_to: Callable[[int], Reply]) -> Iterator[FuzzServer]:
    """Run a server during a run."""
    server = FuzzServer(reply_to)
    server.start()
    try:
        yield server
    finally:
        server.close()
