"""A server of a whole run that responds to each request as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from client_bench import read_request

BODY = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)
"""A stream of one token."""

Respond = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


class ScriptedServer:
    """Hands every request's number, from 0, to `respond`; keeps connections open."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._numbers = count()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections and break the open ones, as a killed process does."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                await read_request(reader)
                await self._respond(next(self._numbers), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # either side may leave in the middle
        finally:
            self._writers.discard(writer)
            writer.close()
