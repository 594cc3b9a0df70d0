"""The compiled parser finds exactly what the interpreted one finds in responses."""

import itertools
import random
import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from aiperf_svc.core.responses import fast_events
from aiperf_svc.core.responses import reader as response_reader
from aiperf_svc.core.responses.fast_events import MAX_GAP_NS, interpreted_take_tokens
from tests.support.raw_batches import (
    DONE,
    END,
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    Words,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    reads_of,
    sse,
    stamp_of,
    usage,
)

compiled = fast_events.compiled  # type: ignore[attr-defined]
needs_compiled = pytest.mark.skipif(compiled is None, reason="nothing is compiled: `make`")
SEEDS = 20
"""Sets of responses. Each set contains every rare kind of event about three times, so the sets show
an event in a twentieth of its places with a probability of 95%."""
WORDS = (" a", " the", " sät", " 🎉", "[", "]}", "\n\n", " data: ", "\\")


def framed(rng: random.Random, request: int) -> bytes:
    """Return one more token, usually in the form that nearly all servers write."""
    data = delta(request, content=rng.choice(WORDS))
    kind = rng.random()
    if kind < 0.85:
        return chunk(sse(data))
    event = sse(data)
    return rng.choice(
        (
            chunk(event + sse(delta(request, content="b"))),
            chunk(event[:9]) + chunk(event[9:]),
            chunk(event[:-1]) + chunk(event[-1:]),
            b"%X;n=v\r\n%b\r\n" % (len(event), event),
            b"000%x\r\n%b\r\n" % (len(event), event),
            b"00000000%x\r\n%b\r\n" % (len(event), event),
            b"%0200X\r\n%b\r\n" % (len(event), event),
            b'%x ; a="b;c" ; d\r\n%b\r\n' % (len(event), event),
            chunk(sse(choice_event(request, rng.randint(0, 3)))) * rng.randint(1, 5),
            chunk(sse(choice_event(request, rng.randint(0, 3), "length"))),
            chunk(sse(choice_event(request, 0, "abort"))),
            chunk(sse(choice_event(request, 0, ""))),
            chunk(sse(delta(request, content=[{"type": "text", "text": "part"}]))),
            chunk(sse(delta(request, function_call={"name": "f", "arguments": "{}"}))),
            chunk(
                sse(b'{"choices":[],"usage":{"prompt_tokens":5.0,"completion_tokens":7.0}}')
                + sse(b'{"choices":[],"usage":{"prompt_tokens":5}}')
            ),
            chunk(sse(data, b"\r\n")),
            chunk(b": comment\n\n") + chunk(event),
            chunk(sse(delta(request + 1, content="c"))),
            chunk(sse(delta(request, reasoning_content="hm"))) * rng.randint(1, 5),
            chunk(sse(delta(request, role="assistant", content=""))),
            chunk(sse(delta(request, content=""))),
            chunk(sse(usage(request=request))),
            chunk(b"data:" + data + b"\n\n"),
            chunk(b"data: " + data.replace(b"[", b"[\n", 1) + b"\n\n"),
            chunk(b"data: {broken\n\n"),
            chunk(b"event: error\n" + event),
            b"%x\r\n%b\r\n" % (len(event) + 1, event),
            b"zz\r\n%b\r\n" % event,
        )
    )


def choice_event(request: int, index: int, reason: str | None = None) -> bytes:
    """Return an event of one of several choices."""
    choice = {"index": index, "delta": {"content": "a"}, "finish_reason": reason}
    return b'{"id":"chatcmpl-%d","choices":[%b]}' % (request, msgspec.json.encode(choice))


GAPS = (0, 7, 10**6, MAX_GAP_NS, MAX_GAP_NS + 1, 10**13, -1, -(10**6), -(2**32))


