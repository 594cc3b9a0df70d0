"""Tracks which records of each worker have arrived, and which are missing.

A worker numbers its records 1, 2, … as requests end. Usually they arrive in that order. After the
loss of a record processor some come twice and some late. For each worker, the ledger keeps the
number below which no record is missing and the spans beyond it.
"""

import msgspec

from aiperf_svc.protocol.messages.records import SequenceSpan


class _Worker(msgspec.Struct):
    epoch: int
    highest: int = 0
    islands: list[tuple[int, int]] = []
    """Spans that arrived beyond a gap, in ascending order, not adjacent."""


class RecordLedger:
    """The records that have arrived, by worker."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._fenced: dict[str, int] = {}
        self.late = 0
        """Records that came after their worker had been declared lost."""

    def accept(self, span: SequenceSpan) -> bool:
        """Add a span. Returns False if any of it is known already or its worker is fenced."""
        if self._fenced.get(span.worker) == span.worker_epoch:
            self.late += span.last - span.first + 1
            return False
        worker = self._workers.setdefault(span.worker, _Worker(span.worker_epoch))
        if worker.epoch != span.worker_epoch:
            return False
        if span.first == worker.highest + 1:
            worker.highest = span.last
            while worker.islands and worker.islands[0][0] == worker.highest + 1:
                worker.highest = worker.islands.pop(0)[1]
            return True
        if span.first <= worker.highest:
            return False
        if any(span.first <= last and first <= span.last for first, last in worker.islands):
            return False
        worker.islands.append((span.first, span.last))
        worker.islands.sort()
        worker.islands = _joined(worker.islands)
        return True

    def fence(self, worker: str, epoch: int) -> None:
        """Fence a lost worker: records that come from now on are late."""
        self._fenced[worker] = epoch

    def highest(self) -> dict[str, int]:
        """Return for each worker the number below which no record is missing."""
        return {name: worker.highest for name, worker in self._workers.items()}

    def missing(self, worker: str, last: int) -> int:
        """Return how many of a worker's records 1..last have not arrived."""
        known = self._workers.get(worker)
        if known is None:
            return last
        beyond = sum(min(end, last) - first + 1 for first, end in known.islands if first <= last)
        return max(0, last - known.highest - beyond)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [spans[0]]
    for first, last in spans[1:]:
        if first == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
