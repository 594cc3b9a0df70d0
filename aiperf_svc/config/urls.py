"""The address in a URL."""

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """Host and port to connect to."""

    host: str
    port: int
    is_tls: bool


def address_of(url: str) -> Address:
    """Return the address of an http or https URL, with the scheme's default port if it has none."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Address(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine, without a look-up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
