"""Series that tell which server a page is of."""

import re
from enum import Enum

from aiperf_svc.core.telemetry.page import Series

_SERVERS = ("instance", "server")
"""Labels by which a page tells servers apart: those of Prometheus' federation, and of routers."""
_SPENT = re.compile(r"(?!process_|python_|http_).*(?:seconds|duration).*_(?:sum|total|us)")
"""Without what reading a page takes: it differs from page to page."""


class Mark(Enum):
    """What a series tells about a page's server."""

    CREATED = "created"
    """When it began to count, in microseconds."""
    START = "start"
    """When its process began, in hundredths of a second: replicas may begin together."""
    SPENT = "spent"
    """The time that it has spent on its requests."""


def mark_of(series: Series) -> Mark | None:
    """Return what a series tells; None for most."""
    name = series.name
    if name.endswith("_created"):
        return Mark.CREATED
    if name == "process_start_time_seconds":
        return Mark.START
    return Mark.SPENT if _SPENT.fullmatch(name) else None


def names_a_server(series: Series) -> bool:
    """Return whether a series is that of one of several servers of its page."""
    return any(series.label(name) for name in _SERVERS)
