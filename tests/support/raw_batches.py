"""Builds the batches that a worker sends: responses split into reads, reads into fragments, and
fragments into batches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.lines.batches import lines_of
from aiperf_svc.core.lines.renderer import GAPS_TAG, LineRenderer, RequestStreams
from aiperf_svc.core.lines.request_line import RequestLine
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.records.batch_builder import MetricParts
from aiperf_svc.core.responses.http1 import ProtocolViolation, parse_head
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import MetricBatch, RawBatch
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag
from tests.support.small_configs import small_config

MS_NS = 10**6
START = 1_700_000_000 * 10**9
RUN = "bench-1"


def stamp_of(number: int) -> int:
    """Return the default stamp of a request's read `number`."""
    return START + (10 + number) * MS_NS


@dataclass
class Read:
    """One read: polled 0.2 ms before its stamp, and taken by 0.05 ms after it."""

    data: bytes
    stamp: int
    polled: int = 0
    taken: int = 0

    def pack(self) -> bytes:
        polled = self.polled or self.stamp - 200_000
        return READ.pack(self.stamp, polled, self.taken or self.stamp + 50_000, len(self.data))


@dataclass
class Request:
    """The worker's data about one request. A fragment ends after each read in `cuts`."""

    reads: list[Read] = field(default_factory=list)
    request_id: int = 1
    seq: int = 1
    index: int = 7
    turn: int = 0
    entry: int = 42
    phase: Phase = Phase.PROFILING
    outcome: Outcome = Outcome.COMPLETED
    error: int = 0
    message: str = ""
    flags: Flag = Flag.STREAMED
    input_tokens: int = 550
    requested_tokens: int = -1
    write: int = START
    """When the first byte was written."""
    cuts: tuple[int, ...] = ()

    @property
    def connecting_ns(self) -> tuple[int, int]:
        """Return the durations of the TCP connect and of the TLS handshake."""
        return (0, 0) if self.flags & Flag.REUSED else (300_000, 100_000)

    def fragments(self) -> list[tuple[bytes, bytes, bytes]]:
        """Return the fragment row, the read rows and the bytes of each fragment."""
        head_length, framing, status = _head_of(b"".join(read.data for read in self.reads))
        borders = [0, *self.cuts, len(self.reads)]
        ack = self._ack(head_length)
        packed = []
        for part, (begin, end) in enumerate(pairwise(borders)):
            reads = self.reads[begin:end]
            is_final = end == len(self.reads) and part == len(self.cuts)
            message = self.message.encode() if is_final else b""
            body = b"".join(read.data for read in reads)
            # fmt: off
            row = FRAGMENT.pack(
                self.request_id, self.seq if is_final else 0, self.index,
                self.write - 2 * MS_NS if self.write else START, self.write, self.write + 20_000,
                ack, self.reads[-1].stamp if self.reads else self.write + 500 * MS_NS,
                *self.connecting_ns, 2_048, head_length, len(reads), len(body), len(message),
                self.entry, self.input_tokens, part, self.turn, status,
                self.flags | (Flag.FINAL if is_final else 0), self.phase,
                self.outcome if is_final else 0, self.error if is_final else 0, framing,
                self.requested_tokens,
            )
            # fmt: on
            packed.append((row, b"".join(read.pack() for read in reads), body + message))
        return packed

    def _ack(self, head_length: int) -> int:
        seen = 0
        for read in self.reads:
            seen += len(read.data)
            if head_length and seen >= head_length:
                return read.stamp
        return 0


@lru_cache(maxsize=64)
def _head_of(raw: bytes) -> tuple[int, int, int]:
    """Return the length of the heads, the framing and the status as the worker finds them."""
    at = 0
    while True:
        end = raw.find(b"\r\n\r\n", at)
        if end < 0:
            return 0, 0, 0
        try:
            head = parse_head(raw[at : end + 4])
        except ProtocolViolation:
            return 0, 0, 0
        at = end + 4
        if head.status >= 200:
            return at, head.framing, head.status


def batch_of(
    *requests: Request | tuple[bytes, bytes, bytes],
    number: int = 1,
    is_resent: bool = False,
    sender: str = "worker-0",
    epoch: int = 5,
) -> RawBatch:
    """Return a batch of complete requests, or of single fragments."""
    packed: list[tuple[bytes, bytes, bytes]] = []
    for request in requests:
        packed += request.fragments() if isinstance(request, Request) else [request]
    rows, reads, bodies = (b"".join(parts) for parts in zip(*packed, strict=True))
    return RawBatch(RUN, sender, epoch, number, rows, reads, bodies, is_resent)


def config_of(*, streaming: bool = True, kind: str = "chat") -> BenchmarkConfig:
    """Return a config with the keys that an assembler reads."""
    dataset = {"kind": "single_turn", "file": "payloads.jsonl"} if kind == "raw" else {}
    return small_config(endpoint={"type": kind, "streaming": streaming}, dataset=dataset)


