"""Different URLs of one page are recognised."""

import pytest

from aiperf_svc.core.telemetry.duplicate_sources import SourceAddress, unique_sources
from aiperf_svc.core.telemetry.log import SourceLog


def place(url: str, *addresses: str, is_guess: bool = False) -> SourceAddress:
    return SourceAddress(SourceLog(url, is_guess=is_guess), frozenset(addresses))


def read(*places: SourceAddress) -> list[str]:
    """Return the URLs that are read."""
    return [source.url for source in dict.fromkeys(unique_sources(places).values())]


NAMED = place("http://10.0.0.1/metrics", "10.0.0.1")


@pytest.mark.parametrize(
    "other",
    [
        place("http://10.0.0.1:80/metrics", "10.0.0.1", is_guess=True),
        place("http://server/metrics", "10.0.0.1", is_guess=True),
        place("http://server/metrics", "10.0.0.2", "10.0.0.1"),
    ],
    ids=["default port", "name", "name of several addresses"],
)
def test_page_under_two_urls_is_read_as_named(other: SourceAddress) -> None:
    assert read(other, NAMED) == read(NAMED, other) == ["http://10.0.0.1/metrics"]


def test_a_name_is_the_same_with_its_domain() -> None:
    short = place("http://server.lab/metrics", "10.0.0.1", is_guess=True)
    long = place("http://server.lab.svc.cluster.local/metrics", "10.0.0.1")
    assert read(short, long) == ["http://server.lab.svc.cluster.local/metrics"]


@pytest.mark.parametrize(
    "other",
    [
        place("https://10.0.0.1/metrics", "10.0.0.1"),
        place("http://10.0.0.1:8000/metrics", "10.0.0.1"),
        place("http://10.0.0.1/gpus", "10.0.0.1"),
        place("http://10.0.0.2/metrics", "10.0.0.2"),
    ],
    ids=["scheme", "port", "path", "address"],
)
def test_different_pages_are_read_each(other: SourceAddress) -> None:
    assert len(read(NAMED, other)) == 2


def test_names_behind_one_address_are_read_separately() -> None:
    names = ("http://a.example/metrics", "http://b.example/metrics")
    assert read(*(place(name, "10.0.0.1") for name in names)) == list(names)
