"""Resolves the target for the hot path: its addresses, a TLS context, and the bytes around each
body.

The name is looked up before the run, and again in a thread when connections fail. A lookup for each
connection would measure the resolver.
"""

import asyncio
import math
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from aiperf_svc.adapters.host.machine import port_range
from aiperf_svc.adapters.inference.http2_stream import ALPN
from aiperf_svc.adapters.inference.proxy import Route, route_to
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint, Tls
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.endpoints.paths import request_path
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.load.target_addresses import SocketAddress
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json

USER_AGENT = "aiperf-svc"
PORTS_IN_USE = 0.25
"""Share of the ephemeral port range to use from one address. For outgoing connections, the kernel
first tries every other port, one by one. With half of the range in use it checks all of those
before each connection, which takes milliseconds."""


SESSION_ID = b"\0"

GetAddrInfo = Callable[..., list[Any]]
"""The signature of `socket.getaddrinfo`, which is the default."""


class Target(NamedTuple):
    """The destination and the common parts of all requests."""

    addresses: tuple[SocketAddress, ...]
    """All addresses of the name, in the resolver's order."""
    tls_context: ssl.SSLContext | None
    server_name: str
    request_timeout_ns: int
    connect_timeout_ns: int
    keep_alive: bool
    head: bytes
    """Request line and headers, except `X-Request-Id` and `Content-Length`, which vary."""
    route: Route = Route("", 0)
    """First hop of connections."""
    is_http2: bool = False
    session_head: bytes = b""
    """Headers of a conversation's requests, with `SESSION_ID` as a placeholder for its id."""
    parent_session_head: bytes = b""
    """Headers of a subagent's requests, with `SESSION_ID` as a placeholder for its parent's id."""
    session_members: bytes = b""
    """Members at the start of these requests' bodies, each followed by a comma."""

    def request(self, body: bytes, ids: bytes = b"") -> tuple[bytes, bytes]:
        """Return the HTTP bytes of a request before and after the value of its `X-Request-Id`.
        `ids` are headers after the common head. Another target replaces them."""
        before = self.head + ids + b"X-Request-Id: "
        return before, b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def session_request(
        self, body: bytes, session_id: bytes, parent_id: bytes = b"", issued: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Return the HTTP bytes of a request of the conversation with this id, including its
        parent's id if an agent started it. `issued` is a header that the target issued."""
        if self.session_members:
            body = b"{" + self.session_members.replace(SESSION_ID, session_id) + body[1:]
        ids = self.session_head.replace(SESSION_ID, session_id)
        if parent_id:
            ids += self.parent_session_head.replace(SESSION_ID, parent_id)
        return self.request(body, ids + issued)


def resolve_target(config: BenchmarkConfig, *, getaddrinfo: GetAddrInfo | None = None) -> Target:
    """Return the target of `config`. Blocks while it looks up the name.

    Raises ConfigError if the name has no address, the CA file cannot be read, or the environment
    variable with the API key is not set.
    """
    endpoint = config.endpoint
    host, _, is_https = address_of(endpoint.url)
    addresses = look_up(config, getaddrinfo=getaddrinfo)
    context = tls_context(endpoint.tls, is_http2=endpoint.http2) if is_https else None
    return Target(
        addresses=addresses,
        tls_context=context,
        server_name=endpoint.tls.server_name or host,
        request_timeout_ns=endpoint.request_timeout,
        connect_timeout_ns=endpoint.connect_timeout,
        keep_alive=endpoint.connections == "keep-alive",
        head=head_of(config),
        route=route_to(endpoint),
        is_http2=endpoint.http2,
        session_head=_id_headers(endpoint.own_session_headers),
        parent_session_head=_id_headers(endpoint.parent_session_headers),
        session_members=session_members(endpoint.session_body),
    )


def _id_headers(names: Sequence[str]) -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.encode(), SESSION_ID) for name in names)


def session_members(paths: Sequence[str]) -> bytes:
    """Return the members of a JSON object that hold a conversation's id, each followed by a comma:
    for `user` and `a.b` it is `"user":…,"a":{"b":…},`. Empty without paths."""
    members: Json = {}
    for path in paths:
        *parents, name = path.split(".")
        inner = members
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = ""
    encoded = msgspec.json.encode(members)[1:-1].replace(b'""', b'"%b"' % SESSION_ID)
    return encoded + b"," if members else b""


def config_at_url(config: BenchmarkConfig, url: str) -> BenchmarkConfig:
    """Return the config for one of several URLs."""
    endpoint = config.endpoint.model_copy(update={"url": url, "urls": ()})
    return config.model_copy(update={"endpoint": endpoint})


