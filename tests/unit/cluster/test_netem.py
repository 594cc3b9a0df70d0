"""Netem requests and responses of the kernel byte by byte, and a kernel without netem."""

import errno
import os
import struct
from typing import Any, cast

import pytest

from aiperf_svc.adapters.events.netem import (
    ALL,
    CONFIRM,
    CREATE,
    DELETE,
    EXCLUSIVE,
    LIST,
    MAKE,
    Counts,
    Network,
    check,
    counts_in,
    interface_of,
    netem_options,
    request,
)
from aiperf_svc.domain.errors import EnvironmentProblem

ROUTES = """Iface\tDestination\tGateway\tFlags
eth1\t0000020A\t00000000\t0001
eth0\t00000000\t0100020A\t0003
"""


def test_request_is_that_of_tc() -> None:
    # tc qdisc add dev (7) root netem delay 50ms loss 1% limit 1000000
    options = netem_options(50_000_000, 0.01)
    assert options == struct.pack("=6I", 781_250, 1_000_000, 42_949_673, 0, 0, 0)
    made = request(MAKE, CONFIRM | CREATE | EXCLUSIVE, 7, options)
    assert made[:16] == struct.pack("=IHHII", 76, 36, 0x605, 1, 0)
    assert made[16:36] == struct.pack("=IiIII", 0, 7, 0, 0xFFFFFFFF, 0)
    assert made[36:48] == struct.pack("=HH8s", 10, 1, b"netem")
    assert made[48:] == struct.pack("=HH", 28, 2) + options


@pytest.mark.parametrize(("kind", "flags"), [(DELETE, CONFIRM), (LIST, ALL)])
def test_other_requests_have_no_settings(kind: int, flags: int) -> None:
    made = request(kind, flags, 7)
    assert made == struct.pack("=IHHIIIiIII", 36, kind, flags | 1, 1, 0, 0, 7, 0, 0xFFFFFFFF, 0)


def listed(index: int, name: bytes, packets: int, dropped: int) -> bytes:
    """Return a queueing discipline as the kernel lists it."""
    head = struct.pack("=IiIII", 0, index, 0x8001, 0xFFFFFFFF, 2)
    kind = struct.pack("=HH8s", 5 + len(name), 1, name)
    basic = struct.pack("=HHQI4x", 20, 1, 1500 * packets, packets)
    queue = struct.pack("=HHIIIII", 24, 3, 0, 0, dropped, 0, 0)
    return head + kind + struct.pack("=HH", 48, 0x8007) + basic + queue


def test_counts_are_those_of_the_interface() -> None:
    found = [listed(1, b"netem", 1, 1), listed(7, b"netem", 900, 12)]
    assert counts_in(found, 7) == Counts(900, 12)
    assert counts_in(found, 8) is None
    assert counts_in([listed(7, b"pfifo", 900, 12)], 7) is None


@pytest.mark.parametrize(
    ("routes", "name"), [(ROUTES, "eth0"), (ROUTES.replace("eth0\t00000000", "eth0\t1"), "net1")]
)
def test_interface_is_that_of_the_default_route(routes: str, name: str) -> None:
    assert interface_of(routes, ["lo", "net1"]) == name


class Kernel:
    """A kernel that rejects a discipline with this error. 0 means that it accepts it."""

    def __init__(self, code: int) -> None:
        self._code, self.calls = code, list[str]()

    def add(self, index: int, **_: Any) -> None:
        self.calls.append("add")
        if self._code:
            raise OSError(self._code, os.strerror(self._code))

    def remove(self, index: int) -> None:
        self.calls.append("remove")


def test_kernel_with_netem_passes_the_check() -> None:
    kernel = Kernel(0)
    check(cast(Network, kernel), "lo", "node-1")
    assert kernel.calls == ["add", "remove"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOENT, "the kernel of node node-1 has no module sch_netem; load it there"),
        (errno.EEXIST, "interface lo of a pod on node node-1 has a queueing discipline of its own"),
        (errno.EPERM, "takes no netem: Operation not permitted"),
    ],
)
def test_kernel_without_netem_is_named(code: int, message: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        check(cast(Network, Kernel(code)), "lo", "node-1")
    assert message in str(caught.value)
