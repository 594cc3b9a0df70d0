"""HTTP traces in the lines of requests: reads of a response's body, however batched."""

import json
from typing import Any

from aiperf_svc.core.lines.batches import lines_of
from aiperf_svc.core.lines.renderer import LineRenderer
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.records.batch_builder import MetricParts
from aiperf_svc.protocol.messages.records import MetricBatch
from aiperf_svc.protocol.records import Flag
from tests.support.raw_batches import START, Read, Request, batch_of, config_of

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
EVENTS = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % i for i in range(3)]
EVENTS.append(b"data: [DONE]\n\n")
WHOLE = HEAD % len(b"".join(EVENTS))


def assembler(*, wants_traces: bool = True) -> RecordAssembler:
    config = config_of()
    artifacts = config.artifacts.model_copy(update={"http_trace": wants_traces})
    return RecordAssembler(config.model_copy(update={"artifacts": artifacts}))


def lines(*parts: MetricParts) -> list[dict[str, Any]]:
    batches = [
        MetricBatch(
            "run",
            "record-processor-0",
            1,
            spans=each.spans,
            rows=each.rows.tobytes(),
            details=each.details,
            histograms=each.histograms,
            errors=each.errors,
        )
        for each in parts
    ]
    text = lines_of(batches, LineRenderer(run_id="run", has_warmup=False))
    return [json.loads(line) for line in text.splitlines()]


def streamed(number: int, *, cuts: tuple[int, ...] = (), **fields: Any) -> Request:
    """Return a stream whose head is in a read of its own. Otherwise its last bytes would share a
    read with the first event."""
    data = [WHOLE[:-4], WHOLE[-4:] + EVENTS[0], *EVENTS[1:]]
    reads = tuple(Read(each, START + (10 + i) * MS) for i, each in enumerate(data))
    return Request(reads=reads, request_id=number, seq=number, index=number, cuts=cuts, **fields)  # type: ignore[arg-type]


def test_trace_has_the_body_reads_with_stamps() -> None:
    (parts,) = assembler().process(batch_of(streamed(1)), worker_rank=0)
    (line,) = lines(parts)
    found = line["trace_data"]
    times = [START + (11 + i) * MS for i in range(4)]
    assert found["response_chunks"] == [
        [at, len(event)] for at, event in zip(times, EVENTS, strict=True)
    ]
    assert found["response_chunks_count"] == 4
    assert found["response_bytes_total"] == len(b"".join(EVENTS))
    assert found["response_receive_start_ns"] == times[0]
    assert found["response_receive_end_ns"] == times[-1]
    assert found["response_headers_received_ns"] == times[0]
    sent = found["request_send_end_ns"]
    assert found["request_send_start_ns"] == START
    assert found["request_chunks"] == [[sent, 2_048]]
    assert found["sending_ns"] == sent - START == 20_000
    assert found["waiting_ns"] == times[0] - sent
    assert found["receiving_ns"] == 3 * MS
    assert found["duration_ns"] == times[-1] - START
    assert found["connecting_ns"] == 400_000
    assert "connection_reused_ns" not in found
    assert found["response_status_code"] == 200


def test_trace_does_not_depend_on_batches() -> None:
    (whole,) = assembler().process(batch_of(streamed(1), streamed(2)), worker_rank=0)
    pieces = [streamed(n, cuts=(2, 3)).fragments() for n in (1, 2)]
    made = assembler()
    parts = []
    for number, mixed in enumerate(zip(*pieces, strict=True)):
        parts += made.process(batch_of(*mixed, number=number), worker_rank=0)
    assert [each["trace_data"] for each in lines(*parts)] == [
        each["trace_data"] for each in lines(whole)
    ]


def test_request_without_response_has_no_chunks() -> None:
    reused = Request(
        reads=(),  # type: ignore[arg-type]
        request_id=1,
        seq=1,
        error=4,
        outcome=1,  # type: ignore[arg-type]
        message="reset",
        flags=Flag.REUSED,
    )
    (parts,) = assembler().process(batch_of(reused, streamed(2)), worker_rank=0)
    first, second = lines(parts)
    assert "response_chunks" not in first["trace_data"]
    assert first["trace_data"]["connection_reused_ns"] == START
    assert first["trace_data"]["error_timestamp_ns"] > START
    assert second["trace_data"]["response_chunks_count"] == 4


def test_traces_of_a_lost_worker_are_forgotten() -> None:
    made = assembler()
    made.process(batch_of(streamed(1, cuts=(2,)).fragments()[0]), worker_rank=0)
    made.drop_worker("worker-0")
    (parts,) = made.process(batch_of(streamed(1), epoch=6), worker_rank=0)
    (line,) = lines(parts)
    assert line["trace_data"]["response_chunks_count"] == 4


def test_trace_is_recorded_only_on_request() -> None:
    (parts,) = assembler(wants_traces=False).process(batch_of(streamed(1)), worker_rank=0)
    assert parts.details is not None
    assert parts.details.chunks == b""
    assert "trace_data" not in lines(parts)[0]
