"""Requests to the target that are not part of the load: readiness checks, the probe of a forced
output length, and hooks.

Each is sent on its own connection, with the target's HTTP version and through its proxy. It is
never retried, because a repeated hook could start the server's profiler twice.
"""

import asyncio
import os
import socket
import ssl
from asyncio.staggered import staggered_race
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from aiperf_svc.adapters.inference.http2_stream import check_alpn, new_connection
from aiperf_svc.adapters.inference.proxy import Route, after_head, route_to
from aiperf_svc.adapters.inference.resolved_target import (
    Target,
    config_at_url,
    head_of,
    path_with_key,
    tls_context,
)
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.hooks import Hook
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.endpoints.base import Prompt, error_message
from aiperf_svc.core.endpoints.forced_length import (
    PROBE_TIMEOUT_S,
    Finding,
    is_refusal,
    probe_bodies,
)
from aiperf_svc.core.endpoints.paths import base_path
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.load.phase_hooks import problem_of
from aiperf_svc.core.responses.http1 import ChunkedBody, ProtocolViolation, parse_head
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.records import Framing

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

NEXT_ADDRESS_S: Final = 0.25
"""Time after which the next address of a name is tried too (RFC 8305)."""
PAGE_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 60.0
"""Timeout of the first request to a model, which may trigger a compilation."""
_MAX_BYTES: Final = 1 << 20
"""Maximum size of a response."""
_READ_BYTES: Final = 65_536
_END_OF_HEAD: Final = b"\r\n\r\n"
_READY_PROMPT: Final = Prompt(texts=("Hi",), passages=("Hi",), output_tokens=1)


# --- the exchange --------------------------------------------------------------------------------


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> Streams:
    """Connect to the first address of a name that accepts a connection. A silent address delays the
    next attempt by only `NEXT_ADDRESS_S`. Raises the OSError of the first address."""
    try:
        return await _connect(host, port, tls)
    except ConnectionError as error:
        if not error.errno:
            raise
        # The event loop's message repeats the address.
        raise OSError(error.errno, os.strerror(error.errno)) from error


async def _connect(host: str, port: int, tls: ssl.SSLContext | None) -> Streams:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    name = host if tls is not None else None
    attempts = [
        partial(asyncio.open_connection, address, port, ssl=tls, server_hostname=name)
        for address in dict.fromkeys(str(each[4][0]) for each in found)
    ]
    if len(attempts) == 1:
        return await attempts[0]()
    made, _, failures = await staggered_race(attempts, NEXT_ADDRESS_S)
    if made is None:
        raise next(each for each in failures if each is not None)
    streams: Streams = made
    return streams


async def exchange(
    route: Route, request: bytes, *, tls: ssl.SSLContext | None, server_name: str, is_http2: bool
) -> tuple[int, bytes]:
    """Send a complete HTTP/1.1 request on a new connection, over HTTP/2 if `is_http2`. Returns the
    status and body of the response. Raises OSError and ProtocolViolation; has no timeout."""
    reader, writer = await connect(route.host, route.port)
    try:
        if route.tunnel:
            await _open_tunnel(reader, writer, route.tunnel)
        if tls is not None:
            await writer.start_tls(tls, server_hostname=server_name)
        http2 = None
        if is_http2:
            session = writer.get_extra_info("ssl_object")
            if session is not None:
                check_alpn(session.selected_alpn_protocol())
            http2 = new_connection("http" if session is None else "https")
            http2.send(request)
        else:
            writer.write(request)
        received, problem = b"", None
        while True:
            if http2 is not None:
                writer.write(http2.to_send())
            await writer.drain()
            part = await reader.read(_READ_BYTES)
            if http2 is None:
                received += part
            else:
                received += http2.receive(part)
                problem = http2.problem
            is_over = not part or len(received) > _MAX_BYTES
            found = whole_response(received, is_closed=is_over and problem is None)
            if found is not None:
                return found
            if is_over or problem is not None:
                raise ProtocolViolation(str(problem or "closed before the response was complete"))
    finally:
        writer.transport.abort()


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


def whole_response(received: bytes, *, is_closed: bool) -> tuple[int, bytes] | None:
    """Return the status and body; None while the response is incomplete. `is_closed`: no more data
    follows, which ends a body without a length."""
    at, status = 0, 0
    while status < 200:
        end = received.find(_END_OF_HEAD, at)
        if end < 0:
            return None
        head = parse_head(received[at : end + len(_END_OF_HEAD)])
        at, status = end + len(_END_OF_HEAD), head.status
    if head.framing == Framing.LENGTH:
        is_whole, body = len(received) >= at + head.length, received[at : at + head.length]
    elif head.framing == Framing.CHUNKED:
        chunks = ChunkedBody()
        pieces = chunks.feed(received, at, len(received))
        is_whole = chunks.is_complete
        body = b"".join(received[begin:end] for begin, end in pieces)
    else:
        is_whole, body = False, received[at:]
    return (status, body) if is_whole or is_closed else None


async def ask(target: Target, request: bytes, *, timeout_s: float) -> tuple[int, bytes]:
    """Exchange a request and response with a resolved target. Raises OSError and
    ProtocolViolation."""
    try:
        async with asyncio.timeout(timeout_s):
            return await exchange(
                target.route,
                request,
                tls=target.tls_context,
                server_name=target.server_name,
                is_http2=target.is_http2,
            )
    except TimeoutError:
        raise TimeoutError(f"no complete response within {timeout_s:g} s") from None


