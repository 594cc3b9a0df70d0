"""Measures a record processor's cost from a worker's raw batch to metric rows.

    python benchmarks/record_processing.py [--requests N] [--rounds N] [--profile]

Prints CPU microseconds per request and per further chunk. Each is also a ratio to the minimum work
for a request or a chunk in Python: decoding one event's JSON with msgspec. Compare ratios between
machines, and between busy and quiet times of one machine.
"""

import argparse
import cProfile
import pstats
from collections.abc import Callable
from time import process_time_ns

import msgspec

from aiperf_svc.adapters.inference.raw_records import BATCH_BYTES, BATCH_FRAGMENTS
from aiperf_svc.adapters.inference.stamped_reads import FRAGMENT_BYTES
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.records.assembly import RecordAssembler
from aiperf_svc.core.records.batch_builder import FinishedRequests
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.records import FRAGMENT, READ, Flag, Framing
from aiperf_svc.services.record_processor import GATHERED_REQUESTS

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
START_WALL_NS = 1_795_227_878_942_879_812
MS_NS = 10**6


def event(request: int, choices: str, usage: str = "") -> bytes:
    """Return one event in its own chunk. As on a real server, its id is that of the request."""
    data = (
        f'data: {{"id":"chatcmpl-{request:032x}","object":"chat.completion.chunk",'
        f'"created":1795227878,"model":"some/Model-8B-Instruct","choices":[{choices}]{usage}}}\n\n'
    )
    return b"%x\r\n%b\r\n" % (len(data), data.encode())


def response(request: int, tokens: int) -> list[bytes]:
    """Return the reads of one streamed response: the head with the first token, then the others."""
    reads = [
        event(
            request,
            f'{{"index":0,"delta":{{"content":" word{i}"}},"logprobs":null,"finish_reason":null}}',
        )
        for i in range(tokens)
    ]
    counts = f'"prompt_tokens":550,"completion_tokens":{tokens},"total_tokens":{550 + tokens}'
    usage = f',"usage":{{{counts}}}'
    reads[0] = HEAD + reads[0]
    reads[-1] += event(request, '{"index":0,"delta":{},"finish_reason":"stop"}')
    reads[-1] += event(request, "", usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return reads


class Packer:
    """Packs responses like a worker."""

    def __init__(self) -> None:
        self.batches: list[RawBatch] = []
        self._clear()

    def _clear(self) -> None:
        self._fragments, self._reads, self._bodies = bytearray(), bytearray(), bytearray()

    def add(self, request: int, reads: list[bytes]) -> None:
        """Add one request in as many fragments as it needs."""
        start = START_WALL_NS + request * 25_000
        pending: list[tuple[int, bytes]] = []
        part = 0
        for number, data in enumerate(reads):
            pending.append((start + (20 + 5 * number) * MS_NS, data))
            is_final = number == len(reads) - 1
            if is_final or sum(len(data) for _, data in pending) >= FRAGMENT_BYTES:
                self._pack(request, part, start, pending, is_final)
                pending, part = [], part + 1

    def _pack(
        self, request: int, part: int, start: int, reads: list[tuple[int, bytes]], is_final: bool
    ) -> None:
        end, size = reads[-1][0], sum(len(data) for _, data in reads)
        flags = Flag.STREAMED | Flag.LAST_TURN | Flag.REUSED | (Flag.FINAL if is_final else 0)
        # fmt: off
        self._fragments += FRAGMENT.pack(
            request, request if is_final else 0, request, start - 3_000, start, start + 20_000,
            start + 20 * MS_NS, end if is_final else 0, 0, 0, 1_800,
            len(HEAD), len(reads), size, 0, request % 1_000, 550, part, 0, 200, flags,
            Phase.PROFILING, Outcome.COMPLETED, 0, Framing.CHUNKED, -1,
        )
        # fmt: on
        for stamp, data in reads:
            self._reads += READ.pack(stamp, stamp - 50_000, stamp + 40_000, len(data))
            self._bodies += data
        rows = len(self._fragments) // FRAGMENT.size
        if len(self._bodies) >= BATCH_BYTES or rows >= BATCH_FRAGMENTS:
            self.flush()

    def flush(self) -> None:
        """End the batch."""
        if self._fragments:
            parts = bytes(self._fragments), bytes(self._reads), bytes(self._bodies)
            self.batches.append(RawBatch("run", "worker-0", 1, len(self.batches) + 1, *parts))
            self._clear()


def batches_of(requests: int, tokens: int) -> list[RawBatch]:
    """Return batches of requests with this many tokens, interleaved as little as possible."""
    packer = Packer()
    for request in range(1, requests + 1):
        packer.add(request, response(request, tokens))
    packer.flush()
    return packer.batches


def new_assembler() -> RecordAssembler:
    """Return an assembler like a record processor's."""
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1", "model": "m", "streaming": True},
            "load": {"concurrency": 1, "requests": 1},
        }
    )
    return RecordAssembler(config)


def process(batches: list[RawBatch]) -> int:
    """Process the batches like a record processor and return the number of records."""
    assembler = new_assembler()
    count = 0
    gathered: FinishedRequests | None = None
    for batch in batches:
        finished = assembler.parse(batch, worker_rank=0)
        if gathered is None:
            gathered = finished
        else:
            gathered.add(finished)
        if len(gathered) >= GATHERED_REQUESTS or batch is batches[-1]:
            count += sum(len(p.rows) for p in assembler.parts(gathered, wants_lines=True))
            gathered = None
    return count


def cpu_us(work: Callable[[], object], rounds: int) -> float:
    """Return the minimum CPU time of one call."""
    best = 1 << 62
    for _ in range(rounds):
        begin = process_time_ns()
        work()
        best = min(best, process_time_ns() - begin)
    return best / 1e3


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--requests", type=int, default=2_000)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--tokens", type=int, default=101)
    arguments.add_argument("--profile", action="store_true", help="where the time goes")
    options = arguments.parse_args()
    requests, tokens, rounds = options.requests, options.tokens, options.rounds

    short, long = batches_of(requests, 1), batches_of(requests // 20, tokens)
    assert process(short) == requests
    data = event(1, '{"index":0,"delta":{"content":" word"},"finish_reason":null}')[10:-4]
    decode = msgspec.json.Decoder().decode
    reference = cpu_us(lambda: [decode(data) for _ in range(1_000)], rounds * 5) / 1_000
    one_token = cpu_us(lambda: process(short), rounds) / requests
    many_tokens = cpu_us(lambda: process(long), rounds) / (requests // 20)
    for name, value in (
        ("reference: one event's JSON", reference),
        ("one-token request", one_token),
        ("further chunk", (many_tokens - one_token) / (tokens - 1)),
    ):
        print(f"{name:34} {value:8.2f} µs {value / reference:7.2f} x reference")
    if options.profile:
        for batches in (short, long):
            profile = cProfile.Profile()
            profile.runcall(process, batches)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
