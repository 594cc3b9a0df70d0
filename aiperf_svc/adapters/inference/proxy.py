"""Requests through a proxy: the request that opens a tunnel to an https target, and the absolute
form of the request line for an http target (RFC 9110, section 9.3.6; RFC 9112, section 3.2.2)."""

import base64
import os
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from aiperf_svc.adapters.inference.tls_stream import StreamProblem, TlsStream
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.responses.http1 import ProtocolViolation, parse_head
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import ErrorKind

MAX_HEAD_BYTES: Final = 65_536
"""Maximum size of a proxy's response to CONNECT, in bytes."""
_END_OF_HEAD: Final = b"\r\n\r\n"


class Route(NamedTuple):
    """The first hop of connections, with the data that a proxy there needs."""

    host: str
    port: int
    tunnel: bytes = b""
    """Request for a tunnel; empty without a tunnel."""
    origin: str = ""
    """Prefix of the path in a request line; empty without a proxy or through a tunnel."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers for the proxy in each request."""


class TunnelRefused(StreamProblem):
    """The proxy did not open a tunnel, so there is no TLS with the server."""

    kind = ErrorKind.CONNECT


def route_to(endpoint: Endpoint) -> Route:
    """Return the first hop to `endpoint.url`. Raises ConfigError if the environment variable with
    the proxy's user and password is not set."""
    host, port, is_tls = address_of(endpoint.url)
    if endpoint.proxy is None:
        return Route(host, port)
    proxy = address_of(endpoint.proxy)
    headers: tuple[tuple[str, str], ...] = ()
    if endpoint.proxy_auth_env is not None:
        user = os.environ.get(endpoint.proxy_auth_env)
        if not user:
            raise ConfigError(
                f"endpoint.proxy_auth_env: the environment variable {endpoint.proxy_auth_env} is "
                "not set"
            )
        encoded = base64.b64encode(user.encode()).decode()
        headers = (("Proxy-Authorization", f"Basic {encoded}"),)
    if not is_tls:
        netloc = urlsplit(endpoint.url).netloc.rpartition("@")[2]
        return Route(proxy.host, proxy.port, origin=f"http://{netloc}", headers=headers)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    tunnel = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return Route(proxy.host, proxy.port, tunnel=tunnel)


def after_head(received: bytes) -> bytes | None:
    """Return the bytes after the proxy's successful response to CONNECT; None while its head is
    incomplete. Raises TunnelRefused."""
    end = received.find(_END_OF_HEAD)
    if end < 0:
        if len(received) > MAX_HEAD_BYTES:
            raise TunnelRefused("the proxy's response to CONNECT is too long")
        return None
    end += len(_END_OF_HEAD)
    try:
        status = parse_head(received[:end]).status
    except ProtocolViolation as error:
        raise TunnelRefused(f"the proxy's response to CONNECT is not HTTP: {error}") from None
    if not 200 <= status < 300:
        raise TunnelRefused(f"the proxy refuses CONNECT with status {status}")
    return received[end:]


class TunnelledStream(TlsStream):
    """A TLS stream through a tunnel, which it first requests from the proxy."""

    __slots__ = ("_head", "_problem", "_request")

    def __init__(self, context: ssl.SSLContext, server_name: str, tunnel: bytes) -> None:
        super().__init__(context, server_name)
        self._request = tunnel
        self._head: bytes | None = b""
        """The received part of the proxy's response; None when the tunnel is open."""
        self._problem: TunnelRefused | None = None

    @property
    def timeout(self) -> tuple[ErrorKind, str]:
        if self._head is None:
            return super().timeout
        return ErrorKind.CONNECT, "timed out before the proxy opened a tunnel to the server"

    def receive(self, data: bytes) -> None:
        """Receive bytes of the proxy's response, or encrypted bytes of the server."""
        if self._head is None:
            super().receive(data)
            return
        self._head += data
        try:
            rest = after_head(self._head)
        except TunnelRefused as error:
            self._problem = error
            return
        if rest is not None:
            self._head = None
            super().receive(rest)

    def handshake(self) -> bool:
        """Continue the handshake when the tunnel is open."""
        if self._problem is not None:
            raise self._problem
        return self._head is None and super().handshake()

    def to_send(self) -> bytes:
        """Return the request for the tunnel, and afterwards encrypted bytes."""
        if self._request:
            request, self._request = self._request, b""
            return request
        return super().to_send()
