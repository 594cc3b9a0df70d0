"""Records: worker to record processor, and record processor to records manager."""

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.base import Message, Value
from aiperf_svc.protocol.messages.reports import HistogramDelta


class RawBatch(Message, frozen=True):
    """Fragments of requests, worker to record processor. Layouts in `protocol.records`."""

    number: int
    fragments: bytes
    reads: bytes
    bodies: bytes
    is_resent: bool = False


class SequenceSpan(Value, frozen=True):
    """Records `first..last` of one worker, all in this batch."""

    worker: str
    worker_epoch: int
    first: int
    last: int


class ErrorSample(Value, frozen=True):
    """Errors of one kind and target within a batch, with the first message."""

    phase: Phase
    kind: int
    status: int
    message: str
    count: int
    target: int = 0
    """Number of the target within the run. Messages may name its address."""


class LineDetails(Value, frozen=True):
    """Details of a batch's requests for the lines of profile_export.jsonl, beyond its rows."""

    gaps_ns: bytes
    """Gaps between content chunks, int64, of each completed request with more than one, in the
    order of the rows."""
    messages: tuple[str, ...]
    """Error text of each request with an error."""
    chunks: bytes = b""
    """Stamp and length of each read with bytes of a body, int64 pairs, of each request in the order
    of the rows; empty if HTTP traces are not recorded."""
    chunk_counts: bytes = b""
    """Number of these reads of each request, int64; empty as above."""


class MetricBatch(Message, frozen=True):
    """Finished requests, record processor to records manager."""

    spans: tuple[SequenceSpan, ...]
    rows: bytes
    """METRIC_DTYPE rows."""
    details: LineDetails | None = None
    """None if no more lines are needed."""
    histograms: tuple[HistogramDelta, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    lost: tuple[SequenceSpan, ...] = ()
    """Requests whose earlier fragments were lost with another record processor."""
