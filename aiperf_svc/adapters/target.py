"""The target as the hot path needs it: an address, a TLS context, and the bytes around every body.

Resolved once, before the run: a name that is looked up for every connection would measure the
resolver.
"""

import math
import os
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from aiperf_svc.adapters.machine import port_range
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.domain.errors import ConfigError

USER_AGENT = "aiperf-svc"
PORTS_IN_USE = 0.25
"""Share of the local port range to fill from one address. For outgoing connections the kernel tries
every other port first, one by one: with half of the range in use it looks at all of those before
each connection, which takes milliseconds."""


class Target(NamedTuple):
    """Where requests go and what is the same in all of them."""

    family: int
    address: tuple[str, int]
    tls_context: ssl.SSLContext | None
    server_name: str
    request_timeout_ns: int
    connect_timeout_ns: int
    keep_alive: bool
    source_addresses: tuple[str, ...]
    head: bytes
    """Request line and headers but for `X-Request-Id` and `Content-Length`, which differ."""

    def request(self, body: bytes) -> tuple[bytes, bytes]:
        """HTTP bytes of a request, before and after the value of its `X-Request-Id`."""
        before = self.head + b"X-Request-Id: "
        return before, b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def resolve_target(config: BenchmarkConfig) -> Target:
    """The target of `config`; blocks for the name's lookup.

    Raises ConfigError when the name has no address, the CA file cannot be read or the variable with
    the API key is not set.
    """
    endpoint = config.endpoint
    url = urlsplit(endpoint.url)
    host, port, is_https = address_of(endpoint.url)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"endpoint.url: no address for {host!r}: {error.strerror}; check the name"
        ) from error
    context = None
    if is_https:
        try:
            context = ssl.create_default_context(cafile=endpoint.tls.ca_file)
        except OSError as error:
            raise ConfigError(
                f"endpoint.tls.ca_file: cannot read {endpoint.tls.ca_file!r}: {error}"
            ) from error
        if not endpoint.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    return Target(
        family=family,
        address=(str(address[0]), int(address[1])),
        tls_context=context,
        server_name=endpoint.tls.server_name or host,
        request_timeout_ns=endpoint.request_timeout,
        connect_timeout_ns=endpoint.connect_timeout,
        keep_alive=endpoint.connections == "keep-alive",
        source_addresses=endpoint.source_addresses
        or loopback_sources(str(address[0]), config.load.concurrency or 0, port_range()),
        head=_head(config, url.netloc.rpartition("@")[2], url.path),
    )


def loopback_sources(target: str, connections: int, ports: tuple[int, int]) -> tuple[str, ...]:
    """Addresses from which so many connections reach a server on this machine; empty when its usual
    one will do. Every address of 127.0.0.0/8 is this machine's own, so none has to be given."""
    each = max(1, math.floor((ports[1] - ports[0] + 1) * PORTS_IN_USE))
    count = math.ceil(connections / each)
    if count <= 1 or not target.startswith("127."):
        return ()
    return tuple(f"127.0.{number // 250}.{number % 250 + 1}" for number in range(count))


def _head(config: BenchmarkConfig, host: str, base_path: str) -> bytes:
    endpoint = config.endpoint
    default = ENDPOINTS[endpoint.type].path
    base = base_path.rstrip("/")
    if endpoint.path is not None:
        path = base + endpoint.path
    elif base.endswith("/v1"):
        # Users paste the base URL of their SDK, which ends where the endpoint's own path begins.
        path = base + default.removeprefix("/v1")
    else:
        path = base + default
    headers = {
        "Host": host,
        "User-Agent": USER_AGENT,
        "Accept": "text/event-stream" if endpoint.streaming else "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if endpoint.connections == "per-request":
        headers["Connection"] = "close"
    if endpoint.api_key_env:
        key = os.environ.get(endpoint.api_key_env)
        if not key:
            raise ConfigError(
                f"endpoint.api_key_env: the environment variable {endpoint.api_key_env} is not set"
            )
        is_bearer = endpoint.api_key_header.lower() == "authorization"
        headers[endpoint.api_key_header] = f"Bearer {key}" if is_bearer else key
    given = {name.lower() for name in endpoint.headers}
    lines = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in given]
    lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
    return ("\r\n".join([f"POST {path} HTTP/1.1", *lines]) + "\r\n").encode("latin-1")
