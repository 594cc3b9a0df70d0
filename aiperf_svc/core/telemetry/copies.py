"""Finds pages that say the same of the same servers under URLs that do not show it, such as two
addresses of one server, or all URLs of a gateway. Their sums would count a server several times.

A page is recognized by what only one server can say: when it began to count, or the exact times
that it has spent on its requests. Counts of requests and tokens prove nothing: replicas under the
same load have the same.

The times spent differ between two reads of a busy server. That both pages had the same times at
the same moment once, be it before the load, is enough: times of replicas are never the same again.
"""

from collections.abc import Iterable, Iterator, Sequence

from aiperf_svc.core.telemetry.identity import Mark
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import Series

READ_NS = 5_000_000_000
"""Longest time for which a page is on its way: values that it had at another time are not of the
same moment."""
_NEVER = 2**63 - 1


def each_server_once(
    logs: Iterable[SourceLog], finder: "CopyFinder | None" = None
) -> list[SourceLog]:
    """Return the sources without those that repeat what another one says. With the same `finder`
    at each call, only new pages are looked at."""
    known = list(logs)
    instead = (finder or CopyFinder()).repeated(known)
    return [log for log in known if log not in instead]


class CopyFinder:
    """Remembers which pages have said the same."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[SourceLog, int]] = {}
        """Times spent to the source that had them, and the number of them there."""
        self._read: dict[SourceLog, int] = {}
        """How many of the times of a source are known."""
        self._same: dict[SourceLog, SourceLog] = {}
        """A source to another one that had the same times."""

    def repeated(self, logs: Sequence[SourceLog]) -> dict[SourceLog, SourceLog]:
        """Return each source that repeats what another one says, with that one. A source that the
        user named goes before one that nobody named."""
        kept = _Kept()
        found: dict[SourceLog, SourceLog] = {}
        ordered = sorted((log for log in logs if log.portable), key=lambda each: each.is_guess)
        for log in ordered:
            self._take(log)
        for log in ordered:
            same = kept.named_instead(log) or next(
                (each for each in kept.candidates(log, self._first(log)) if _is_same(log, each)),
                None,
            )
            if same is None:
                kept.add(log, self._first(log))
            else:
                found[log] = same
        return found

    def _take(self, log: SourceLog) -> None:
        """Compare the times spent that are new with those of all other sources."""
        begin = self._read.get(log, 0)
        for place, spent in enumerate(log.spent[begin:], start=begin):
            other, there = self._seen.setdefault(spent, (log, place))
            if other is not log and _are_of_one_moment(log, place, other, there):
                one, another = self._first(log), self._first(other)
                if one is not another:
                    self._same[one] = another
            elif other is not log:
                self._seen[spent] = log, place
        self._read[log] = len(log.spent)

    def _first(self, log: SourceLog) -> SourceLog:
        """Return the source that stands for all that had the same times."""
        while (other := self._same.get(log)) is not None:
            log = other
        return log


class _Kept:
    """The sources that are counted, by what finds those that repeat them."""

    def __init__(self) -> None:
        self._named: dict[bool, SourceLog] = {}
        """By whether it has several servers, the first source that the user named."""
        self._created: dict[tuple[Series, float], list[SourceLog]] = {}
        self._by_times: dict[SourceLog, list[SourceLog]] = {}

    def add(self, log: SourceLog, first: SourceLog) -> None:
        if not log.is_guess:
            self._named.setdefault(log.has_several_servers, log)
        for item in log.marks(Mark.CREATED).items():
            self._created.setdefault(item, []).append(log)
        self._by_times.setdefault(first, []).append(log)

    def named_instead(self, log: SourceLog) -> SourceLog | None:
        """Return a source that the user named, where a guess has the same servers by other means:
        one of both tells servers apart."""
        return self._named.get(not log.has_several_servers) if log.is_guess else None

    def candidates(self, log: SourceLog, first: SourceLog) -> Iterator[SourceLog]:
        """Yield the sources that may be the same."""
        for item in log.marks(Mark.CREATED).items():
            yield from self._created.get(item, ())
        yield from self._by_times.get(first, ())


def _are_of_one_moment(one: SourceLog, here: int, other: SourceLog, there: int) -> bool:
    """Whether times spent were on both pages at once: no other ones followed on either before."""
    begin_ns = max(one.spent_since_ns[here], other.spent_since_ns[there])
    end_ns = min(_until_ns(one, here), _until_ns(other, there))
    return begin_ns < end_ns + READ_NS


def _until_ns(log: SourceLog, place: int) -> int:
    later = log.spent_since_ns[place + 1 : place + 2]
    return later[0] if later else _NEVER


def _is_same(log: SourceLog, other: SourceLog) -> bool:
    """Whether two pages that had something in common are of one server."""
    for mark in (Mark.CREATED, Mark.START):
        here, there = log.marks(mark), other.marks(mark)
        common = here.keys() & there.keys()
        if any(here[series] != there[series] for series in common):
            return False
        if mark is Mark.CREATED and common:
            return True
    return True