def tls_context(tls: Tls, *, is_http2: bool = False) -> ssl.SSLContext:
    """Return the TLS context, which decides whether a server's certificate is accepted. Raises
    ConfigError if the trusted authorities cannot be read."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file, cadata=tls.ca)
    except ssl.SSLError as error:
        key = "ca_file" if tls.ca_file else "ca"
        name = f" {tls.ca_file!r}" if tls.ca_file else ""
        raise ConfigError(
            f"endpoint.tls.{key}:{name} holds no certificates in PEM: {error}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"endpoint.tls.ca_file: cannot read {tls.ca_file!r}: {error.strerror}"
        ) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if is_http2:
        context.set_alpn_protocols([ALPN])
    return context


def look_up(
    config: BenchmarkConfig, *, getaddrinfo: GetAddrInfo | None = None
) -> tuple[SocketAddress, ...]:
    """Return the current addresses of the target's name. Blocks.

    An address is left out if all of `endpoint.source_addresses` have the other IP version. Raises
    ConfigError if no address remains.
    """
    endpoint = config.endpoint
    host, port = route_to(endpoint)[:2]
    try:
        infos = (getaddrinfo or socket.getaddrinfo)(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"endpoint.{'url' if endpoint.proxy is None else 'proxy'}: no address for {host!r}: "
            f"{error.strerror}; check the name"
        ) from error
    # A hosts file may list an address twice.
    found = tuple(dict.fromkeys((int(info[0]), tuple(info[4])) for info in infos))
    configured = endpoint.source_addresses
    usable = []
    for family, address in found:
        is_v6 = family == socket.AF_INET6
        sources = tuple(source for source in configured if (":" in source) == is_v6)
        if configured and not sources:
            continue
        sources = sources or loopback_sources(
            str(address[0]), config.load.concurrency or 0, port_range()
        )
        usable.append(SocketAddress(family, address, sources))
    if not usable:
        names = ", ".join(str(address[0]) for _, address in found)
        raise ConfigError(
            f"endpoint.source_addresses: {', '.join(configured)}: {host!r} "
            f"({names}) cannot be reached from them; give an address of the same IP version"
        )
    return tuple(usable)


async def look_up_in_thread(config: BenchmarkConfig) -> tuple[SocketAddress, ...]:
    """Call `look_up` in a daemon thread, so a resolver that does not respond cannot delay the end
    of the process. Raises ConfigError."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[tuple[SocketAddress, ...]] = loop.create_future()

    def set_result(found: tuple[SocketAddress, ...] | ConfigError) -> None:
        if result.done():
            return  # cancelled
        if isinstance(found, ConfigError):
            result.set_exception(found)
        else:
            result.set_result(found)

    def run() -> None:
        found: tuple[SocketAddress, ...] | ConfigError
        try:
            found = look_up(config)
        except ConfigError as error:
            found = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_result, found)

    threading.Thread(target=run, name="name-lookup", daemon=True).start()
    return await result


def loopback_sources(target: str, connections: int, ports: tuple[int, int]) -> tuple[str, ...]:
    """Return source addresses for a number of connections to a server on this machine; empty if the
    default address suffices. All of 127.0.0.0/8 belongs to this machine."""
    each = max(1, math.floor((ports[1] - ports[0] + 1) * PORTS_IN_USE))
    count = math.ceil(connections / each)
    if count <= 1 or not target.startswith("127."):
        return ()
    return tuple(f"127.0.{number // 250}.{number % 250 + 1}" for number in range(count))


def path_with_key(path: str, endpoint: Endpoint) -> str:
    """Return the path, with the API key in its query if configured there. Raises ConfigError if the
    environment variable with the key is not set."""
    if not endpoint.api_key_env or not (endpoint.api_key_header or "").startswith("?"):
        return path
    query = urlencode({str(endpoint.api_key_header)[1:]: _api_key(endpoint.api_key_env)})
    return f"{path}{'&' if '?' in path else '?'}{query}"


def _api_key(variable: str) -> str:
    if key := os.environ.get(variable):
        return key
    raise ConfigError(f"endpoint.api_key_env: the environment variable {variable} is not set")


def head_of(config: BenchmarkConfig) -> bytes:
    """Return the request line and the headers of a request. Raises ConfigError if the environment
    variable with the API key is not set."""
    endpoint = config.endpoint
    url = urlsplit(endpoint.url)
    host = url.netloc.rpartition("@")[2]
    api = endpoint_of(endpoint)
    path = path_with_key(request_path(url.path, endpoint, api), endpoint)
    headers = {
        "Host": host,
        "User-Agent": USER_AGENT,
        "Accept": "text/event-stream" if endpoint.streaming else "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": api.content_type,
        **api.headers,
    }
    if endpoint.connections == "per-request":
        headers["Connection"] = "close"
    key_header = endpoint.api_key_header or api.api_key_header
    if endpoint.api_key_env and not key_header.startswith("?"):
        key = _api_key(endpoint.api_key_env)
        is_bearer = key_header.lower() == "authorization"
        headers[key_header] = f"Bearer {key}" if is_bearer else key
    custom = {name.lower() for name in endpoint.headers}
    lines = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in custom]
    lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
    route = route_to(endpoint)
    lines += [f"{name}: {value}" for name, value in route.headers]
    line = f"POST {route.origin}{path} HTTP/1.1"
    return ("\r\n".join([line, *lines]) + "\r\n").encode("latin-1")
