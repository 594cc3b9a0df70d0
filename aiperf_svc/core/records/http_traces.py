"""Keeps the reads of each response until it ends, for the HTTP traces of `--export-http-trace`.

A trace has the bytes of the body only, as AIPerf's has: those of the status line and the headers
are taken off the first reads.
"""

import numpy as np

from aiperf_svc.core.lines.http_trace import Chunks
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.records import Flag, Rows

_NONE: Chunks = np.empty((0, 2), dtype=np.int64)


class OpenTraces:
    """The reads of all responses that have not ended."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, dict[int, tuple[int, Chunks]]]] = {}
        """Worker to its epoch and, by request, the bytes of its head and its reads."""

    def drop_worker(self, worker_id: str) -> None:
        """Forget the responses of a lost worker."""
        self._open.pop(worker_id, None)

    def take(self, batch: RawBatch, fragments: Rows, reads: Rows) -> list[Chunks]:
        """Take in the reads of a batch. Return the chunks of each fragment that ends its request,
        and none of any other, in the order of the fragments."""
        epoch, known = self._open.get(batch.sender, (0, {}))
        if epoch != batch.epoch:
            known = {}
            self._open[batch.sender] = (batch.epoch, known)
        rows = np.column_stack(
            (reads["stamp_wall_ns"].astype(np.int64), reads["length"].astype(np.int64))
        )
        found, first = [], 0
        for request_id, part, count, head_bytes, flags in zip(
            *(
                fragments[name].tolist()
                for name in ("request_id", "part", "reads", "body_offset", "flags")
            ),
            strict=True,
        ):
            mine = rows[first : first + count]
            first += count
            head, earlier = head_bytes, _NONE
            if part:
                head, earlier = known.pop(request_id, (head_bytes, _NONE))
            mine = np.concatenate((earlier, mine)) if len(earlier) else mine
            if flags & Flag.FINAL:
                found.append(_of_body(mine, head))
            else:
                known[request_id] = (head, mine)
                found.append(_NONE)
        return found


def _of_body(reads: Chunks, head_bytes: int) -> Chunks:
    """Return the reads without the bytes of the head; those that have no others are left out."""
    ends = np.cumsum(reads[:, 1])
    is_of_body = ends > head_bytes
    kept = reads[is_of_body].copy()
    if len(kept):
        kept[0, 1] = ends[is_of_body][0] - head_bytes
    return kept
