"""What a courier sees of its rank while a step runs, without asking the tool: interface counters,
TCP's retransmits, CPU and memory of the container, pressure of the node."""

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
    """Counts since some moment in the past; only differences mean something, and of a peak whether
    it has grown."""

    mono_ns: int = 0
    """When they were read."""
    rx_bytes: int = 0
    """Bytes received by the interface with the rank's address; by all but the loopback if that is
    unknown."""
    tx_bytes: int = 0
    loopback_bytes: int = 0
    drops: int = 0
    tcp_retransmits: int = 0
    udp_errors: int = 0
    """Datagrams that arrived and were refused, nearly always by a full socket."""
    cpu_ns: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0
    memory_peak_bytes: int = 0
    """Most memory of the container since its start."""
    pressure_us: dict[str, int] = {}
    """`cpu`, `io`, `memory` to the time in which some task waited for it."""
    stolen_ns: int = 0
    own_cpu_ns: int = 0
    """CPU time of this process."""


def read_counters(
    container: Mapping[str, str] | None, interface: str, proc: Path = _PROC
) -> Counters:
    """All counters at this moment. `container` are the rank's own as its loop copied them; None:
    the rank runs beside this process, in the same cgroup. `interface` has the rank's address; empty
    if none is known."""
    rx, tx, loopback, drops = _interfaces(proc, interface)
    snmp = _protocols((proc / "net/snmp").read_text())
    return Counters(
        mono_ns=time.monotonic_ns(),
        rx_bytes=rx,
        tx_bytes=tx,
        loopback_bytes=loopback,
        drops=drops,
        tcp_retransmits=snmp.get("Tcp", {}).get("RetransSegs", 0),
        # Those of full sockets, RcvbufErrors, are among them.
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
    """Bytes received and sent by all interfaces but the loopback, and those of the loopback."""
    return _interfaces(proc, "")[:3]


def pressure_shares(before: Counters, after: Counters) -> dict[str, float]:
    """`cpu`, `io` and `memory` to the share of the time between two readings, 0 to 1, in which some
    task of the node waited for it."""
    elapsed_us = max(1, (after.mono_ns - before.mono_ns) // 1_000)
    return {
        name: min(1.0, max(0, value - before.pressure_us.get(name, value)) / elapsed_us)
        for name, value in after.pressure_us.items()
    }


def container_cpu_ns(container: Mapping[str, str]) -> int:
    """CPU time that a container has used, of either version of cgroups."""
    if "cpu.stat usage_usec" in container:
        return int(container["cpu.stat usage_usec"]) * 1_000
    return int(container.get("cpuacct/cpuacct.usage", 0))


def container_throttled_ns(container: Mapping[str, str]) -> int:
    """Time that a CPU quota has taken from a container."""
    if "cpu.stat throttled_usec" in container:
        return int(container["cpu.stat throttled_usec"]) * 1_000
    return int(container.get("cpu/cpu.stat throttled_time", 0))


def container_oom_kills(container: Mapping[str, str]) -> int:
    """Processes of a container that the kernel killed for want of memory."""
    names = ("memory.events oom_kill", "memory/memory.oom_control oom_kill")
    return max(int(container.get(name, 0)) for name in names)


def container_memory_peak(container: Mapping[str, str]) -> int:
    """Most memory that a container has had, in bytes; 0 where it is not known."""
    names = ("memory.peak", "memory/memory.max_usage_in_bytes")
    return max(int(container.get(name, 0)) for name in names)


def address_of_interface(name: str) -> str:
    """IPv4 address of an interface; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            packed = struct.pack("256s", name.encode()[:15])
            found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, packed)
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def interface_of(address: str) -> str:
    """Name of the interface that has an address; empty when none has."""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address_of_interface(name) == address), "")


def listens(port: int, proc: Path = _PROC) -> bool:
    """Whether a TCP socket of this network namespace listens on a port."""
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
    """/proc/net/snmp: a line of names, then one of numbers, for each protocol."""
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
            continue  # A kernel without it.
        found[name] = int(first.rpartition("total=")[2])
    return found