class Words:
    """The part of a tokenizer that an assembler needs. Each word is one token."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        """The texts that were counted."""

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        self.batches.append(list(texts))
        return [len(text.split()) for text in texts]


def assembler_of(
    *, streaming: bool = True, kind: str = "chat", counter: Any = None
) -> RecordAssembler:
    """Return an assembler for a run with such a config."""
    return RecordAssembler(config_of(streaming=streaming, kind=kind), counter=counter)


def record_of(request: Request, **options: object) -> MetricParts:
    """Return the only record of one request."""
    (parts,) = assembler_of(**options).process(batch_of(request), worker_rank=2)  # type: ignore[arg-type]
    assert len(parts.rows) == 1
    return parts


def lines_in(
    parts: Sequence[MetricParts],
    *,
    has_warmup: bool = False,
    most: int | None = None,
    streams: RequestStreams | None = None,
) -> list[dict[str, Any]]:
    """Return the exported lines of these requests."""
    batches = [
        MetricBatch(
            RUN,
            "record-processor-3",
            5,
            spans=part.spans,
            rows=part.rows.tobytes(),
            details=part.details,
        )
        for part in parts
        if len(part.rows)
    ]
    renderer = LineRenderer(run_id=RUN, has_warmup=has_warmup, streams=streams)
    text = lines_of(batches, renderer, most=most)
    assert not text or text.endswith(b"}\n")
    lines = text.splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    known = [msgspec.json.decode(line, type=RequestLine) for line in lines]
    assert msgspec.json.decode(msgspec.json.encode(known)) == found, "core/lines/request_line.py"
    return found


# --- responses ------------------------------------------------------------------------------------

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
UNFRAMED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def delta(request: int = 1, **members: object) -> bytes:
    """Return the JSON of an event with one choice whose delta has these members."""
    return event_json(request, [{"index": 0, "delta": members, "finish_reason": None}])


def finish(request: int = 1, reason: str = "stop") -> bytes:
    """Return the JSON of the event with the finish reason."""
    return event_json(request, [{"index": 0, "delta": {}, "finish_reason": reason}])


def usage(prompt: int = 500, completion: int = 20, request: int = 1, **more: object) -> bytes:
    """Return the JSON of the event with the usage."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return event_json(request, [], usage=counts)


def event_json(request: int, choices: list[object], **more: object) -> bytes:
    """Return the JSON of a chat event."""
    begin = {"id": f"chatcmpl-{request}", "object": "chat.completion.chunk", "model": "m"}
    return msgspec.json.encode(begin | {"choices": choices} | more)


def sse(data: bytes, newline: bytes = b"\n") -> bytes:
    """Return one server-sent event."""
    return b"data: " + data + newline * 2


def chunk(*parts: bytes) -> bytes:
    """Return one chunk for each part."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


DONE = sse(b"[DONE]")
LAST_CHUNK = b"0\r\n\r\n"


def stream(*events: bytes) -> bytes:
    """Return a complete chunked response with one event per chunk, and its end."""
    return STREAM_HEAD + b"".join(chunk(sse(data)) for data in events) + chunk(DONE) + LAST_CHUNK


def plain(
    body: bytes, status: bytes = b"200 OK", content_type: bytes = b"application/json"
) -> bytes:
    """Return a complete response with a Content-Length."""
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


def reads_of(*parts: bytes) -> list[Read]:
    """Return reads that are one millisecond apart."""
    return [Read(data, stamp_of(number)) for number, data in enumerate(parts)]


END = chunk(sse(finish())) + chunk(DONE) + LAST_CHUNK


def streamed(*stamps: int, tail: bytes = END) -> list[Read]:
    """Return reads with one content event each at these times in milliseconds."""
    token = chunk(sse(delta(content="a")))
    reads = [Read(token, stamp_of(stamp)) for stamp in stamps]
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += tail
    return reads


# --- output of an assembler --------------------------------------------------------------------


def process(*batches: RawBatch) -> list[MetricParts]:
    """Return the output of an assembler for these batches."""
    assembler = assembler_of()
    return [part for batch in batches for part in assembler.process(batch, worker_rank=0)]


def whole(parts: Sequence[MetricParts]) -> np.ndarray:
    """Return all rows."""
    return np.concatenate([part.rows for part in parts])


def pooled(parts: Sequence[MetricParts], phase: Phase = Phase.PROFILING) -> Histogram:
    """Return all gaps between chunks of one phase."""
    histogram = Histogram()
    for part in parts:
        for delta_ in part.histograms:
            assert delta_.tag == GAPS_TAG
            if delta_.phase == phase:
                histogram.merge(delta_)
    return histogram


def gaps_in(parts: Sequence[MetricParts]) -> dict[int, int]:
    """Return the number of gaps between chunks in each bucket, over all phases."""
    counts: Counter[int] = Counter()
    for part in parts:
        for delta_ in part.histograms:
            buckets = np.frombuffer(delta_.buckets, dtype="<i4").tolist()
            numbers = np.frombuffer(delta_.counts, dtype="<i8").tolist()
            counts.update(dict(zip(buckets, numbers, strict=True)))
    return dict(counts)
