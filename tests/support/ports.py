"""Free ports of the loopback interface: another process may take one before it is used."""

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom

from aiperf_svc.adapters.messaging.bus import Addresses
from aiperf_svc.protocol.ports import Port


def free_port() -> int:
    (port,) = _free(1)
    return port


def free_addresses() -> Addresses:
    """TCP addresses with a free port for each port of the map."""
    names = [port.name for port in Port]
    ports = dict(zip(names, _free(len(names)), strict=True))
    return Addresses("tcp://127.0.0.1", ports=ports)


def _free(count: int) -> list[int]:
    """Ports below those that the kernel gives to connections and to listeners without a port."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in SystemRandom().sample(range(10_000, 32_768), 1_000):
            each = held.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                break
    assert len(ports) == count
    return ports