def request_of(rng: random.Random, number: int) -> Request:
    body = b"".join(framed(rng, number) for _ in range(rng.randint(0, 40)))
    ends = (
        END,
        chunk(sse(finish(number))) + chunk(DONE) + LAST_CHUNK,
        chunk(sse(finish(number))) + b"00000\r\nTrailer: yes\r\n\r\n",
        chunk(DONE) + b"0;a=b\r\n\r\n",
        chunk(DONE),
        LAST_CHUNK,
    )
    raw = STREAM_HEAD + body + rng.choice(ends)
    borders = {0, len(STREAM_HEAD), len(raw)}
    # Without consuming the bytes, because the last byte of one may be the first of the next.
    borders |= {found.start() + 4 for found in re.finditer(rb"(?=\n\n\r\n)", raw)}
    kept = {at for at in borders if rng.random() < 0.7} | set(rng.sample(range(len(raw)), k=2))
    edges = sorted(kept | {0, len(raw)})
    parts = [raw[a:b] for a, b in itertools.pairwise(edges)]
    places = range(1, len(parts))
    cuts = tuple(sorted(rng.sample(places, k=min(len(places), rng.randint(0, 3)))))
    reads = reads_of(*parts)
    if rng.random() < 0.5:
        stamp = stamp_of(0)
        for read in reads:
            stamp += rng.choice(GAPS)
            read.stamp = stamp
    return Request(reads, request_id=number, seq=number, index=number, cuts=cuts)


def nothing_is_plain(data: bytes, at: int, *rest: object) -> tuple[int, int, bytes, int]:
    return at, rest[-3], b"", 0  # type: ignore[return-value]


def records_of(requests: list[Request], counter: Words | None) -> bytes:
    """Return all output of one processor for the requests, in batches."""
    assembler, records = assembler_of(counter=counter), []
    for first in range(0, len(requests), 5):
        batch = batch_of(*requests[first : first + 5], number=first + 1)
        records += [
            (parts.rows.tobytes(), parts.details, parts.histograms, parts.errors)
            for parts in assembler.process(batch, worker_rank=2)
        ]
    return msgspec.json.encode(records)


