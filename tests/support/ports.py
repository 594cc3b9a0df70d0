"""Free ports of the loopback interface. Another process may take one before it is used."""

import os

from aiperf_svc.adapters.host.machine import unused_ports
from aiperf_svc.adapters.messaging.bus import Addresses
from aiperf_svc.protocol.ports import Port

_SHARES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Number of pytest-xdist processes. Each takes ports from its own share at the same time."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports that no other process of these tests takes."""
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    found: list[int] = []
    while len(found) < count:
        candidates = unused_ports(2 * _SHARES)
        found += [port for port in candidates if port % _SHARES == own and port not in found]
    return found[:count]


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def free_addresses() -> Addresses:
    """Return TCP addresses with a free port for each port of the map."""
    names = [port.name for port in Port]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    return Addresses("tcp://127.0.0.1", ports=ports)
