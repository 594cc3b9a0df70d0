"""Reads metrics pages over HTTP, with limits of size and time.

It does not use an HTTP library: every run reads pages, and importing a library would take a tenth
of a short run's CPU time (docs/decisions/0051-where-http-and-metrics-are-read-by-own-code.md).
"""

import asyncio
import base64
import functools
import re
import ssl
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from time import monotonic_ns, time_ns
from typing import NamedTuple, Self
from urllib.parse import quote, urljoin, urlsplit

from aiperf_svc.adapters.inference.side_requests import Streams, connect
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.responses.http1 import ChunkedBody, Head, ProtocolViolation, parse_head
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.records import Framing

MAX_PAGE_BYTES = 4 * 2**20
"""Maximum size of a page: 30,000 samples. A page of vLLM has 60 KB."""
MAX_FRAMED_BYTES = 2 * MAX_PAGE_BYTES
"""Maximum size of a page with its framing: trailers and chunk-size lines."""
MAX_HEAD_BYTES = 2**16
"""Maximum size of a response's headers, including those of interim responses."""
PIECE_BYTES = 2**16
MAX_REDIRECTS = 5
DATE_RESOLUTION_S = 1.0
"""Resolution of HTTP's `Date`."""
IMPLAUSIBLE_OFFSET_S = 366 * 24 * 3600.0
"""Largest plausible difference between a server's date and ours."""
_REDIRECTS = (301, 302, 303, 307, 308)
_END_OF_HEAD = b"\r\n\r\n"
_UNQUOTED = "/%:=&?~+!$,;'()*[]@"
"""Characters of a URL that are not quoted, besides letters and digits; `%` is already quoted."""


class FetchedPage(NamedTuple):
    """The content of a page with the time of the read, or the reason why it could not be read."""

    failure: str = ""
    text: str = ""
    wall_ns: int = 0
    """Midpoint between the request and the end of the response."""
    latency_ns: int = 0
    clock_offset_s: float = 0.0
    """How far the server's clock is behind ours, by the response's date; 0 if it has none."""


class _Response(NamedTuple):
    status: int
    date: str = ""
    location: str = ""
    body: bytes = b""
    """Empty unless the status is 200."""
    is_kept: bool = False
    """Whether its connection can carry another request."""