@needs_compiled
@pytest.mark.parametrize("counter", [None, Words()], ids=["times", "times and texts"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_compiled_and_interpreted_readers_agree(
    seed: int, counter: Words | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    requests = [request_of(rng, number) for number in range(1, 30)]
    records = records_of(requests, counter)
    monkeypatch.setattr(response_reader, "take_tokens", interpreted_take_tokens)
    assert records == records_of(requests, counter)
    monkeypatch.setattr(response_reader, "take_tokens", nothing_is_plain)
    assert records == records_of(requests, counter)


BETWEEN = b'\r\ndata: {"choices":['
REST = b'{"delta":{"content":"a"}}]}'
KNOWN = {REST: "a"}
STEPS = [
    pytest.param(interpreted_take_tokens, id="interpreted"),
    pytest.param(compiled, id="compiled", marks=needs_compiled),
]


def known_chunk(rest: bytes = REST) -> bytes:
    return chunk(BETWEEN[2:] + rest + b"\n\n")


def gaps_of(taken: bytes) -> list[int]:
    return np.frombuffer(taken, dtype=np.uint32).tolist()


def numbers(*values: int) -> memoryview:
    return np.array(values, dtype=np.int64).data


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "other",
    [
        b"",
        known_chunk()[:-1],
        known_chunk(b'{"delta":{"content":"b"}}]}'),
        known_chunk().replace(b"choices", b"chances"),
        known_chunk().replace(b"\n\n", b"\r\n"),
        b"0" + known_chunk()[1:],
        b"fffffff\r\n",
        b"ffffffffffffffffffff\r\n",
        b"0\r\n\r\n",
    ],
    ids=repr,
)
def test_cached_events_are_used_until_the_first_other(
    other: bytes, step: Callable[..., tuple[int, int, bytes, int]]
) -> None:
    one = known_chunk()
    data = b"before" + 3 * one + other
    after = 6 + 3 * len(one)
    # The first read ends within the second event, and the next one with the end of the third.
    ends, stamps = numbers(6 + len(one) + 9, after, len(data) + 1), numbers(100, 200, 300)
    texts = ["before"]
    at, read, gaps, size = step(data, 6, len(data), BETWEEN, KNOWN, ends, stamps, 0, 70, texts)
    assert (at, read, size) == (after, 1, 3)
    assert gaps_of(gaps) == [30, 100, 0]
    assert texts == ["before", "a", "a", "a"]
    assert step(data, at, len(data), BETWEEN, KNOWN, ends, stamps, 1, 200, None) == (at, 1, b"", 0)


@pytest.mark.parametrize("step", STEPS)
def test_the_size_of_the_texts_is_in_bytes(
    step: Callable[..., tuple[int, int, bytes, int]],
) -> None:
    rest = b'{"delta":{"content":"x"}}]}'
    data = known_chunk() + known_chunk(rest)
    known = KNOWN | {rest: " 🎉é"}
    ends, stamps = numbers(len(data)), numbers(9)
    *_, size = step(data, 0, len(data), BETWEEN, known, ends, stamps, 0, 9, None)
    assert size == 1 + 1 + 4 + 2


@needs_compiled
def test_compiled_parser_accepts_sizes_with_leading_zeros() -> None:
    assert compiled is not None
    one = known_chunk()
    data = one + b"0" * 500 + one + one.upper()[:2] + one[2:]
    ends, stamps = numbers(len(data)), numbers(9)
    at, _, gaps, _ = compiled(data, 0, len(data), BETWEEN, KNOWN, ends, stamps, 0, 9, None)
    assert (at, gaps_of(gaps)) == (len(data), [0, 0, 0])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("gap", [-1, MAX_GAP_NS + 1, -(2**32), 2**32, 2**62, -(2**62)])
def test_event_with_too_long_a_gap_is_left(
    gap: int, step: Callable[..., tuple[int, int, bytes, int]]
) -> None:
    one, texts = known_chunk(), list[str]()
    ends = numbers(len(one), 2 * len(one))
    first = 10 + MAX_GAP_NS
    at, read, gaps, _ = step(
        2 * one, 0, 2 * len(one), BETWEEN, KNOWN, ends, numbers(first, first + gap), 0, 10, texts
    )
    assert (at, read, gaps_of(gaps), texts) == (len(one), 0, [MAX_GAP_NS], ["a"])
    stamps = numbers(10 + gap, 10 + gap)
    none = step(2 * one, 0, 2 * len(one), BETWEEN, KNOWN, ends, stamps, 0, 10, texts)
    assert (none, texts) == ((0, 0, b"", 0), ["a"])


@pytest.mark.parametrize("step", STEPS)
def test_compiled_step_reads_nothing_after_stop(
    step: Callable[..., tuple[int, int, bytes, int]],
) -> None:
    one = known_chunk()
    data, ends, stamps = 2 * one, numbers(2 * len(one)), numbers(9)
    at, _, gaps, _ = step(data, 0, 2 * len(one) - 1, BETWEEN, KNOWN, ends, stamps, 0, 8, None)
    assert (at, gaps_of(gaps)) == (len(one), [1])


@pytest.mark.parametrize("step", STEPS)
def test_event_ends_before_the_end_of_its_chunk(
    step: Callable[..., tuple[int, int, bytes, int]],
) -> None:
    one = known_chunk()
    ends, stamps = numbers(len(one) - 2, len(one)), numbers(8, 9)
    _, read, gaps, _ = step(one, 0, len(one), BETWEEN, KNOWN, ends, stamps, 0, 0, None)
    assert (read, gaps_of(gaps)) == (0, [8])


@pytest.mark.parametrize("step", STEPS)
def test_event_after_the_last_read_is_an_error(
    step: Callable[..., tuple[int, int, bytes, int]],
) -> None:
    one = known_chunk()
    with pytest.raises(IndexError):
        step(one, 0, len(one), BETWEEN, KNOWN, numbers(len(one) - 3), numbers(9), 0, 0, None)


@needs_compiled
def test_invalid_positions_and_arrays_raise() -> None:
    assert compiled is not None
    one, some = known_chunk(), numbers(900)
    for at, stop, read in ((0, len(one) + 1, 0), (-1, len(one), 0), (2, 1, 0), (0, 1, -1)):
        with pytest.raises(IndexError):
            compiled(one, at, stop, BETWEEN, KNOWN, some, some, read, 0, None)
    with pytest.raises(IndexError):
        compiled(one, 0, len(one), BETWEEN, KNOWN, numbers(9, 9), some, 0, 0, None)
    with pytest.raises(TypeError):
        compiled(one, 0, len(one), BETWEEN, KNOWN, some, some, 0, 0, ())  # type: ignore[arg-type]
