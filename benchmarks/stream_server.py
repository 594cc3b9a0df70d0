"""A TCP server for tests and benchmarks that leaves nothing open when it stops.

`asyncio.start_server` closes no connection by itself, and a handler whose task is cancelled before
its first step never closes its own: a connection accepted in a test's last moments stays open.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_ACCEPT_TURNS = 3
"""Turns of the loop from an accepted connection to the first step of its handler."""


@asynccontextmanager
async def stream_server(
    serve: Serve,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: ssl.SSLContext | None = None,
    backlog: int = 100,
) -> AsyncIterator[int]:
    """Serve each connection by `serve` and then close it; yield the port. The client may leave at
    any time. The end breaks open connections, as the end of a process does, and raises what a
    handler raised."""
    loop = asyncio.get_running_loop()
    transports: set[asyncio.Transport] = set()
    handlers: list[asyncio.Task[None]] = []
    are_closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    class Connection(asyncio.StreamReaderProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self._own = transport
            transports.add(transport)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            transports.discard(self._own)
            if not transports:
                are_closed.set()
            super().connection_lost(exc)

    def connection() -> Connection:
        return Connection(asyncio.StreamReader(loop=loop), handle, loop=loop)

    server = await loop.create_server(connection, host, port, ssl=tls, backlog=backlog)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        # Python 3.11 loses a connection that it has accepted when the server closes before the
        # connection has its transport.
        for listener in server.sockets:
            loop.remove_reader(listener)
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()
        are_closed.clear()
        for transport in transports:
            transport.abort()
        for task in handlers:
            task.cancel()
        results = await asyncio.gather(*handlers, return_exceptions=True)
        if transports:
            await are_closed.wait()
        await server.wait_closed()
        for result in results:
            if isinstance(result, Exception):
                raise result
