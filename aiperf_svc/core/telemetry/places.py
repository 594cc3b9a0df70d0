"""Finds pages that are one page of one server under several URLs, which would be counted several
times."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from aiperf_svc.config.urls import address_of
from aiperf_svc.core.telemetry.log import SourceLog


class Place(NamedTuple):
    """A source, and the addresses of its URL's host."""

    source: SourceLog
    addresses: frozenset[str]

    def is_same(self, other: "Place") -> bool:
        """Whether both are one page. Servers of different names may share an address, of a proxy
        that tells them apart by the name."""
        own, its = urlsplit(self.source.url), urlsplit(other.source.url)
        here, there = address_of(self.source.url), address_of(other.source.url)
        return (
            (here.is_tls, here.port, own.path, own.query)
            == (there.is_tls, there.port, its.path, its.query)
            and bool(self.addresses & other.addresses)
            and _may_be_one(here.host, there.host)
        )


def each_once(places: Sequence[Place]) -> dict[SourceLog, SourceLog]:
    """Return for each source the one to read in its place: itself, or another one that is the same
    page. Sources that the user named go before others, and those of one address before those of
    several."""
    kept: list[Place] = []
    found: dict[SourceLog, SourceLog] = {}
    for place in sorted(places, key=lambda each: (each.source.is_guess, len(each.addresses))):
        same = next((each for each in kept if each.is_same(place)), place)
        if same is place:
            kept.append(place)
        found[place.source] = same.source
    return {place.source: found[place.source] for place in places}


def _may_be_one(host: str, other: str) -> bool:
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
