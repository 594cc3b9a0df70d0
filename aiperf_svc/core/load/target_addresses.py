"""Which address of the target the next connection goes to.

A name may have many addresses: the pods of a service, or IPv6 and IPv4 of one host. New connections
take them in turn, so all of them get load. One whose connections fail is *down*: it gets a
connection only when all are down, or as a probe that no request waits for.

Whether an address that is silent is down cannot be known, so nobody waits for the end of the
connect's time-out (RFC 8305, "Happy Eyeballs", section 5): after `FALLBACK_NS` without a connection
since an attempt began, what waits for the attempt turns to another address. The attempt goes on,
and if it succeeds the address is up again.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aiperf_svc.protocol.messages import AddressUse

FALLBACK_NS: Final = 250_000_000
"""RFC 8305's delay between attempts."""
ROUND_TRIPS: Final = 3
"""Where even the fastest connection took long, so many times that instead."""
PROBE_AFTER_NS: Final = 1_000_000_000
"""From a failure to the first probe; doubled with each further failure."""
LONGEST_PROBE_PAUSE_NS: Final = 30_000_000_000


class SocketAddress(NamedTuple):
    """What a look-up gives, and from where to connect to it."""

    family: int
    address: tuple[Any, ...]
    """As the socket module takes it; host and port come first."""
    sources: tuple[str, ...] = ()
    """Local addresses to connect from, in turn; empty: the system's choice."""


class TargetAddress:
    """One address, and what became of the connections to it."""

    def __init__(self, socket_address: SocketAddress) -> None:
        self.socket_address = socket_address
        self.name = str(socket_address.address[0])
        self.connections = 0
        """Made."""
        self.requests = 0
        """Written on connections that are gone."""
        self.failures = 0
        """Connections that could not be made."""
        self.error = ""
        """Of the last failure."""
        self.is_down = False
        self.next_source = 0
        self.connected_mono_ns = 0
        """When a connection was made last."""
        self.failed_mono_ns = 0
        """When one failed last, a probe included."""
        self.failures_in_a_row = 0

    @property
    def probe_mono_ns(self) -> int:
        """When to try again whether it is up."""
        pause = PROBE_AFTER_NS << min(self.failures_in_a_row - 1, 5)
        return self.failed_mono_ns + min(pause, LONGEST_PROBE_PAUSE_NS)


class TargetAddresses:
    """The addresses of one target. All times are monotonic nanoseconds."""

    def __init__(self, addresses: Iterable[SocketAddress]) -> None:
        self.known: list[TargetAddress] = []
        """Every one there has been, for the account."""
        self.in_use: list[TargetAddress] = []
        self._fastest_ns: int | None = None
        self.wants_lookup = False
        """Whether connections failed since the last look-up."""
        self._turn = 0
        self.replace(addresses)

    @property
    def fallback_ns(self) -> int:
        """How long an attempt may take before it is overdue."""
        return max(FALLBACK_NS, ROUND_TRIPS * (self._fastest_ns or 0))

    @property
    def has_up(self) -> bool:
        """Whether any is not down."""
        return any(not address.is_down for address in self.in_use)

    def next(self) -> TargetAddress:
        """Where the next connection goes: to those that are up in turn, else to the one that failed
        longest ago."""
        in_use = self.in_use
        for _ in in_use:
            address = in_use[self._turn % len(in_use)]
            self._turn = (self._turn + 1) % len(in_use)
            if not address.is_down:
                return address
        return min(in_use, key=lambda each: each.failed_mono_ns)

    def connected(self, address: TargetAddress, *, began: int, now: int) -> None:
        """A connection was made."""
        address.connections += 1
        address.connected_mono_ns = now
        address.failures_in_a_row = 0
        address.is_down = False
        took_ns = now - began
        self._fastest_ns = took_ns if self._fastest_ns is None else min(self._fastest_ns, took_ns)

    def failed(self, address: TargetAddress, error: str, *, began: int, now: int) -> None:
        """A connection could not be made. An address that let in another one since the attempt
        began is busy and not down."""
        address.failures += 1
        address.failures_in_a_row += 1
        address.failed_mono_ns = now
        address.error = error
        address.is_down = address.connected_mono_ns < began
        self.wants_lookup = True

    def is_silent(self, address: TargetAddress, *, began: int) -> bool:
        """Whether an attempt that is overdue should not be waited for: nobody has been let in since
        it began, and there is another address to turn to."""
        if address.connected_mono_ns >= began:
            return False
        return any(not other.is_down for other in self.in_use if other is not address)

    def probes(self, now: int) -> list[TargetAddress]:
        """Those that are down and should be tried again, while others carry the load."""
        if len(self.in_use) == 1:
            return []
        return [each for each in self.in_use if each.is_down and each.probe_mono_ns <= now]

    def replace(self, addresses: Iterable[SocketAddress]) -> None:
        """A look-up gave these: new connections go to no others."""
        by_address = {each.socket_address: each for each in self.known}
        in_use = []
        for found in dict.fromkeys(addresses):
            address = by_address.get(found)
            if address is None:
                address = TargetAddress(found)
                self.known.append(address)
            in_use.append(address)
        assert in_use, "a target has an address"
        self.in_use = in_use
        self.begin_with(self._turn)
        self.wants_lookup = False

    def begin_with(self, number: int) -> None:
        """Which address the next connection goes to, counted round: workers that all began with the
        same one would give it all their first connections."""
        self._turn = number % len(self.in_use)


def add_up(uses: Iterable[AddressUse]) -> tuple[AddressUse, ...]:
    """What each address got from all workers together."""
    by_address: dict[str, AddressUse] = {}
    for use in uses:
        before = by_address.get(use.address, AddressUse(use.address))
        by_address[use.address] = AddressUse(
            address=use.address,
            connections=before.connections + use.connections,
            requests=before.requests + use.requests,
            failures=before.failures + use.failures,
            error=use.error or before.error,
            is_down=use.is_down or before.is_down,
        )
    return tuple(by_address.values())
