"""Single metrics pages: response formats, invalid pages, and keys."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from aiperf_svc.adapters.telemetry.pages import FetchedPage, PageClient
from benchmarks.stream_server import stream_server
from tests.support.endless_server import endless_server
from tests.support.scripted_server import SECOND_HOST

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 5\r\n\r\nup 1\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n3\r\n 1\n\r\n0\r\n\r\n"
MOVED = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /metrics/\r\nContent-Length: 0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize("kind", ["interim heads", "body", "chunk", "trailers"])
async def test_endless_page_is_limited_by_size(kind: str) -> None:
    with endless_server(kind) as endless:
        async with PageClient(no_tls) as client:
            page = await client.fetch(endless.url, timeout_s=60)
    assert re.search(r"(over|larger than) \d+ (MiB|KiB)", page.failure)


@asynccontextmanager
async def serving(*responses: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """Run a server that sends these responses in order. It closes the connection after a response
    with `Connection: close` and after the last one. Yield the URL of its page and its
    connections."""
    left = list(responses)
    connections: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = b""
        connections.append("made")
        while left and b"Connection: close" not in sent:
            await reader.readuntil(b"\r\n\r\n")
            sent = left.pop(0)
            writer.write(sent)

    async with stream_server(respond) as port:
        yield f"http://127.0.0.1:{port}/metrics", connections


def no_tls() -> ssl.SSLContext:
    raise AssertionError("pages without TLS need no certificates")


async def fetched(*responses: bytes, times: int = 1) -> tuple[list[FetchedPage], int]:
    """Return the pages that a client read, and the number of its connections."""
    async with serving(*responses) as (url, connections), PageClient(no_tls) as client:
        return [await client.fetch(url, timeout_s=30) for _ in range(times)], len(connections)


@pytest.mark.parametrize(
    "responses",
    [
        (WHOLE,),
        (CHUNKED,),
        (EARLY + WHOLE,),
        (b"HTTP/1.0 200 OK\r\n\r\nup 1\n",),
        (MOVED + b"Connection: close", WHOLE),
        (*[MOVED + b"Connection: close"] * 5, WHOLE),
    ],
    ids=["length", "chunks", "early hints", "until it closes", "moved", "moved five times"],
)
async def test_page_is_read_from_any_legal_response(responses: tuple[bytes, ...]) -> None:
    (page,), _ = await fetched(*responses)
    assert (page.failure, page.text) == ("", "up 1\n")


@pytest.mark.parametrize(
    ("responses", "failure"),
    [
        ((EARLY * 100_000,), "headers of over 64 KiB"),
        ((OK + b"X: y\r\n" * 100_000,), "headers of over 64 KiB"),
        ((OK + b"Content-Length: 50\r\n\r\nup 1\n",), "closed the connection before the page was"),
        ((OK + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",), "unrequested gzip"),
        ((b"SSH-2.0-OpenSSH_9\r\n\r\n",), "not an HTTP/1.1 status line"),
        (
            (MOVED.replace(b"/metrics/", b"file:///etc/passwd"),),
            "to file:///etc/passwd is not followed",
        ),
        (
            (MOVED.replace(b"/metrics/", b"http://10.0.0.1/latest"),),
            "name it in telemetry.server_m",
        ),
        ((b"HTTP/1.1 401 Unauthorized\r\n\r\n",), "401; telemetry.key_env names its key"),
        ((MOVED + b"Connection: close",) * 6, "over 5 redirects"),
    ],
)
async def test_invalid_page_is_named(responses: tuple[bytes, ...], failure: str) -> None:
    (page,), _ = await fetched(*responses)
    assert failure in page.failure


async def test_pages_reuse_one_connection_until_it_closes() -> None:
    closing = WHOLE.replace(b"OK", b"OK, and then I close. Connection: close")
    for responses, connections in (([CHUNKED, WHOLE, WHOLE], 1), ([WHOLE, closing, WHOLE], 2)):
        pages, made = await fetched(*responses, times=3)
        assert [page.text for page in pages] == ["up 1\n"] * 3
        assert made == connections


@pytest.mark.parametrize("host", ["127.0.0.1", SECOND_HOST])
@pytest.mark.parametrize("is_same_port", [True, False])
async def test_a_redirect_to_another_server_is_not_followed(host: str, is_same_port: bool) -> None:
    requests: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        own_host, port = writer.get_extra_info("sockname")
        is_moved = (own_host, port) == ("127.0.0.1", first) and len(requests) == 1
        target = b"http://%s:%d/metrics" % (host.encode(), first if is_same_port else second)
        writer.write(MOVED.replace(b"/metrics/", target) if is_moved else WHOLE)

    async with (
        stream_server(respond, "0.0.0.0") as first,
        stream_server(respond, "0.0.0.0") as second,
        PageClient(no_tls) as client,
    ):
        page = await client.fetch(f"http://127.0.0.1:{first}/metrics", timeout_s=30)
    if host == "127.0.0.1" and is_same_port:
        assert (page.text, len(requests)) == ("up 1\n", 2)
    else:
        assert "is not followed: it is another server" in page.failure
        assert len(requests) == 1


@pytest.mark.parametrize(
    ("key", "header"), [("abc.def", "Bearer abc.def"), ("me:open", "Basic bWU6b3Blbg==")]
)
async def test_page_is_requested_with_its_key(key: str, header: str) -> None:
    requests: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(WHOLE)

    async with stream_server(respond) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        async with PageClient(no_tls, key=key, key_urls=[url]) as client:
            assert (await client.fetch(url, timeout_s=30)).text == "up 1\n"
        async with PageClient(no_tls, key=key, key_urls=["http://127.0.0.1:1/metrics"]) as client:
            await client.fetch(url, timeout_s=30)
    assert [f"\r\nAuthorization: {header}\r\n" in head for head in requests] == [True, False]


@contextmanager
def silent(port: int) -> Iterator[str]:
    """Reserve an address that does not answer connection attempts because its backlog is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((SECOND_HOST, port))
        listening.listen(0)
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((SECOND_HOST, port))
        yield SECOND_HOST


async def test_silent_address_falls_back_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(WHOLE) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with silent(port) as first:

            def getaddrinfo(host: str, *_args: Any, **_more: Any) -> list[Any]:
                hosts = (first, "127.0.0.1") if host == "server" else (host,)
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in hosts]

            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            async with PageClient(no_tls) as client:
                page = await client.fetch(f"http://server:{port}/metrics", timeout_s=30)
    assert (page.failure, page.text) == ("", "up 1\n")


async def test_unreachable_name_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(host: str, *_args: Any, **_more: Any) -> list[Any]:
        hosts = ("127.0.0.1", SECOND_HOST) if host == "server" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 1)) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with PageClient(no_tls) as client:
        page = await client.fetch("http://server:1/metrics", timeout_s=30)
    assert "Connection refused" in page.failure


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Sun, 01 Jan 99999999999999999999 00:00:00 GMT",
        "now",
    ],
)
async def test_implausible_date_is_no_clock_offset(date: str) -> None:
    (page,), _ = await fetched(WHOLE.replace(b"OK", b"OK\r\nDate: " + date.encode()))
    assert (page.failure, page.text, page.clock_offset_s) == ("", "up 1\n", 0.0)


async def test_date_an_hour_behind_is_a_clock_offset() -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    (page,), _ = await fetched(WHOLE.replace(b"OK", b"OK\r\nDate: " + date.encode()))
    assert page.clock_offset_s == pytest.approx(3600, abs=60)
