"""Where a URL leads."""

from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """What a connection is made to."""

    host: str
    port: int
    is_tls: bool


def address_of(url: str) -> Address:
    """Of an http or https URL, with the scheme's port where it names none."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Address(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)
