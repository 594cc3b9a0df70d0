"""An HTTP/2 server, based on the h2 library, that runs a test's script for each request."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, PingAckReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes, Settings

from benchmarks.stream_server import Serve

Field = tuple[bytes, bytes]
SSE = (b"content-type", b"text/event-stream")


@dataclass
class Peer:
    """A connection with its current request."""

    h2: H2Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stream: int = 0
    headers: list[Field] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False

    def header(self, name: bytes) -> bytes:
        return dict(self.headers)[name]

    async def head(self, *fields: Field, status: bytes = b"200", end: bool = False) -> None:
        self.h2.send_headers(self.stream, [(b":status", status), *fields], end_stream=end)
        await self.flush()

    async def data(self, data: bytes, *, end: bool = False, pad: int | None = None) -> None:
        """Send the data in one or more DATA frames."""
        size = self.h2.max_outbound_frame_size
        for at in range(0, len(data) or 1, size):
            part, is_last = data[at : at + size], at + size >= len(data)
            while self.h2.local_flow_control_window(self.stream) < len(part):
                await self.next_events()
            self.h2.send_data(self.stream, part, end_stream=end and is_last, pad_length=pad)
            await self.flush()

    async def ping(self) -> None:
        """Return when the client has read everything sent so far."""
        self.h2.ping(b"12345678")
        await self.flush()
        while not any(isinstance(e, PingAckReceived) for e in await self.next_events()):
            pass

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def next_events(self) -> list[Event]:
        data = await self.reader.read(65_536)
        if not data:
            raise ConnectionError("closed by the client")
        events = self.h2.receive_data(data)
        for event in events:
            if isinstance(event, RequestReceived):
                self.stream, self.headers, self.body = event.stream_id, list(event.headers), b""
            elif isinstance(event, DataReceived):
                self.body += event.data
                length = event.flow_controlled_length
                self.h2.acknowledge_received_data(length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.is_whole = True
        await self.flush()
        return events


def http2(
    respond: Callable[[Peer], Awaitable[None]], settings: dict[SettingCodes, int] | None = None
) -> Serve:
    """Return an HTTP/2 server script for `bench`."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        if settings:
            h2.local_settings = Settings(client=False, initial_values=settings)
        h2.initiate_connection()
        peer = Peer(h2, reader, writer)
        await peer.flush()
        while True:
            peer.is_whole = False
            while not peer.is_whole:
                await peer.next_events()
            await respond(peer)

    return script
