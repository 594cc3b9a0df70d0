"""The time of each event and its uncertainty, however the bytes were read."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest

from aiperf_svc.core.lines.renderer import GAPS_TAG
from aiperf_svc.core.responses.fast_events import MAX_GAP_NS
from aiperf_svc.core.stats.histogram import delta_of
from aiperf_svc.domain.outcomes import Outcome, Phase
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    MS_NS,
    START,
    STREAM_HEAD,
    UNFRAMED_HEAD,
    Read,
    Request,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    lines_in,
    record_of,
    sse,
    stamp_of,
    stream,
    usage,
)

TOKENS = [delta(content=text) for text in ("The", " cat", " sät", " 🎉")]
TAIL = [finish(), usage(3, 4)]


def chunk_an_event() -> bytes:
    return stream(delta(role="assistant", content=""), *TOKENS, *TAIL)


def unframed(newline: bytes) -> bytes:
    data = [delta(role="assistant", content=""), *TOKENS, *TAIL, b"[DONE]"]
    return UNFRAMED_HEAD + b": hello" + newline * 2 + b"".join(sse(d, newline) for d in data)


def odd_chunks() -> bytes:
    """Return a stream with chunk borders within events, CRLF, and chunk extensions."""
    body = b"".join(sse(data, b"\r\n") for data in [*TOKENS, *TAIL]) + DONE
    cuts = [0, 3, 50, 51, 52, 120, 300, len(body)]
    parts = [body[a:b] for a, b in pairwise(cuts)]
    framed = b"".join(b"%x;n=v\r\n%b\r\n" % (len(part), part) for part in parts)
    return STREAM_HEAD + framed + LAST_CHUNK


RESPONSES = {
    "a chunk an event": chunk_an_event(),
    "no framing, LF": unframed(b"\n"),
    "no framing, CRLF": unframed(b"\r\n"),
    "no framing, CR": unframed(b"\r"),
    "odd chunks": odd_chunks(),
    "interim head": b"HTTP/1.1 100 Continue\r\n\r\n" + chunk_an_event(),
}
CONTENT_EVENTS = {
    "odd chunks": [sse(data, b"\r\n")[:-1] for data in TOKENS],
    "no framing, CRLF": [sse(data, b"\r\n")[:-1] for data in TOKENS],
    "no framing, CR": [sse(data, b"\r") for data in TOKENS],
}


def ends_of_content(name: str) -> list[int]:
    """Return the exclusive offsets at which each content event is complete."""
    raw = RESPONSES[name]
    if name == "odd chunks":
        # Found without parsing the framing, position by position in the raw bytes.
        places = list(range(len(STREAM_HEAD), len(raw)))
        at, body_places = len(STREAM_HEAD), []
        while True:
            eol = raw.index(b"\r\n", at)
            size = int(raw[at:eol].split(b";")[0], 16)
            if not size:
                break
            body_places += places[eol + 2 - len(STREAM_HEAD) :][:size]
            at = eol + 2 + size + 2
        body = bytes(raw[i] for i in body_places)
        return [body_places[body.index(e) + len(e) - 1] + 1 for e in CONTENT_EVENTS[name]]
    events = CONTENT_EVENTS.get(name, [sse(data) for data in TOKENS])
    return [raw.index(event) + len(event) for event in events]


def split(raw: bytes, cuts: Sequence[int]) -> list[bytes]:
    borders = [0, *cuts, len(raw)]
    return [raw[a:b] for a, b in pairwise(borders) if a < b]


COMPARED = (
    "first_token_wall_ns",
    "second_token_wall_ns",
    "last_token_wall_ns",
    "first_output_wall_ns",
    "chunks",
    "reads",
    "bytes_in",
    "usage_prompt_tokens",
    "usage_completion_tokens",
)


def check(name: str, variants: list[tuple[list[bytes], Sequence[int]]]) -> None:
    """For each way to cut into reads, and reads into fragments, check that the times are the stamps
    of the reads with the events' last bytes."""
    requests = [
        Request(
            request_id=number,
            seq=number,
            reads=[Read(data, stamp_of(read)) for read, data in enumerate(parts)],
            cuts=tuple(cuts),
        )
        for number, (parts, cuts) in enumerate(variants)
    ]
    (made,) = assembler_of().process(batch_of(*requests), worker_rank=0, wants_lines=False)
    assert (made.rows["outcome"] == Outcome.COMPLETED).all()
    ends = ends_of_content(name)
    rows = made.rows[list(COMPARED)].tolist()
    for row, (parts, cuts) in zip(rows, variants, strict=True):
        seen = list(accumulate(map(len, parts)))
        times = [stamp_of(bisect_left(seen, end)) for end in ends]
        expected = (
            times[0],
            times[1],
            times[-1],
            times[0],
            len(TOKENS),
            len(parts),
            seen[-1],
            3,
            4,
        )
        assert row == expected, (COMPARED, seen, cuts)


