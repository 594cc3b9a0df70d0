"""Reads pages of metrics over HTTP, within limits of size and time."""

import ssl
from email.utils import parsedate_to_datetime
from time import monotonic_ns, time_ns
from typing import NamedTuple, Self

import aiohttp

from aiperf_svc.domain.foreign_text import one_line

MAX_PAGE_BYTES = 4 * 2**20
"""Limit of a page: 30,000 samples. A page of vLLM has 60 KB."""
PIECE_BYTES = 2**16
ACCEPT = {"Accept": "text/plain;version=0.0.4"}
DATE_RESOLUTION_S = 1.0
"""HTTP's `Date` has whole seconds."""


class FetchedPage(NamedTuple):
    """The content of a page and when it was read, or why it could not be read."""

    failure: str = ""
    text: str = ""
    wall_ns: int = 0
    """Middle of the time between request and end of the response."""
    latency_ns: int = 0
    off_s: float = 0.0
    """How far the server's clock is behind ours, by the response's date; 0 if it has none."""


class PageClient:
    """The connections to all sources of a run."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=ACCEPT)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, url: str, *, timeout_s: float) -> FetchedPage:
        """Read a page."""
        assert self._session is not None
        began_ns = monotonic_ns()
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(url, timeout=timeout, ssl=self._tls) as response:
                if response.status != 200:
                    return FetchedPage(f"the server responds with status {response.status}")
                body = await _body(response)
                date = response.headers.get("Date", "")
        except TimeoutError:
            return FetchedPage(f"there was no page within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return FetchedPage(one_line(str(error) or type(error).__name__))
        if body is None:
            return FetchedPage(f"the page is over {MAX_PAGE_BYTES // 2**20} MiB large")
        latency_ns = monotonic_ns() - began_ns
        wall_ns = time_ns() - latency_ns // 2
        text = body.decode("utf-8", "replace")
        return FetchedPage("", text, wall_ns, latency_ns, _off_s(date, wall_ns))


async def _body(response: aiohttp.ClientResponse) -> bytes | None:
    """The body; None if it is too large."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(PIECE_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_PAGE_BYTES:
            response.close()
            return None
    return b"".join(parts)


def _off_s(date: str, wall_ns: int) -> float:
    try:
        off_s = wall_ns / 1e9 - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
    return off_s if abs(off_s) > DATE_RESOLUTION_S else 0.0
