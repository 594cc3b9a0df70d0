"""Several batches of one worker's finished requests as one.

A message costs the records manager about as much as sixty rows in it, so where many workers send
small batches the record processors gather them for a moment. Only batches of one worker are put
together: the manager takes or refuses a batch whole, and what it refuses is one worker's (a repeat,
or a worker that was lost). What is sent again after the death of a processor is never gathered.
"""

from collections.abc import Sequence

import numpy as np

from aiperf_svc.core.record_assembly import MetricParts
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import HistogramDelta


def merged(parts: Sequence[MetricParts]) -> MetricParts:
    """What `parts`, at least one and all of one worker, say together."""
    if len(parts) == 1:
        return parts[0]
    deltas: dict[tuple[Phase, str], list[HistogramDelta]] = {}
    for part in parts:
        for delta in part.histograms:
            deltas.setdefault((delta.phase, delta.tag), []).append(delta)
    return MetricParts(
        rows=np.concatenate([part.rows for part in parts]),
        jsonl=b"".join(part.jsonl for part in parts),
        histograms=tuple(_sum(each) for each in deltas.values()),
        errors=tuple(error for part in parts for error in part.errors),
        spans=tuple(span for part in parts for span in part.spans),
        lost=tuple(span for part in parts for span in part.lost),
    )


def _sum(deltas: list[HistogramDelta]) -> HistogramDelta:
    """A bucket may be named more than once: adding counts does not mind."""
    first = deltas[0]
    return HistogramDelta(
        phase=first.phase,
        tag=first.tag,
        buckets=b"".join(d.buckets for d in deltas),
        counts=b"".join(d.counts for d in deltas),
        total=sum(d.total for d in deltas),
        sum_ns=sum(d.sum_ns for d in deltas),
        min_ns=min(d.min_ns for d in deltas),
        max_ns=max(d.max_ns for d in deltas),
        sum_squares=sum(d.sum_squares for d in deltas),
    )
