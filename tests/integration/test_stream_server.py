"""The TCP server of tests and benchmarks closes every connection, whenever it ends."""

import asyncio
import contextlib
import socket

import pytest

from benchmarks.stream_server import stream_server


@pytest.mark.parametrize("turns", range(5))
async def test_connection_of_the_last_moment_is_closed(turns: int) -> None:
    async def never_ends(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with stream_server(never_ends) as port:
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        for _ in range(turns):
            await asyncio.sleep(0)

    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


async def test_connection_closed_after_its_data_is_ignored() -> None:
    data = bytes(64 << 20)

    async def sends_more_than_the_kernel_takes(
        _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(data)

    async with stream_server(sends_more_than_the_kernel_takes) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        received = await reader.read()
        writer.close()
    assert len(received) == len(data)