class PageClient:
    """The connections to all sources of a run."""

    def __init__(
        self, make_tls: Callable[[], ssl.SSLContext], *, key: str = "", key_urls: Iterable[str] = ()
    ) -> None:
        """`make_tls` is called for the first page over TLS, because loading the machine's
        authorities takes longer than loading a page. Only the servers in `key_urls` get `key`, a
        token or `USER:PASSWORD`."""
        self._tls = functools.cache(make_tls)
        self._authorization = _authorization(key) if key else ""
        self._authorized = {address_of(url) for url in key_urls}
        self._idle: dict[str, Streams] = {}
        """The idle connection of each URL. Only one read of a URL is in progress at a time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for _, writer in self._idle.values():
            writer.transport.abort()
        self._idle.clear()

    async def fetch(self, url: str, *, timeout_s: float) -> FetchedPage:
        began_ns = monotonic_ns()
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._get_redirected(url)
        except TimeoutError:
            return FetchedPage(f"there was no page within {timeout_s:g} s")
        except (OSError, ValueError) as error:
            return FetchedPage(one_line(str(error) or type(error).__name__))
        if response.status != 200:
            hint = "; telemetry.key_env names its key" if response.status == 401 else ""
            return FetchedPage(f"the server responds with status {response.status}{hint}")
        latency_ns = monotonic_ns() - began_ns
        wall_ns = time_ns() - latency_ns // 2
        text = response.body.decode("utf-8", "replace")
        return FetchedPage("", text, wall_ns, latency_ns, _clock_offset_s(response.date, wall_ns))

    async def _get_redirected(self, url: str) -> _Response:
        """Return the response after all redirects: some servers have the page only at `/metrics/`.
        A redirect to another server is refused, because the user did not configure that server."""
        named = address_of(url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._get(url)
            if response.status not in _REDIRECTS or not response.location:
                return response
            url = urljoin(url, response.location)
            if urlsplit(url).scheme not in ("http", "https") or address_of(url) != named:
                raise ProtocolViolation(
                    f"a redirect to {url} is not followed: it is another server; if that has the "
                    "page, name it in telemetry.server_metrics or telemetry.gpu_telemetry"
                )
        raise ProtocolViolation(f"over {MAX_REDIRECTS} redirects")

    async def _get(self, url: str) -> _Response:
        kept = self._idle.pop(url, None)
        if kept is not None:
            try:
                return await self._exchange(url, *kept)
            except ConnectionError:
                pass  # the server may have closed it since the previous page
        host, port, is_tls = address_of(url)
        tls = await asyncio.to_thread(self._tls) if is_tls else None
        return await self._exchange(url, *await connect(host, port, tls))

    async def _exchange(
        self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Response:
        response = None
        try:
            is_authorized = address_of(url) in self._authorized
            writer.write(_request(url, self._authorization if is_authorized else ""))
            response = await _read(reader)
        finally:
            if response is not None and response.is_kept:
                self._idle[url] = reader, writer
            else:
                writer.transport.abort()
        return response


def _authorization(key: str) -> str:
    if ":" in key:
        key = base64.b64encode(key.encode()).decode()
        return f"Authorization: Basic {key}\r\n"
    return f"Authorization: Bearer {key}\r\n"


def _request(url: str, authorization: str) -> bytes:
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_UNQUOTED)
    query = f"?{quote(parts.query, safe=_UNQUOTED)}" if parts.query else ""
    host = parts.netloc.rpartition("@")[2]
    return (
        f"GET {path}{query} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: aiperf-svc\r\n"
        f"Accept: text/plain;version=0.0.4\r\n{authorization}Accept-Encoding: identity\r\n\r\n"
    ).encode("ascii")


async def _read(reader: asyncio.StreamReader) -> _Response:
    received, at, head, raw = b"", 0, None, b""
    while head is None or head.status < 200:
        end = received.find(_END_OF_HEAD, at)
        if max(at, end, len(received) if end < 0 else 0) > MAX_HEAD_BYTES:
            raise ProtocolViolation(f"headers of over {MAX_HEAD_BYTES // 2**10} KiB")
        if end < 0:
            received += await _read_part(reader)
            continue
        raw = received[at : end + len(_END_OF_HEAD)]
        head, at = parse_head(raw, method="GET"), end + len(_END_OF_HEAD)
    found = _Response(head.status, _header(raw, b"Date"), _header(raw, b"Location"))
    if head.status != 200:
        return found
    if head.content_coding:
        raise ProtocolViolation(f"the page is compressed with unrequested {head.content_coding}")
    body, is_kept = await _body(reader, head, received[at:])
    return found._replace(body=body, is_kept=is_kept and head.keep_alive)


async def _body(reader: asyncio.StreamReader, head: Head, begin: bytes) -> tuple[bytes, bool]:
    """Return the body, and whether nothing followed it."""
    chunks = ChunkedBody() if head.framing == Framing.CHUNKED else None
    body, part, received = bytearray(), begin, 0
    while True:
        received += len(part)
        if chunks is None:
            body += part
        else:
            for start, stop in chunks.feed(part, 0, len(part)):
                body += part[start:stop]
        if max(len(body), head.length) > MAX_PAGE_BYTES:
            raise ProtocolViolation(f"the page is larger than {MAX_PAGE_BYTES // 2**20} MiB")
        if received > MAX_FRAMED_BYTES:
            raise ProtocolViolation(
                f"the page with its framing is larger than {MAX_FRAMED_BYTES // 2**20} MiB"
            )
        if chunks is not None and chunks.is_complete:
            return bytes(body), True
        if head.framing == Framing.LENGTH and len(body) >= head.length:
            return bytes(body[: head.length]), len(body) == head.length
        if head.framing == Framing.UNTIL_CLOSE and reader.at_eof():
            return bytes(body), False
        part = await _read_part(reader, may_end=head.framing == Framing.UNTIL_CLOSE)


async def _read_part(reader: asyncio.StreamReader, *, may_end: bool = False) -> bytes:
    part = await reader.read(PIECE_BYTES)
    if not part and not may_end:
        raise ConnectionError("the server closed the connection before the page was complete")
    return part


def _header(raw: bytes, name: bytes) -> str:
    found = re.search(rb"\r\n" + name + rb":[ \t]*([^\r\n]*)", raw, re.IGNORECASE)
    return found[1].decode("latin-1").strip() if found else ""


def _clock_offset_s(date: str, wall_ns: int) -> float:
    try:
        clock_offset_s = wall_ns / 1e9 - parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return clock_offset_s if DATE_RESOLUTION_S < abs(clock_offset_s) < IMPLAUSIBLE_OFFSET_S else 0.0
