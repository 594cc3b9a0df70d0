"""Resource use of processes and the kernel, read from /proc.

Memory of a process is its proportional set size: a shared page is divided among its users, so the
sizes of several processes can be added.
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
"""Kernel settings in /proc/sys that limit connections."""


def family(root: int) -> list[int]:
    """Return a process and all its living descendants."""
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
    """Return the memory of several processes. Ended processes count as 0."""
    total = 0
    for pid in pids:
        for line in _read(PROC / str(pid) / "smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of processes. Shared pages count once for each process."""
    return sum(int((_read(PROC / str(p) / "statm").split() or "00")[1]) * _PAGE for p in pids)


def status_bytes(pid: int, name: str) -> int:
    """Return a size from /proc/PID/status, such as VmHWM, or 0 if the process has ended."""
    found = re.search(rf"^{name}:\s+(\d+) kB", _read(PROC / str(pid) / "status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def cpu_s(pids: Iterable[int]) -> float:
    """Return the user and system CPU time of all processes since their start."""
    stats = (_stat(pid) for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) * _TICK_S


def command_line(pid: int) -> str:
    """Return the command line of a process, or an empty text if it has ended."""
    return _read(PROC / str(pid) / "cmdline").replace("\0", " ").strip()


def memory() -> dict[str, int]:
    """Return the machine's memory in bytes by the names of /proc/meminfo, and `TcpBuffers`."""
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
    """Return the kernel memory that grows with connections: objects, buffers, page tables."""
    now = memory()
    return now["Slab"] + now["TcpBuffers"] + now["PageTables"] + now.get("Percpu", 0)


def limits() -> dict[str, str]:
    """Return the kernel settings that limit connections in this network namespace."""
    return {name: " ".join(_read(PROC / "sys" / name).split()) or "-" for name in LIMITS}


def end_orderly() -> None:
    """Make SIGTERM and SIGINT (even if a shell ignores it) end this process like Ctrl-C, so that
    its child processes end too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def enter_own_network(settings: dict[str, str]) -> None:
    """Move this process and its children into a network namespace that has only a loopback
    interface, and apply kernel `settings` (names in /proc/sys) there. Raises OSError without the
    permission."""
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
    """Return the fields of /proc/PID/stat from the state on, or nothing after its end."""
    return _read(PROC / str(pid) / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
