"""The compiled steps find in answers what the interpreted ones find, to the byte."""

import itertools
import random
from array import array

import msgspec
import pytest
from raw_batches import (
    DONE,
    END,
    LAST_CHUNK,
    STREAM_HEAD,
    Request,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    reads_of,
    sse,
    usage,
)

from aiperf_svc.core import answer_events, answer_reader, known_events
from aiperf_svc.core.endpoints.base import Delta
from aiperf_svc.core.known_events import interpreted_take_known, interpreted_take_plain

compiled = known_events.compiled
needs_compiled = pytest.mark.skipif(compiled is None, reason="nothing is compiled: `make`")
WORDS = (" a", " the", " sät", " 🎉", "[", "]}", "\n\n", " data: ", "\\")


def framed(rng: random.Random, request: int) -> bytes:
    """One more token, most often as nearly all servers write it."""
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
            chunk(sse(data, b"\r\n")),
            chunk(b": comment\n\n") + chunk(event),
            chunk(sse(delta(request + 1, content="c"))),
            chunk(sse(delta(request, reasoning_content="hm"))),
            chunk(sse(delta(request, role="assistant", content=""))),
            chunk(sse(usage(request=request))),
            chunk(b"data:" + data + b"\n\n"),
            chunk(b"data: " + data.replace(b"[", b"[\n", 1) + b"\n\n"),
            chunk(b"data: {broken\n\n"),
            chunk(b"event: error\n" + event),
            b"%x\r\n%b\r\n" % (len(event) + 1, event),
            b"zz\r\n%b\r\n" % event,
        )
    )


def request_of(rng: random.Random, number: int) -> Request:
    body = b"".join(framed(rng, number) for _ in range(rng.randint(0, 40)))
    ends = (END, chunk(sse(finish(number))) + chunk(DONE) + LAST_CHUNK, chunk(DONE), LAST_CHUNK)
    raw = STREAM_HEAD + body + rng.choice(ends)
    borders = {0, len(STREAM_HEAD), len(raw)}
    borders |= {at + 4 for at in range(len(raw)) if raw[at : at + 4] == b"\n\n\r\n"}
    kept = {at for at in borders if rng.random() < 0.7} | set(rng.sample(range(len(raw)), k=2))
    edges = sorted(kept | {0, len(raw)})
    parts = [raw[a:b] for a, b in itertools.pairwise(edges)]
    places = range(1, len(parts))
    cuts = tuple(sorted(rng.sample(places, k=min(len(places), rng.randint(0, 3)))))
    return Request(reads_of(*parts), request_id=number, seq=number, index=number, cuts=cuts)


def said_of(requests: list[Request]) -> bytes:
    """All that one processor says of them, in batches of some."""
    assembler, said = assembler_of(), []
    for first in range(0, len(requests), 5):
        batch = batch_of(*requests[first : first + 5], number=first + 1)
        said += [
            (parts.rows.tobytes(), parts.jsonl, parts.histograms, parts.errors)
            for parts in assembler.process(batch, worker_rank=2)
        ]
    return msgspec.json.encode(said)


@needs_compiled
@pytest.mark.parametrize("seed", range(40))
def test_the_same_is_said_of_all_kinds_of_answers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    requests = [request_of(rng, number) for number in range(1, 30)]
    said = said_of(requests)
    monkeypatch.setattr(answer_events, "take_known", interpreted_take_known)
    monkeypatch.setattr(answer_reader, "take_plain", interpreted_take_plain)
    assert said == said_of(requests)


COMMON = b'\r\ndata: {"choices":['
REST = b'{"delta":{"content":"a"}}]}'
KNOWN = {REST: Delta(content="a", is_plain=True)}


def known_chunk(rest: bytes = REST) -> bytes:
    return chunk(COMMON[2:] + rest + b"\n\n")


@needs_compiled
@pytest.mark.parametrize(
    "other",
    [
        b"",
        known_chunk()[:-1],
        known_chunk(b'{"delta":{"content":"b"}}]}'),
        known_chunk().replace(b"choices", b"chances"),
        known_chunk().replace(b"\n\n", b"\r\n"),
        b"0" + known_chunk()[1:],
        b"00000000" + known_chunk(),
        b"fffffff\r\n",
        b"ffffffffffffffffffff\r\n",
        b"0\r\n\r\n",
    ],
    ids=repr,
)
def test_all_known_events_are_taken_up_to_the_first_other_one(other: bytes) -> None:
    assert compiled is not None
    one = known_chunk()
    data = b"before" + 3 * one + other
    found: list[tuple[Delta, int]] = []
    at = compiled.take_known(data, 6, len(data), COMMON, KNOWN, found)
    assert at == 6 + 3 * len(one)
    assert found == [(KNOWN[REST], 6 + n * len(one) - 2) for n in (1, 2, 3)]


@needs_compiled
def test_nothing_beyond_the_stop_is_looked_at() -> None:
    assert compiled is not None
    one, found = known_chunk(), []
    data = 2 * one
    assert compiled.take_known(data, 0, 2 * len(one) - 1, COMMON, KNOWN, found) == len(one)
    with pytest.raises(IndexError):
        compiled.take_known(data, 0, len(data) + 1, COMMON, KNOWN, found)


STEPS = [
    pytest.param(interpreted_take_plain, id="interpreted"),
    pytest.param(compiled and compiled.take_plain, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("take_plain", STEPS)
def test_plain_events_get_the_stamps_of_their_reads(take_plain: object) -> None:
    plain, other = Delta(content="a", is_plain=True), Delta(finish_reason="stop")
    events = [(other, 3), (plain, 5), (plain, 10), (plain, 11), (other, 12), (plain, 20)]
    ends, stamps = [4, 10, 20], [100, 200, 300]
    times = array("q", [7])
    reached = take_plain(events, 1, ends, stamps, 0, 0, times)  # type: ignore[operator]
    assert reached == (4, 2, 11)
    assert times.tolist() == [7, 200, 200, 300]
    assert take_plain(events, 4, ends, stamps, 2, 11, times) == (4, 2, 11)  # type: ignore[operator]
    assert take_plain(events, 5, ends, stamps, 2, 11, times) == (6, 2, 20)  # type: ignore[operator]


@pytest.mark.parametrize("take_plain", STEPS)
def test_an_event_after_the_last_read_is_an_error(take_plain: object) -> None:
    times = array("q")
    with pytest.raises(IndexError):
        take_plain([(Delta(content="a", is_plain=True), 5)], 0, [4], [9], 0, 0, times)  # type: ignore[operator]
    assert not times
