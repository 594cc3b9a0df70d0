"""Decides which address of the target the next connection goes to.

A name may have many addresses: the pods of a service, or IPv6 and IPv4 of one host. New connections
use them in turn, so all of them get load. An address whose connections fail is *down*: it only gets
a connection if all are down, or as a probe that no request waits for.

An address that does not respond may be slow or down, and waiting for the connect timeout would take
too long (RFC 8305, "Happy Eyeballs", section 5). If an address has accepted no connection for
`FALLBACK_NS` since an attempt began, the requests that wait for the attempt use another address.
The attempt continues, and if it succeeds the address is up again.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.protocol.messages.reports import AddressUse


def shift_of(config: BenchmarkConfig) -> int:
    """Return an offset, depending on the seed, that is added to a credit's index to find its
    target. Targets are used in turn; all turns of a conversation use the same target."""
    return config.random_seed % len(config.endpoint.all_urls)


FALLBACK_NS: Final = 250_000_000
"""Delay between attempts, from RFC 8305."""
ROUND_TRIPS: Final = 3
"""The fallback waits at least this multiple of the fastest connect."""
PROBE_AFTER_NS: Final = 1_000_000_000
"""Time from a failure to the first probe; doubled with each further failure."""
MAX_PROBE_PAUSE_NS: Final = 30_000_000_000


class SocketAddress(NamedTuple):
    """Address from a DNS query, and the local addresses to connect from."""

    family: int
    address: tuple[Any, ...]
    """Address in the form of the socket module; host and port come first."""
    sources: tuple[str, ...] = ()
    """Local addresses to connect from, in turn; empty: the system's choice."""


class TargetAddress:
    def __init__(self, socket_address: SocketAddress) -> None:
        self.socket_address = socket_address
        self.name = str(socket_address.address[0])
        host = f"[{self.name}]" if ":" in self.name else self.name
        self.place = f"{host}:{socket_address.address[1]}"
        """Address with its port, since two targets may differ only in the port."""
        self.connections = 0
        """Number of connections made."""
        self.requests = 0
        """Requests written on connections that have been closed."""
        self.failures = 0
        """Number of failed connection attempts."""
        self.error = ""
        """Error of the last failure."""
        self.is_down = False
        self.next_source = 0
        self.connected_mono_ns = 0
        """Time of the last successful connection."""
        self.failed_mono_ns = 0
        """Time of the last failed connection, probes included."""
        self.failures_in_a_row = 0

    @property
    def probe_mono_ns(self) -> int:
        pause = PROBE_AFTER_NS << min(self.failures_in_a_row - 1, 5)
        return self.failed_mono_ns + min(pause, MAX_PROBE_PAUSE_NS)


class TargetAddresses:
    """The addresses of one target. All times are monotonic nanoseconds."""

    def __init__(self, addresses: Iterable[SocketAddress]) -> None:
        self.known: list[TargetAddress] = []
        """Every address that was ever used, for the accounts."""
        self.in_use: list[TargetAddress] = []
        self._fastest_ns: int | None = None
        self.wants_lookup = False
        """True if connections have failed since the last DNS query."""
        self._turn = 0
        self.replace(addresses)

    @property
    def fallback_ns(self) -> int:
        """Maximum time of an attempt before it is overdue."""
        return max(FALLBACK_NS, ROUND_TRIPS * (self._fastest_ns or 0))

    @property
    def has_up(self) -> bool:
        """True if at least one address is not down."""
        return any(not address.is_down for address in self.in_use)

    def next(self) -> TargetAddress:
        """Return the address for the next connection: those that are up in turn, or else the one
        with the oldest failure."""
        in_use = self.in_use
        for _ in in_use:
            address = in_use[self._turn % len(in_use)]
            self._turn = (self._turn + 1) % len(in_use)
            if not address.is_down:
                return address
        return min(in_use, key=lambda each: each.failed_mono_ns)

    def connected(self, address: TargetAddress, *, began: int, now: int) -> None:
        """Record a successful connection."""
        address.connections += 1
        address.connected_mono_ns = now
        address.failures_in_a_row = 0
        address.is_down = False
        took_ns = now - began
        self._fastest_ns = took_ns if self._fastest_ns is None else min(self._fastest_ns, took_ns)

    def failed(self, address: TargetAddress, error: str, *, began: int, now: int) -> None:
        """Record a failed connection. An address that has accepted another connection since the
        attempt began is busy, not down."""
        address.failures += 1
        address.failures_in_a_row += 1
        address.failed_mono_ns = now
        address.error = error
        address.is_down = address.connected_mono_ns < began
        self.wants_lookup = True

    def is_silent(self, address: TargetAddress, *, began: int) -> bool:
        """Return whether to stop waiting for an overdue attempt: the address has accepted no
        connection since it began, and another address is available."""
        if address.connected_mono_ns >= began:
            return False
        return any(not other.is_down for other in self.in_use if other is not address)

    def probes(self, now: int) -> list[TargetAddress]:
        """Return the addresses that are down and due for a probe, while others carry the load."""
        if len(self.in_use) == 1:
            return []
        return [each for each in self.in_use if each.is_down and each.probe_mono_ns <= now]

    def replace(self, addresses: Iterable[SocketAddress]) -> None:
        """Apply the result of a DNS query: new connections only use these addresses."""
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
        """Set the address of the first connection, modulo the number of addresses. Otherwise all
        workers would make their first connections to the same address."""
        self._turn = number % len(self.in_use)


def add_up(uses: Iterable[AddressUse]) -> tuple[AddressUse, ...]:
    """Add up the workers' uses of each address."""
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