def first_cut(name: str) -> int:
    """Return the first possible cut, after the read with the head."""
    return RESPONSES[name].index(b"\r\n\r\n", 30) + 4


@pytest.mark.parametrize("name", RESPONSES)
def test_times_are_exact_for_every_read_end(name: str) -> None:
    raw = RESPONSES[name]
    check(name, [(split(raw, [cut]), ()) for cut in range(len(raw))])


@pytest.mark.parametrize("name", RESPONSES)
def test_times_are_exact_for_every_fragment_end(name: str) -> None:
    raw = RESPONSES[name]
    check(name, [(split(raw, [cut]), (1,)) for cut in range(first_cut(name), len(raw))])


@pytest.mark.parametrize("name", RESPONSES)
def test_times_are_exact_byte_by_byte(name: str) -> None:
    raw = RESPONSES[name]
    parts = split(raw, range(1, len(raw)))
    check(name, [(parts, ()), (parts, range(first_cut(name), len(parts)))])


@pytest.mark.parametrize("name", RESPONSES)
def test_times_are_exact_for_any_reads_and_fragments(name: str) -> None:
    raw, rng = RESPONSES[name], random.Random(name)
    variants: list[tuple[list[bytes], Sequence[int]]] = []
    for _ in range(150):
        places = range(first_cut(name), len(raw))
        parts = split(raw, sorted(rng.sample(places, rng.randint(1, 12))))
        count = rng.randint(0, len(parts) - 1)
        variants.append((parts, sorted(rng.sample(range(1, len(parts)), count))))
    check(name, variants)


# --- uncertainty ---------------------------------------------------------------------------------


def uncertainties(reads: list[Read], **options: object) -> tuple[int, int]:
    row = record_of(Request(reads=reads, **options)).rows[0]  # type: ignore[arg-type]
    return int(row["ttft_uncertainty_ns"]), int(row["last_uncertainty_ns"])


ONE, TWO = (chunk(sse(data)) for data in TOKENS[:2])
END = chunk(sse(finish())) + chunk(DONE) + LAST_CHUNK


def test_event_at_end_of_read_is_certain() -> None:
    reads = [Read(STREAM_HEAD + ONE, stamp_of(0)), Read(TWO, stamp_of(1)), Read(END, stamp_of(2))]
    assert uncertainties(reads) == (0, 0)


@pytest.mark.parametrize("cut", range(1, 5))
def test_end_of_a_chunk_belongs_to_its_event(cut: int) -> None:
    first = STREAM_HEAD + ONE
    reads = [
        Read(first[:-cut], stamp_of(0)),
        Read(first[-cut:], stamp_of(1)),
        Read(TWO, stamp_of(2)),
        Read(END, stamp_of(3)),
    ]
    assert uncertainties(reads) == (0, 0)


def test_earlier_event_in_read_dates_from_poll() -> None:
    reads = [
        Read(STREAM_HEAD, stamp_of(0)),
        Read(ONE + TWO, stamp_of(5), polled=stamp_of(5) - 3_000),
        Read(END, stamp_of(6)),
    ]
    assert uncertainties(reads) == (3_000, 0)


def test_uncertainty_is_bounded_by_the_previous_read() -> None:
    reads = [
        Read(STREAM_HEAD, stamp_of(5) - 700),
        Read(ONE + TWO, stamp_of(5), polled=stamp_of(5) - 3_000),
        Read(END, stamp_of(6)),
    ]
    assert uncertainties(reads) == (700, 0)
    assert uncertainties(reads, cuts=(1, 2)) == (700, 0)
    late = [
        Read(STREAM_HEAD + ONE, stamp_of(5) - 700),
        Read(TWO + END, stamp_of(5), polled=stamp_of(5) - 3_000),
    ]
    assert uncertainties(late) == (0, 700)
    assert uncertainties(late, cuts=(1,)) == (0, 700)


def test_event_is_never_before_its_request() -> None:
    reads = [Read(STREAM_HEAD + ONE + TWO + END, START + 900, polled=START - 5 * MS_NS)]
    assert uncertainties(reads) == (900, 900)


def test_stamp_older_than_its_poll_leaves_no_uncertainty() -> None:
    reads = [Read(STREAM_HEAD + ONE + TWO + END, stamp_of(1), polled=stamp_of(2))]
    assert uncertainties(reads) == (0, 0)


def test_last_content_is_uncertain_with_a_joined_tail() -> None:
    reads = [
        Read(STREAM_HEAD + ONE, stamp_of(0)),
        Read(TWO + END, stamp_of(1), polled=stamp_of(1) - 40_000),
    ]
    assert uncertainties(reads) == (0, 40_000)


