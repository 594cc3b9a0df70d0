"""Checks before the load whether a server listens at the target.

It imports little, so a command can run the check before the services have started.
"""

import socket
from collections.abc import Iterable
from typing import Any, Final

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.urls import address_of
from aiperf_svc.domain.errors import BenchmarkFailed

REFUSAL_TIMEOUT_S: Final = 1.0
FamilyAndAddress = tuple[int, Any]
"""Address family and address, for `socket.socket` and `connect`."""


def check_listeners(endpoints: Iterable[Endpoint]) -> str:
    """Return a message with the URLs of these endpoints that refuse a connection; empty if none
    does. Raise BenchmarkFailed if all do. Nothing is checked if a server may start to listen later,
    after a wait or a hook. Blocks."""
    endpoints = tuple(endpoints)
    if any(may_begin_to_listen(endpoint) for endpoint in endpoints):
        return ""
    hops = dict.fromkeys(hop for endpoint in endpoints for hop in endpoint.first_hops)
    closed = [hop for hop in hops if refuses(_addresses(hop))]
    if closed and len(closed) == len(hops):
        raise nothing_listens(closed)
    return f"nothing listens at {', '.join(closed)}: requests there will fail" if closed else ""


def may_begin_to_listen(endpoint: Endpoint) -> bool:
    """Return whether a server may start to listen later, after a wait or a hook."""
    return bool(endpoint.wait_for_server or endpoint.all_hooks)


def nothing_listens(hops: Iterable[str]) -> BenchmarkFailed:
    """Return the error that no server listens at these URLs."""
    return BenchmarkFailed(
        f"nothing listens at {', '.join(hops)}: connection refused; start the server, check the "
        "port of --url, or wait for it (endpoint.wait_for_server, --wait-for-server)"
    )


def refuses(addresses: Iterable[FamilyAndAddress]) -> bool:
    """Return whether every address refuses a connection. Blocks, but does not wait for a silent
    address, which may only be slow."""
    is_requested = False
    for family, address in addresses:
        is_requested = True
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(REFUSAL_TIMEOUT_S)
            try:
                sock.connect(address)
            except ConnectionRefusedError:
                continue
            except OSError:
                pass
        return False
    return is_requested


def _addresses(url: str) -> list[FamilyAndAddress]:
    """Return the addresses of a URL's host; empty if the lookup fails, which the run reports."""
    host, port, _ = address_of(url)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]
