"""What processes and the kernel use of this machine, read from /proc.

Memory of a process is its proportional set size: shared pages are counted once over all who share
them, so the sizes of several processes may be added up.
"""

import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLONE_NEWNET = 0x4000_0000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

LIMITS = (
    "net/ipv4/ip_local_port_range",
    "net/core/somaxconn",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_mem",
    "net/netfilter/nf_conntrack_max",
    "fs/file-max",
    "fs/epoll/max_user_watches",
)
"""Kernel settings that bound connections, below /proc/sys."""


def family(root: int) -> list[int]:
    """A process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Memory of several processes; those that have ended count as 0."""
    total = 0
    for pid in pids:
        for line in _read(PROC / str(pid) / "smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of processes; pages that several share count once for each of them."""
    return sum(int((_read(PROC / str(p) / "statm").split() or "00")[1]) * _PAGE for p in pids)


def status_bytes(pid: int, name: str) -> int:
    """A size from /proc/PID/status, such as VmHWM; 0 when the process is gone."""
    found = re.search(rf"^{name}:\s+(\d+) kB", _read(PROC / str(pid) / "status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of processes together since their start, user and system."""
    stats = (_stat(pid) for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) * _TICK_S


def command_line(pid: int) -> str:
    """Command of a process, empty when it is gone."""
    return _read(PROC / str(pid) / "cmdline").replace("\0", " ").strip()


def memory() -> dict[str, int]:
    """The machine's memory in bytes, by the names of /proc/meminfo, and `TcpBuffers`."""
    found = {}
    for line in _read(PROC / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024
    for line in _read(PROC / "net/sockstat").splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            found["TcpBuffers"] = int(words[words.index("mem") + 1]) * _PAGE
    return found


def kernel_bytes() -> int:
    """Memory of the kernel that grows with connections: objects, socket buffers, page tables."""
    now = memory()
    return now["Slab"] + now["TcpBuffers"] + now["PageTables"] + now.get("Percpu", 0)


def limits() -> dict[str, str]:
    """Kernel settings that bound connections, as they are in this network namespace."""
    return {name: " ".join(_read(PROC / "sys" / name).split()) or "-" for name in LIMITS}


def end_orderly() -> None:
    """Have SIGTERM, and SIGINT even where a shell ignores it, end this process as Ctrl-C does: what
    it has started is then ended too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def enter_own_network(settings: dict[str, str]) -> None:
    """Move this process and its children into a network namespace that holds only a loopback, with
    kernel `settings` (names below /proc/sys) that end with it. Raises OSError without the right
    to."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace; it takes root")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
    for name, value in settings.items():
        (PROC / "sys" / name).write_text(value)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty when it is gone."""
    return _read(PROC / str(pid) / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
