"""What a courier observes of its rank during a step, independently of the tool: interface counters,
TCP retransmits, CPU and memory of the container, pressure of the node."""

import fcntl
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aiperf_svc.adapters.host.vitals import stolen_ns, throttled_ns

_SIOCGIFADDR = 0x8915
_PROC = Path("/proc")


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since an arbitrary start. Only differences are meaningful; for a peak, only whether
    it has grown."""

    mono_ns: int = 0
    """Time of the reading."""
    rx_bytes: int = 0
    """Bytes received on the interface with the rank's address. If that is unknown, on all
    interfaces except the loopback."""
    tx_bytes: int = 0
    loopback_bytes: int = 0
    drops: int = 0
    tcp_retransmits: int = 0
    udp_errors: int = 0
    """Datagrams that were received and dropped, nearly always because of a full socket buffer."""
    cpu_ns: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0
    memory_peak_bytes: int = 0
    """Peak memory of the container since its start."""
    pressure_us: dict[str, int] = {}
    """Time for which some task waited for `cpu`, `io` or `memory`."""
    stolen_ns: int = 0
    own_cpu_ns: int = 0
    """CPU time of this process."""


def read_counters(
    container: Mapping[str, str] | None, interface: str, proc: Path = _PROC
) -> Counters:
    """Read all counters now. `container` has the rank's own counters, as copied by its loop. None:
    the rank runs in the same cgroup as this process. `interface` has the rank's address, and
    is empty if unknown."""
    rx, tx, loopback, drops = _interfaces(proc, interface)
    snmp = _protocols((proc / "net/snmp").read_text())
    return Counters(
        mono_ns=time.monotonic_ns(),
        rx_bytes=rx,
        tx_bytes=tx,
        loopback_bytes=loopback,
        drops=drops,
        tcp_retransmits=snmp.get("Tcp", {}).get("RetransSegs", 0),
        # RcvbufErrors, of full socket buffers, are included.
        udp_errors=snmp.get("Udp", {}).get("InErrors", 0),
        cpu_ns=container_cpu_ns(container) if container is not None else 0,
        throttled_ns=throttled_ns() if container is None else container_throttled_ns(container),
        oom_kills=container_oom_kills(container) if container is not None else 0,
        memory_peak_bytes=container_memory_peak(container) if container is not None else 0,
        pressure_us=_pressures(proc / "pressure"),
        stolen_ns=stolen_ns(proc / "stat"),
        own_cpu_ns=time.process_time_ns(),
    )


def interface_bytes(proc: Path = _PROC) -> tuple[int, int, int]:
    """Return the bytes received and sent except on the loopback, and those on the loopback."""
    return _interfaces(proc, "")[:3]


def pressure_shares(before: Counters, after: Counters) -> dict[str, float]:
    """Return the share of the time between two readings, 0 to 1, for which some task of the node
    waited for `cpu`, `io` and `memory`."""
    elapsed_us = max(1, (after.mono_ns - before.mono_ns) // 1_000)
    return {
        name: min(1.0, max(0, value - before.pressure_us.get(name, value)) / elapsed_us)
        for name, value in after.pressure_us.items()
    }


def container_cpu_ns(container: Mapping[str, str]) -> int:
    """Return the CPU time that a container has used (cgroup v1 or v2)."""
    if "cpu.stat usage_usec" in container:
        return int(container["cpu.stat usage_usec"]) * 1_000
    return int(container.get("cpuacct/cpuacct.usage", 0))


def container_throttled_ns(container: Mapping[str, str]) -> int:
    """Return the time for which CPU quotas have throttled a container."""
    if "cpu.stat throttled_usec" in container:
        return int(container["cpu.stat throttled_usec"]) * 1_000
    return int(container.get("cpu/cpu.stat throttled_time", 0))


def container_oom_kills(container: Mapping[str, str]) -> int:
    """Return the number of a container's processes that were killed for lack of memory."""
    names = ("memory.events oom_kill", "memory/memory.oom_control oom_kill")
    return max(int(container.get(name, 0)) for name in names)


def container_memory_peak(container: Mapping[str, str]) -> int:
    """Return the peak memory of a container in bytes; 0 if it is unknown."""
    names = ("memory.peak", "memory/memory.max_usage_in_bytes")
    return max(int(container.get(name, 0)) for name in names)


def address_of_interface(name: str) -> str:
    """Return the IPv4 address of an interface; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            packed = struct.pack("256s", name.encode()[:15])
            found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, packed)
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def interface_of(address: str) -> str:
    """Return the name of the interface with an address; empty if there is none."""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address_of_interface(name) == address), "")


def listens(port: int, proc: Path = _PROC) -> bool:
    """Return whether a TCP socket of this network namespace listens on a port."""
    wanted = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and fields[1].endswith(wanted):
                return True
    return False


def _interfaces(proc: Path, interface: str) -> tuple[int, int, int, int]:
    found = {}
    for line in (proc / "net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        found[name.strip()] = [int(number) for number in numbers.split()]
    loopback = found.pop("lo", [0])[0]
    counted = [found[interface]] if interface in found else list(found.values())
    rx, tx = sum(each[0] for each in counted), sum(each[8] for each in counted)
    return rx, tx, loopback, sum(each[3] + each[11] for each in counted)


def _protocols(text: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/snmp: for each protocol, a line of names, then a line of numbers."""
    lines = text.splitlines()
    found = {}
    for names, numbers in zip(lines[::2], lines[1::2], strict=True):
        protocol, _, fields = names.partition(":")
        values = map(int, numbers.partition(":")[2].split())
        found[protocol] = dict(zip(fields.split(), values, strict=True))
    return found


def _pressures(folder: Path) -> dict[str, int]:
    found = {}
    for name in ("cpu", "io", "memory"):
        try:
            first = (folder / name).read_text().splitlines()[0]
        except OSError:
            continue  # the kernel does not provide it
        found[name] = int(first.rpartition("total=")[2])
    return found
