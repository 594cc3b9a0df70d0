"""Delays or drops packets from a target with Linux's queueing discipline netem.

Two containers with NET_ADMIN in the pod's network run `run_container` (`plan/target.py`): one fails
before the server starts if the kernel lacks netem, the other runs next to the server. In the second
one, an event executes this module (`main`). It removes the discipline when its input ends, even if
the runner was killed. Only packets that leave the pod are affected: responses, and packets that
open and acknowledge connections.

The requests follow rtnetlink(7) and <linux/pkt_sched.h>, because images have no `tc`.
"""

import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.domain.errors import EnvironmentProblem

MAKE, DELETE, LIST = 36, 37, 38
"""RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC."""
REQUEST, CONFIRM, EXCLUSIVE, CREATE, ALL = 0x1, 0x4, 0x200, 0x400, 0x300
"""Flags of a request: NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE, NLM_F_DUMP."""
ERROR, DONE = 2, 3
"""Types of responses: NLMSG_ERROR, which is also an acknowledgement, and NLMSG_DONE."""
ROOT = 0xFFFFFFFF
"""TC_H_ROOT: the parent of an interface's only discipline."""
KIND, OPTIONS, STATS = 1, 2, 7
"""TCA_KIND, TCA_OPTIONS, TCA_STATS2; the last one contains TCA_STATS_BASIC and TCA_STATS_QUEUE."""
BASIC, QUEUE = 1, 3
NAME = b"netem\0"
TICK_NS = 64
"""Time unit of the kernel's disciplines (/proc/net/psched)."""
MAX_QUEUED_PACKETS = 1_000_000
"""Length of the packet queue. With the default of 1,000, a delay would drop packets."""
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_DISCIPLINE = struct.Struct("=BxxxiIII")
_NETEM = struct.Struct("=IIIIII")


class Counts(NamedTuple):
    """Packets that a discipline has passed on and dropped."""

    packets: int
    dropped: int


def request(kind: int, flags: int, index: int, options: bytes = b"") -> bytes:
    """Return a request about the root discipline of the interface with this index."""
    attributes = options and _attribute(KIND, NAME) + _attribute(OPTIONS, options)
    body = _DISCIPLINE.pack(socket.AF_UNSPEC, index, 0, ROOT, 0) + attributes
    return _HEADER.pack(_HEADER.size + len(body), kind, REQUEST | flags, 1, 0) + body


def netem_options(latency_ns: int, loss: float) -> bytes:
    """Return the settings of netem: a constant delay, and the share of lost packets."""
    return _NETEM.pack(latency_ns // TICK_NS, MAX_QUEUED_PACKETS, round(loss * 0xFFFFFFFF), 0, 0, 0)


def counts_in(listed: Sequence[bytes], index: int) -> Counts | None:
    """Return the counts of the interface's netem from a list of all disciplines, or None."""
    for body in listed:
        _, own, _, parent, _ = _DISCIPLINE.unpack_from(body)
        found = dict(_attributes(body[_DISCIPLINE.size :]))
        if own == index and parent == ROOT and found.get(KIND) == NAME:
            stats = dict(_attributes(found.get(STATS, b"")))
            _, packets = struct.unpack_from("=QI", stats[BASIC])
            _, _, dropped = struct.unpack_from("=III", stats[QUEUE])
            return Counts(packets, dropped)
    return None


class Network:
    """The root disciplines of the interfaces in this process's network namespace."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

    def close(self) -> None:
        """Close the socket; disciplines remain."""
        self._socket.close()

    def add(self, index: int, *, latency_ns: int = 0, loss: float = 0.0) -> None:
        """Add a netem to an interface. Raises OSError."""
        options = netem_options(latency_ns, loss)
        self._ask(request(MAKE, CONFIRM | CREATE | EXCLUSIVE, index, options))

    def remove(self, index: int) -> None:
        """Remove it. Raises OSError."""
        self._ask(request(DELETE, CONFIRM, index))

    def counts(self, index: int) -> Counts | None:
        """Return its counts; None if the interface has no netem. Raises OSError."""
        return counts_in(self._ask(request(LIST, ALL, index)), index)

    def _ask(self, data: bytes) -> list[bytes]:
        self._socket.send(data)
        found: list[bytes] = []
        while True:
            for kind, body in _responses(self._socket.recv(1 << 20)):
                if kind == ERROR:
                    (code,) = struct.unpack_from("=i", body)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                if kind in (ERROR, DONE):
                    return found
                found.append(body)


def check(network: Network, interface: str, node: str) -> None:
    """Add a netem to the interface and remove it again. Raises EnvironmentProblem if that fails."""
    index = socket.if_nametoindex(interface)
    try:
        network.add(index)
        network.remove(index)
    except OSError as error:
        raise EnvironmentProblem(_problem(error, interface, node)) from error


def _problem(error: OSError, interface: str, node: str) -> str:
    where = f"interface {interface} of a pod on node {node or 'unknown'}"
    match error.errno:
        case errno.ENOENT:
            return (
                f"events delay and loss: the kernel of node {node or 'unknown'} has no module "
                "sch_netem; load it there (modprobe sch_netem), or leave these events out"
            )
        case errno.EEXIST:
            return f"events delay and loss: {where} has a queueing discipline of its own"
    return f"events delay and loss: {where} takes no netem: {error.strerror}"


def interface_of(routes: str, names: Sequence[str]) -> str:
    """Return the interface of the default route in `/proc/net/route`; without a default route, the
    first of these names except the loopback."""
    for line in routes.splitlines()[1:]:
        name, target, *_ = line.split()
        if target == "00000000":
            return name
    return next((name for name in names if name != "lo"), "eth0")


def own_interface() -> str:
    """Return the interface through which this pod reaches others."""
    try:
        routes = Path("/proc/net/route").read_text()
    except OSError:
        routes = ""
    return interface_of(routes, [name for _, name in socket.if_nameindex()])


def run_container(action: str) -> int:
    """Check the kernel (`check`) or wait for SIGTERM (`wait`), and return the exit code. Raises
    EnvironmentProblem."""
    if action == "check":
        with closing(Network()) as network:
            check(network, own_interface(), os.environ.get("AIPERF_NODE", ""))
        return 0
    ends = {signal.SIGTERM, signal.SIGINT}
    # Process 1 of a container gets only signals that it handles.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Delay packets by the first argument in ns, or drop the share in the second argument. This
    lasts from the first line of the input to the second one or the end of the input, and at most
    for the seconds in the first line."""
    latency_ns, loss = int(arguments[0]), float(arguments[1])
    seconds = sys.stdin.readline()
    if not seconds:
        return 0
    with closing(Network()) as network:
        interface = own_interface()
        index = socket.if_nametoindex(interface)
        try:
            network.add(index, latency_ns=latency_ns, loss=loss)
        except OSError as error:
            print(_problem(error, interface, os.environ.get("AIPERF_NODE", "")), flush=True)
            return 0
        try:
            # The default action would leave the discipline in place.
            signal.signal(signal.SIGALRM, _end)
            signal.alarm(int(seconds))
            print("on", flush=True)
            sys.stdin.readline()
            signal.alarm(0)
            found = network.counts(index) or Counts(0, 0)
        finally:
            network.remove(index)
        print(f"off {found.packets} {found.dropped}", flush=True)
    return 0


def _end(*_: object) -> None:
    raise TimeoutError


def _attribute(kind: int, data: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        # The upper bits contain flags.
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : size]
        data = data[max(size + -size % 4, _ATTRIBUTE.size) :]


def _responses(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        size, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : size]
        data = data[max(size + -size % 4, _HEADER.size) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
