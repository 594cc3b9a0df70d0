"""Data that a processor adds to its rows: gap histograms, error samples, line details."""

import msgspec
import numpy as np

from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.records import ErrorSample, MetricBatch
from aiperf_svc.protocol.records import METRIC_DTYPE
from tests.support.raw_batches import (
    LAST_CHUNK,
    MS_NS,
    Request,
    assembler_of,
    batch_of,
    lines_in,
    plain,
    pooled,
    process,
    reads_of,
    stamp_of,
    streamed,
)


def test_gaps_between_chunks_are_pooled_over_completed_requests() -> None:
    requests = [
        Request(reads=streamed(0, 3, 7), request_id=1, seq=1),
        Request(reads=streamed(5), request_id=2, seq=2),
        Request(reads=streamed(0, 11), request_id=3, seq=3),
        Request(reads=streamed(0, 100, tail=LAST_CHUNK), request_id=4, seq=4),
        Request(reads=streamed(0, 50), request_id=5, seq=5, outcome=Outcome.CANCELLED),
    ]
    histogram = pooled(process(batch_of(*requests)))
    gaps = np.array([3, 4, 11]) * MS_NS
    assert (histogram.total, histogram.sum_ns) == (3, gaps.sum())
    assert (histogram.min_ns, histogram.max_ns) == (gaps.min(), gaps.max())


def test_phases_are_kept_separate() -> None:
    requests = [
        Request(reads=streamed(0, 3), request_id=1, seq=1, phase=Phase.WARMUP),
        Request(reads=streamed(0, 9), request_id=2, seq=2),
    ]
    made = process(batch_of(*requests))
    assert pooled(made, Phase.WARMUP).sum_ns == 3 * MS_NS
    assert pooled(made, Phase.PROFILING).sum_ns == 9 * MS_NS
    assert made[0].rows["phase"].tolist() == [Phase.WARMUP, Phase.PROFILING]
    assert len(lines_in(made)) == 1


def test_errors_are_counted_by_phase_kind_and_status() -> None:
    def refused(request_id: int, body: bytes, phase: Phase = Phase.PROFILING) -> Request:
        return Request(
            reads=reads_of(plain(body, status=b"429 Slow")),
            request_id=request_id,
            phase=phase,
            outcome=Outcome.ERRORED,
            error=ErrorKind.STATUS,
        )

    (made,) = process(
        batch_of(
            refused(1, b"first"),
            refused(2, b"second"),
            refused(3, b"warm", Phase.WARMUP),
            Request(reads=reads_of(plain(b"{}", status=b"500 Oh")), request_id=4,
                    outcome=Outcome.ERRORED, error=ErrorKind.STATUS),
        )
    )  # fmt: skip
    assert made.errors == (
        ErrorSample(Phase.PROFILING, ErrorKind.STATUS, 429, "first", 2),
        ErrorSample(Phase.WARMUP, ErrorKind.STATUS, 429, "warm", 1),
        ErrorSample(Phase.PROFILING, ErrorKind.STATUS, 500, "{}", 1),
    )


def test_error_messages_do_not_shift_later_bytes() -> None:
    failed = Request(
        reads=[], request_id=1, outcome=Outcome.ERRORED, error=ErrorKind.CONNECT, message="refusé"
    )
    cut = Request(
        reads=streamed(0, 1, tail=b""),
        request_id=2,
        outcome=Outcome.ERRORED,
        error=ErrorKind.TIMEOUT,
        message="no response",
    )
    good = Request(reads=streamed(2, 6), request_id=3)
    (made,) = process(batch_of(failed, cut, failed, good))
    assert made.rows["chunks"].tolist() == [0, 2, 0, 2]
    assert made.rows["last_token_wall_ns"].tolist() == [0, stamp_of(1), 0, stamp_of(6)]
    assert [sample.message for sample in made.errors] == ["refusé", "no response"]


def test_parts_round_trip_in_a_metric_batch() -> None:
    (part,) = process(batch_of(Request(reads=streamed(0, 1))))
    names = ("details", "histograms", "errors", "spans", "lost")
    fields = {name: getattr(part, name) for name in names}
    message = MetricBatch("run", "record-processor-0", 1, rows=part.rows.tobytes(), **fields)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=MetricBatch)
    assert (np.frombuffer(decoded.rows, dtype=METRIC_DTYPE) == part.rows).all()
    assert (decoded.histograms, decoded.details) == (part.histograms, part.details)


def test_details_are_omitted_without_lines() -> None:
    batch = batch_of(Request(reads=streamed(0, 1)))
    (part,) = assembler_of().process(batch, worker_rank=0, wants_lines=False)
    assert part.details is None
    assert part.histograms
