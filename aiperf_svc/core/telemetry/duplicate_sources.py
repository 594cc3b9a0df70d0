"""Finds sources that report the same servers, which would otherwise be counted several times.

Before any page is read, `unique_sources` compares URLs and the addresses of their hosts. Pages of
one server may still have unrelated URLs, such as two addresses of it, or all URLs of a gateway.
For these `CopyFinder` compares the contents.

A page is identified by values that no other server has: the time at which its counters started, or
the exact total times of its requests. Counts of requests and tokens are not evidence, because
replicas under the same load have equal counts.

The times spent change between two reads of a busy server. If two pages ever had the same times at
the same moment, even before the load, they are copies: the times of replicas never coincide.
"""

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from aiperf_svc.config.urls import address_of
from aiperf_svc.core.telemetry.log import Mark, SourceLog
from aiperf_svc.core.telemetry.page import Series

READ_NS = 5_000_000_000
"""Maximum transfer time of a page. Beyond it, values of two pages are not simultaneous."""
_NEVER = 2**63 - 1


# --- by URL and address --------------------------------------------------------------------------


class SourceAddress(NamedTuple):
    """A source, and the addresses of its URL's host."""

    source: SourceLog
    addresses: frozenset[str]

    def is_same(self, other: "SourceAddress") -> bool:
        """Return whether both are the same page. Servers with different names may share the address
        of a proxy that selects them by name."""
        own, its = urlsplit(self.source.url), urlsplit(other.source.url)
        address, other_address = address_of(self.source.url), address_of(other.source.url)
        return (
            (address.is_tls, address.port, own.path, own.query)
            == (other_address.is_tls, other_address.port, its.path, its.query)
            and bool(self.addresses & other.addresses)
            and _may_be_same_host(address.host, other_address.host)
        )


def unique_sources(addresses: Sequence[SourceAddress]) -> dict[SourceLog, SourceLog]:
    """Return for each source the one to read: itself, or another source of the same page. Sources
    configured by the user are preferred, then those with fewer addresses."""
    kept: list[SourceAddress] = []
    found: dict[SourceLog, SourceLog] = {}
    for address in sorted(addresses, key=lambda each: (each.source.is_guess, len(each.addresses))):
        same = next((each for each in kept if each.is_same(address)), address)
        if same is address:
            kept.append(address)
        found[address.source] = same.source
    return {address.source: found[address.source] for address in addresses}


def _may_be_same_host(host: str, other: str) -> bool:
    if _is_address(host) or _is_address(other):
        return True
    # A name with and without its domain is the same.
    short, long = sorted((f"{host}.", f"{other}."), key=len)
    return long.startswith(short)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


# --- by content ----------------------------------------------------------------------------------


def without_copies(
    logs: Iterable[SourceLog], finder: "CopyFinder | None" = None
) -> list[SourceLog]:
    """Return the sources without copies. With the same `finder` at each call, only new pages are
    compared."""
    known = list(logs)
    instead = (finder or CopyFinder()).copies(known)
    return [log for log in known if log not in instead]


class CopyFinder:
    """Remembers which sources had equal values."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[SourceLog, int]] = {}
        """Maps times spent to the source that had them and their position there."""
        self._read: dict[SourceLog, int] = {}
        """How many of a source's times have been compared."""
        self._same: dict[SourceLog, SourceLog] = {}
        """Maps a source to another one that had the same times."""

    def copies(self, logs: Sequence[SourceLog]) -> dict[SourceLog, SourceLog]:
        """Return each source that is a copy, with its original. A source configured by the user is
        the preferred original."""
        kept = _CountedSources()
        found: dict[SourceLog, SourceLog] = {}
        ordered = sorted((log for log in logs if log.portable), key=lambda each: each.is_guess)
        for log in ordered:
            self._compare_times(log)
        for log in ordered:
            same = kept.covering_source(log) or next(
                (each for each in kept.candidates(log, self._first(log)) if _is_same(log, each)),
                None,
            )
            if same is None:
                kept.add(log, self._first(log))
            else:
                found[log] = same
        return found

    def _compare_times(self, log: SourceLog) -> None:
        """Compare new times spent with those of all other sources."""
        begin = self._read.get(log, 0)
        for position, spent in enumerate(log.spent[begin:], start=begin):
            other, other_position = self._seen.setdefault(spent, (log, position))
            if other is not log and _are_simultaneous(log, position, other, other_position):
                one, another = self._first(log), self._first(other)
                if one is not another:
                    self._same[one] = another
            elif other is not log:
                self._seen[spent] = log, position
        self._read[log] = len(log.spent)

    def _first(self, log: SourceLog) -> SourceLog:
        """Return the representative of all sources with the same times."""
        while (other := self._same.get(log)) is not None:
            log = other
        return log


class _CountedSources:
    """The sources that are counted, indexed to find their copies."""

    def __init__(self) -> None:
        self._named: dict[bool, SourceLog] = {}
        """The first source configured by the user, by whether it has several servers."""
        self._created: dict[tuple[Series, float], list[SourceLog]] = {}
        self._by_times: dict[SourceLog, list[SourceLog]] = {}

    def add(self, log: SourceLog, first: SourceLog) -> None:
        if not log.is_guess:
            self._named.setdefault(log.has_several_servers, log)
        for item in log.marks(Mark.CREATED).items():
            self._created.setdefault(item, []).append(log)
        self._by_times.setdefault(first, []).append(log)

    def covering_source(self, log: SourceLog) -> SourceLog | None:
        """Return a user-configured source that covers the servers of a guessed one: exactly one of
        the two has labels for several servers."""
        return self._named.get(not log.has_several_servers) if log.is_guess else None

    def candidates(self, log: SourceLog, first: SourceLog) -> Iterator[SourceLog]:
        """Yield the sources that may be the same."""
        for item in log.marks(Mark.CREATED).items():
            yield from self._created.get(item, ())
        yield from self._by_times.get(first, ())


def _are_simultaneous(one: SourceLog, index: int, other: SourceLog, other_index: int) -> bool:
    """Return whether two pages had the same times spent simultaneously."""
    begin_ns = max(one.spent_since_ns[index], other.spent_since_ns[other_index])
    end_ns = min(_until_ns(one, index), _until_ns(other, other_index))
    return begin_ns < end_ns + READ_NS


def _until_ns(log: SourceLog, position: int) -> int:
    later = log.spent_since_ns[position + 1 : position + 2]
    return later[0] if later else _NEVER


def _is_same(log: SourceLog, other: SourceLog) -> bool:
    """Return whether two pages with common values belong to one server."""
    for mark in (Mark.CREATED, Mark.START):
        marks, other_marks = log.marks(mark), other.marks(mark)
        common = marks.keys() & other_marks.keys()
        if any(marks[series] != other_marks[series] for series in common):
            return False
        if mark is Mark.CREATED and common:
            return True
    return True