@pytest.mark.parametrize("cuts", [(), (1,), (2,)])
def test_empty_text_after_last_token_moves_no_time(cuts: tuple[int, ...]) -> None:
    blank = chunk(sse(delta(content="")))
    reads = [
        Read(STREAM_HEAD + ONE, stamp_of(0)),
        Read(TWO, stamp_of(1)),
        Read(blank + END, stamp_of(2), polled=stamp_of(2) - 40_000),
    ]
    assert uncertainties(reads, cuts=cuts) == (0, 0)


def test_receive_lag_is_the_largest_of_all_reads() -> None:
    reads = [
        Read(STREAM_HEAD + ONE, stamp_of(0), taken=stamp_of(0) + 70),
        Read(TWO, stamp_of(1), taken=stamp_of(1) + 900),
        Read(END, stamp_of(2), taken=stamp_of(2) + 50),
    ]
    for cuts in ((), (1,), (2,), (1, 2)):
        assert record_of(Request(reads=reads, cuts=cuts)).rows["receive_lag_ns"] == [900]


# --- the gaps between tokens ---------------------------------------------------------------------


FRAGMENT_PER_READ = (1, 2, 3, 4, 5)
"""A stamp can only go backwards between fragments."""


@pytest.mark.parametrize("is_framed", [True, False], ids=["taken as known", "taken one by one"])
@pytest.mark.parametrize(
    ("gap", "cuts"),
    [
        (gap, cuts)
        for gap in (MAX_GAP_NS, MAX_GAP_NS + 1, 2**40 + 3, -1, -5 * MS_NS)
        for cuts in (FRAGMENT_PER_READ, (), (2,), (3, 4))
        if gap > 0 or cuts == FRAGMENT_PER_READ
    ],
)
@pytest.mark.parametrize("place", [0, 1, 4])
def test_gaps_are_exact_for_any_length_and_sign(
    place: int, gap: int, cuts: tuple[int, ...], is_framed: bool
) -> None:
    gaps = [1, 2**30, 0, 3 * MS_NS + 1, 10**9]
    gaps[place] = gap
    stamps = list(accumulate(gaps, initial=stamp_of(0)))
    event = sse(delta(content="a"))
    parts = [chunk(event) if is_framed else event for _ in stamps]
    parts[0] = (STREAM_HEAD if is_framed else UNFRAMED_HEAD) + parts[0]
    parts[-1] += END if is_framed else DONE
    reads = [Read(data, stamp) for data, stamp in zip(parts, stamps, strict=True)]
    made = record_of(Request(reads=reads, cuts=cuts))
    (row,) = made.rows
    assert row["chunks"] == len(stamps)
    assert row["first_token_wall_ns"] == row["first_output_wall_ns"] == stamps[0]
    assert (row["second_token_wall_ns"], row["last_token_wall_ns"]) == (stamps[1], stamps[-1])
    expected = delta_of(np.array(gaps, dtype=np.int64), phase=Phase.PROFILING, tag=GAPS_TAG)
    assert made.histograms == (expected,)
    (line,) = lines_in([made])
    assert line["metrics"][GAPS_TAG]["value"] == [ns / MS_NS for ns in gaps]


# --- what counts as a token ----------------------------------------------------------------------


def times_of(*events: bytes) -> tuple[int, int, int, int, int]:
    """Return the number of chunks, and the numbers of the events with the first token, the first
    output, the second and the last token."""
    parts = [STREAM_HEAD, *(chunk(sse(data)) for data in events), END]
    reads = [Read(data, stamp_of(number)) for number, data in enumerate(parts)]
    row = record_of(Request(reads=reads)).rows[0]
    names = ("first_token", "first_output", "second_token", "last_token")
    numbers = [int(row[f"{name}_wall_ns"] - stamp_of(0)) // MS_NS for name in names]
    return (int(row["chunks"]), *numbers)  # type: ignore[return-value]


def test_a_role_and_empty_content_are_no_tokens() -> None:
    role = delta(role="assistant", content="")
    nothing = delta(content=None)
    assert times_of(role, nothing, TOKENS[0], TOKENS[1], nothing) == (2, 3, 3, 4, 4)


def test_reasoning_is_a_token_but_no_output() -> None:
    thought = delta(reasoning_content="hm")
    assert times_of(thought, thought, TOKENS[0], TOKENS[1]) == (4, 1, 3, 2, 4)


def test_a_tool_call_is_a_token_and_output() -> None:
    call = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{"}}])
    assert times_of(delta(reasoning_content="hm"), call) == (2, 1, 2, 2, 2)


def test_an_event_with_reasoning_and_content_is_output() -> None:
    assert times_of(delta(reasoning_content="a", content="b"), TOKENS[0]) == (2, 1, 1, 2, 2)
