"""Free ports of the loopback interface: another process may take one before it is used."""

from aiperf_svc.adapters.host.machine import unused_ports
from aiperf_svc.adapters.messaging.bus import Addresses
from aiperf_svc.protocol.ports import Port


def free_port() -> int:
    (port,) = unused_ports(1)
    return port


def free_addresses() -> Addresses:
    """TCP addresses with a free port for each port of the map."""
    names = [port.name for port in Port]
    ports = dict(zip(names, unused_ports(len(names)), strict=True))
    return Addresses("tcp://127.0.0.1", ports=ports)
