"""Finds pages that say the same of the same servers under URLs that do not show it, such as two
addresses of one server, or all URLs of a gateway. Their sums would count a server several times.

A page is recognized by what only one server can say: when it began to count, or the exact times
that it has spent on its requests. Counts of requests and tokens prove nothing: replicas under the
same load have the same.
"""

from collections.abc import Iterable, Sequence

from aiperf_svc.core.telemetry.identity import Mark
from aiperf_svc.core.telemetry.log import SourceLog


def each_server_once(logs: Iterable[SourceLog]) -> list[SourceLog]:
    """Return the sources without those that repeat what another one says."""
    known = list(logs)
    instead = repeated(known)
    return [log for log in known if log not in instead]


def repeated(logs: Sequence[SourceLog]) -> dict[SourceLog, SourceLog]:
    """Return each source that repeats what another one says, with that one. A source that the user
    named goes before one that nobody named."""
    kept: list[SourceLog] = []
    found: dict[SourceLog, SourceLog] = {}
    for log in sorted(logs, key=lambda each: each.is_guess):
        same = next((each for each in kept if _is_repeated(log, each)), None)
        if same is None:
            kept.append(log)
        else:
            found[log] = same
    return found


def _is_repeated(log: SourceLog, other: SourceLog) -> bool:
    if not (log.portable and other.portable):
        return False
    if log.is_guess and not other.is_guess and log.has_several_servers != other.has_several_servers:
        return True
    return _is_same_page(log, other)


def _is_same_page(log: SourceLog, other: SourceLog) -> bool:
    """Whether two pages are of one server, by their newest values."""
    for mark in Mark:
        here, there = log.marks(mark), other.marks(mark)
        common = here.keys() & there.keys()
        is_equal = all(here[series] == there[series] for series in common)
        if mark is Mark.CREATED and common:
            return is_equal
        if not is_equal:
            return False
    # Without a request there is no time that tells servers apart.
    return here.keys() == there.keys() and any(here.values())
