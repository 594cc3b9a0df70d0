"""The URL of a server: its address, and what is wrong with it."""

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

_VISIBLE = re.compile(r"[!-~]*")
"""Characters allowed in a URL."""


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


def is_http(url: str) -> bool:
    """Return whether a URL is the address of an HTTP server."""
    try:
        return url.startswith(("http://", "https://")) and bool(address_of(url).host)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host name means this machine, without a DNS query."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def url_problem(url: str, *, remedy: str, of_query: str = "") -> str:
    """Return the problem of a server's base URL; empty if there is none. `remedy` is the advice for
    a key in the URL, `of_query` the advice for a query."""
    if not _VISIBLE.fullmatch(url):
        return f"{url!r}: expected no spaces and ASCII only (%20 in a path, xn-- in a host's name)"
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url!r}: expected an address such as http://host:8000 or http://[::1]:8000"
    if parts.password or parts.username:
        return (
            "holds a name or password, which would be kept in plain text in the results; " + remedy
        )
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        return f"{url!r}: expected a port from 1 to 65,535"
    if not parts.hostname:
        return f"{url!r}: names no host; expected http://host:port"
    if parts.query or parts.fragment:
        # The query may contain a key, which must not be logged.
        whole = f"{parts.scheme}://{parts.netloc}{parts.path}"
        return f"{whole!r}: expected no ? or # after the path{of_query}"
    return ""