async def ask_with_body(
    target: Target, body: bytes, request_id: str, *, timeout_s: float
) -> tuple[int, bytes]:
    """Send a request of the target's API like `ask`."""
    before, after = target.request(body)
    return await ask(target, before + request_id.encode() + after, timeout_s=timeout_s)


# --- readiness -----------------------------------------------------------------------------------


async def readiness_problem(config: BenchmarkConfig, target: Target, run_id: str) -> str:
    """Return the reason why the target cannot be measured yet; empty if it can.

    The target is ready if `/health` succeeds. If a server lacks this path, `/v1/models` is tried;
    if it lacks both, a short request is sent.
    """
    url = config.endpoint.url
    try:
        base = base_path(urlsplit(url).path, config.endpoint, endpoint_of(config.endpoint))
        for path in ("/health", "/v1/models"):
            request = _get(target, base.removesuffix("/v1") + path, run_id)
            status, body = await ask(target, request, timeout_s=PAGE_TIMEOUT_S)
            if status < 400:
                return ""
            if status >= 500:
                return one_line(f"{path}: status {status}: {error_message(body)}")
        options = config.endpoint.model_copy(update={"streaming": False})
        try:
            rendered = endpoint_of(options).render(_READY_PROMPT, options)
        except ValueError:
            # Only the dataset can create a request. The server responds, which has to suffice.
            return ""
        status, body = await ask_with_body(
            target, rendered.whole, f"{run_id}-ready", timeout_s=REQUEST_TIMEOUT_S
        )
    except OSError as error:
        return one_line(f"{url}: {error.strerror or error}")
    except ProtocolViolation as error:
        return one_line(f"{url}: {error}")
    return "" if status < 400 else one_line(f"a request: status {status}: {error_message(body)}")


def _get(target: Target, path: str, run_id: str) -> bytes:
    _, _, headers = target.head.partition(b"\r\n")
    line = f"GET {target.route.origin}{path} HTTP/1.1\r\n".encode()
    return line + headers + f"X-Request-Id: {run_id}-ready\r\nContent-Length: 0\r\n\r\n".encode()


# --- the probe of a forced output length ---------------------------------------------------------


class Probed(NamedTuple):
    finding: Finding
    message: str
    """Message of the target, or the reason why it could not be reached."""
    requests: int
    """Number of requests, 1 or 2."""


async def probe_forced_length(config: BenchmarkConfig, target: Target, run_id: str) -> Probed:
    """Return whether the target accepts the members that force an output length
    (`core.endpoints.forced_length`).

    The ids of the requests end in `-probe-0` and `-probe-1`. The results contain their number.
    """
    forced, plain = probe_bodies(config)
    sent = 1
    try:
        status, body = await ask_with_body(
            target, forced, f"{run_id}-probe-0", timeout_s=PROBE_TIMEOUT_S
        )
        message = one_line(error_message(body) or f"status {status}")
        if not is_refusal(status):
            if status < 300:
                return Probed(Finding.ACCEPTED, "", 1)
            return Probed(Finding.UNKNOWN, message, 1)
        sent = 2
        status, _ = await ask_with_body(
            target, plain, f"{run_id}-probe-1", timeout_s=PROBE_TIMEOUT_S
        )
    except (OSError, ProtocolViolation) as error:
        return Probed(Finding.UNKNOWN, str(error), sent)
    return Probed(Finding.REFUSED if status < 300 else Finding.UNKNOWN, message, sent)


# --- hooks ---------------------------------------------------------------------------------------


async def call_hook(hook: Hook, origin: str, config: BenchmarkConfig, request_id: str) -> str:
    """Send the request of a hook to the server at `origin`. Returns the problem; empty on success.
    The caller sets the timeout."""
    plain = config.endpoint.model_copy(update={"streaming": False})
    config = config_at_url(config.model_copy(update={"endpoint": plain}), origin)
    endpoint = config.endpoint
    host, _, is_tls = address_of(endpoint.url)
    try:
        status, body = await exchange(
            route_to(endpoint),
            _hook_request(hook, config, request_id),
            tls=tls_context(endpoint.tls, is_http2=endpoint.http2) if is_tls else None,
            server_name=endpoint.tls.server_name or host,
            is_http2=endpoint.http2,
        )
    except OSError as error:
        return one_line(error.strerror or str(error))
    except ProtocolViolation as error:
        return one_line(str(error))
    return problem_of(hook, status, one_line(error_message(body)))


def _hook_request(hook: Hook, config: BenchmarkConfig, request_id: str) -> bytes:
    _, *lines = head_of(config).splitlines(keepends=True)
    # The requests of the load may be forms.
    headers = b"".join(each for each in lines if not each.lower().startswith(b"content-type:"))
    if hook.body is not None:
        headers += b"Content-Type: application/json\r\n"
    body = b"" if hook.body is None else msgspec.json.encode(hook.body)
    path = path_with_key(hook.path, config.endpoint)
    line = f"{hook.method} {route_to(config.endpoint).origin}{path} HTTP/1.1\r\n".encode()
    own = f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return line + headers + own + body
