"""Free ports of the loopback interface: another process may take one before it is used."""

import socket
from contextlib import ExitStack

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
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
