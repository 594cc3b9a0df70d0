"""Checks whether anything listens at the target before a load is sent to it.

It imports little, so that a command can check before the services have started.
"""

import socket
from collections.abc import Iterable
from typing import Any, Final

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.urls import address_of
from aiperf_svc.domain.errors import BenchmarkFailed

REFUSAL_TIMEOUT_S: Final = 1.0
FamilyAndAddress = tuple[int, Any]
"""As `socket.socket` and `connect` take them."""


def check_listeners(endpoints: Iterable[Endpoint]) -> str:
    """Return which URLs of these endpoints refuse a connection, in words; empty if none does. Fail
    if all do. Nothing is checked if a server may begin to listen later, after a wait or by a hook.
    Blocks. Raises BenchmarkFailed."""
    endpoints = tuple(endpoints)
    if any(may_begin_to_listen(endpoint) for endpoint in endpoints):
        return ""
    hops = dict.fromkeys(hop for endpoint in endpoints for hop in endpoint.first_hops)
    closed = [hop for hop in hops if refuses(_addresses(hop))]
    if closed and len(closed) == len(hops):
        raise nothing_listens(closed)
    return f"nothing listens at {', '.join(closed)}: requests there will fail" if closed else ""


def may_begin_to_listen(endpoint: Endpoint) -> bool:
    """Return whether a server may begin to listen later: the run waits for it, or a hook starts
    it."""
    return bool(endpoint.wait_for_server or endpoint.all_hooks)


def nothing_listens(hops: Iterable[str]) -> BenchmarkFailed:
    """Return the error that nothing listens at any of these URLs."""
    return BenchmarkFailed(
        f"nothing listens at {', '.join(hops)}: connection refused; start the server, check the "
        "port of --url, or wait for it (endpoint.wait_for_server, --wait-for-server)"
    )


def refuses(addresses: Iterable[FamilyAndAddress]) -> bool:
    """Return whether every address refuses a connection. Blocks, but not for a silent address,
    which may only be slow."""
    is_asked = False
    for family, address in addresses:
        is_asked = True
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(REFUSAL_TIMEOUT_S)
            try:
                sock.connect(address)
            except ConnectionRefusedError:
                continue
            except OSError:
                pass
        return False
    return is_asked


def _addresses(url: str) -> list[FamilyAndAddress]:
    """Return the addresses of a URL's host; none if the look-up fails, which the run reports."""
    host, port, _ = address_of(url)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]
