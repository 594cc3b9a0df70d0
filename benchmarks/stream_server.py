"""A TCP server for tests and benchmarks that closes every connection when it stops.

`asyncio.start_server` does not close connections by itself. A connection that was accepted in the
loop iteration in which the server closes gets no transport (Python 3.11: an assertion in
`Server._attach`, which asyncio swallows). A handler that is cancelled before its first step closes
nothing. Such a connection stays open until the garbage collector finds it, in another test.
"""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_ACCEPT_TURNS = 2
"""Loop iterations from an accepted connection to its handler."""


@asynccontextmanager
async def stream_server(
    serve: Serve,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: ssl.SSLContext | None = None,
    backlog: int = 100,
) -> AsyncIterator[int]:
    """Serve each connection with `serve`, then close it. Yield the port. The client may disconnect
    at any time. The end of the block resets open connections, like the end of a process, and raises
    the handlers' errors."""
    loop = asyncio.get_running_loop()
    writers: list[asyncio.StreamWriter] = []
    handlers: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        handlers.append(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(accept, host, port, ssl=tls, backlog=backlog)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for listener in server.sockets:
            loop.remove_reader(listener)
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()
        for writer in writers:
            # Python 3.11 fails to abort a connection that has closed after its last data. Closed
            # TLS connections have no socket.
            connection = writer.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                writer.transport.abort()
        for task in handlers:
            task.cancel()
        results = await asyncio.gather(*handlers, return_exceptions=True)
        closing = (writer.wait_closed() for writer in writers)
        await asyncio.gather(*closing, return_exceptions=True)
        await server.wait_closed()
        for result in results:
            if isinstance(result, Exception):
                raise result


@contextmanager
def server_in_thread(serve: Serve, *, backlog: int = 100) -> Iterator[int]:
    """Do the same in a thread with its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)

    def wait_for(step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, loop).result()

    server = stream_server(serve, backlog=backlog)
    thread.start()
    try:
        port = wait_for(server.__aenter__())
        try:
            yield port
        finally:
            wait_for(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
