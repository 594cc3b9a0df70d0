"""The metrics page that the command serves while it follows a run."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from aiperf_svc.adapters.telemetry import metrics_page
from aiperf_svc.adapters.telemetry.metrics_page import MetricsPage
from tests.support.fake_results_api import make_status


@asynccontextmanager
async def page(notes: list[str]) -> AsyncIterator[tuple[MetricsPage, str]]:
    async with MetricsPage("127.0.0.1", 0, note=notes.append) as served:
        yield served, f"http://127.0.0.1:{served.port}"


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_the_newest_status_is_on_the_page() -> None:
    async with page([]) as (served, url):
        assert (await get(f"{url}/metrics"))[0] == 503
        for completed in (1, 2):
            served.show(make_status(completed=completed))
        status, text = await get(f"{url}/metrics?name=x")
        assert status == 200
        assert 'aiperf_requests_completed_total{phase="profiling"} 2\n' in text
        assert (await get(f"{url}/other"))[0] == 404


async def test_silent_or_invalid_clients_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "CONNECTION_S", 0.1)
    async with page([]) as (served, _):
        served.show(make_status())
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await reader.read() == b""  # The server closed the connection.
        writer.close()
        await writer.wait_closed()
    monkeypatch.undo()
    async with page([]) as (served, url):
        served.show(make_status())
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"x" * 2**17)
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.wait_for(_until_refused(reader, writer), 60)
        assert (await get(f"{url}/metrics"))[0] == 200


async def _until_refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(b"x" * 2**16)
            await writer.drain()
            await asyncio.sleep(0)
    finally:
        writer.close()


async def test_port_in_use_does_not_fail_the_run() -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with MetricsPage("127.0.0.1", port, note=notes.append) as served:
            served.show(make_status())
    assert served.port == 0
    (note,) = notes
    assert note == (
        f"no page of metrics: cannot listen on 127.0.0.1:{port}: Address already in use"
    )


async def test_invalid_host_name_does_not_fail_the_run() -> None:
    notes: list[str] = []
    async with MetricsPage("a..b", 9464, note=notes.append):
        pass
    assert notes == [
        "no page of metrics: cannot listen on a..b:9464: the name of the host is invalid"
    ]
