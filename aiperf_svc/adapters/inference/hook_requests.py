"""Sends the request of a hook: one at a time, on a connection of its own, and not in the hot path.

Nothing is sent again: a server that has started its profiler would be asked to start it twice.
"""

import asyncio
from typing import Final

import msgspec

from aiperf_svc.adapters.inference.plain_http import Exchange
from aiperf_svc.adapters.inference.proxy import after_head, way_to
from aiperf_svc.adapters.inference.resolved_target import at_url, head_of, tls_context
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.hooks import Hook
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.endpoints.base import error_message
from aiperf_svc.core.load.phase_hooks import problem_of
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.domain.foreign_text import one_line

_READ_BYTES: Final = 65_536


async def call(hook: Hook, origin: str, config: BenchmarkConfig, request_id: str) -> str:
    """Send the request to the server at `origin`. Return what went wrong; empty if nothing did.
    Takes as long as the server."""
    plain = config.endpoint.model_copy(update={"streaming": False})
    config = at_url(config.model_copy(update={"endpoint": plain}), origin)
    try:
        status, body = await _exchange(config, _request(hook, config, request_id))
    except OSError as error:
        return one_line(error.strerror or str(error))
    except ProtocolViolation as error:
        return one_line(str(error))
    return problem_of(hook, status, one_line(error_message(body)))


def _request(hook: Hook, config: BenchmarkConfig, request_id: str) -> bytes:
    _, *lines = head_of(config).splitlines(keepends=True)
    # That of the load's requests, which may be forms.
    headers = b"".join(each for each in lines if not each.lower().startswith(b"content-type:"))
    if hook.body is not None:
        headers += b"Content-Type: application/json\r\n"
    body = b"" if hook.body is None else msgspec.json.encode(hook.body)
    line = f"{hook.method} {way_to(config.endpoint).origin}{hook.path} HTTP/1.1\r\n".encode()
    own = f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return line + headers + own + body


async def _open_tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tunnel: bytes
) -> None:
    writer.write(tunnel)
    received = b""
    while after_head(received) is None:
        part = await reader.read(_READ_BYTES)
        if not part:
            raise ProtocolViolation("the proxy closed the connection instead of opening a tunnel")
        received += part


async def _exchange(config: BenchmarkConfig, request: bytes) -> tuple[int, bytes]:
    name, _, is_tls = address_of(config.endpoint.url)
    tls, way = config.endpoint.tls, way_to(config.endpoint)
    reader, writer = await asyncio.open_connection(way.host, way.port)
    try:
        if way.tunnel:
            await _open_tunnel(reader, writer, way.tunnel)
        if is_tls:
            context = tls_context(tls, is_http2=config.endpoint.http2)
            await writer.start_tls(context, server_hostname=tls.server_name or name)
        session = writer.get_extra_info("ssl_object")
        one, found = Exchange(request, session, is_http2=config.endpoint.http2), None
        while found is None:
            writer.write(one.to_send())
            await writer.drain()
            found = one.receive(await reader.read(_READ_BYTES))
        return found
    finally:
        writer.transport.abort()
