"""The token count of a record, and its source."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import CONTRADICTORY_TOKENS, Flag
from tests.support.raw_batches import (
    END,
    STREAM_HEAD,
    Request,
    Words,
    assembler_of,
    batch_of,
    chunk,
    delta,
    event_json,
    finish,
    plain,
    reads_of,
    record_of,
    sse,
    stream,
    usage,
)

TOLD = usage(500, 20, completion_tokens_details={"reasoning_tokens": 4})


def tokens_of(row: np.void) -> dict[str, int]:
    names = ("input", "output", "reasoning", "usage_prompt", "usage_completion")
    return {name: int(row[f"{name}_tokens"]) for name in names}


def test_tokens_without_a_tokenizer_are_the_servers() -> None:
    raw = stream(delta(content="one two"), finish(), TOLD)
    assert tokens_of(record_of(Request(reads=reads_of(raw))).rows[0]) == {
        "input": 550,
        "output": 20,
        "reasoning": 4,
        "usage_prompt": 500,
        "usage_completion": 20,
    }


def test_tokens_without_tokenizer_and_usage_are_unknown() -> None:
    request = Request(reads=reads_of(stream(delta(content="a"), finish())), input_tokens=-1)
    assert set(tokens_of(record_of(request).rows[0]).values()) == {-1}


def test_unknown_input_tokens_use_the_servers_count() -> None:
    request = Request(reads=reads_of(stream(delta(content="a"), finish(), TOLD)), input_tokens=-1)
    assert record_of(request).rows["input_tokens"] == [500]


def test_the_last_usage_counts() -> None:
    raw = stream(usage(1, 1), delta(content="a"), usage(1, 2), finish())
    assert record_of(Request(reads=reads_of(raw))).rows["usage_completion_tokens"] == [2]


def test_tokenizer_counts_a_batch_in_one_call() -> None:
    first = stream(
        delta(reasoning_content="hm hm"), delta(content=" one tw"), delta(content="o three"), TOLD
    )
    second = stream(delta(content="alone"), finish())
    third = plain(b"no", status=b"500 Error")
    counter = Words()
    assembler = assembler_of(counter=counter)
    batch = batch_of(
        Request(reads=reads_of(first), request_id=1, seq=1),
        Request(reads=reads_of(second), request_id=2, seq=2),
        Request(
            reads=reads_of(third),
            request_id=3,
            seq=3,
            outcome=Outcome.ERRORED,
            error=ErrorKind.STATUS,
        ),
    )
    (made,) = assembler.process(batch, worker_rank=0)
    assert made.rows["output_tokens"].tolist() == [5, 1, -1]
    assert made.rows["reasoning_tokens"].tolist() == [2, 0, -1]
    assert made.rows["usage_completion_tokens"].tolist() == [20, -1, -1]
    assert len(counter.batches) == 1


def generated(*texts: str) -> bytes:
    """Return a stream in the format of SGLang's `/generate`."""
    common = {"prompt_tokens": 7, "finish_reason": None}
    events = [
        json.dumps({"text": text, "meta_info": common | {"completion_tokens": index}}).encode()
        for index, text in enumerate(texts, 1)
    ]
    return stream(*events)


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (("one", "one two", "one two three"), 3),
        (("one", "one two", "one two", "one two three"), 3),
        (("one ", "one ", "two "), 3),
        # With so few increments, one text can be a prefix of the other.
        (("one ", "one two"), 3),
        (("a ", "a ", "a b "), 4),
    ],
)
def test_text_repeated_by_events_is_counted_once(texts: tuple[str, ...], tokens: int) -> None:
    request = Request(reads=reads_of(generated(*texts)), input_tokens=-1)
    (row,) = record_of(request, kind="raw", counter=Words()).rows
    assert (row["output_tokens"], row["usage_completion_tokens"]) == (tokens, len(texts))
    assert row["input_tokens"] == 7


def test_chat_text_is_never_treated_as_repeated() -> None:
    raw = stream(*(delta(content=text) for text in ("a ", "a b ", "a b c ")), finish())
    assert record_of(Request(reads=reads_of(raw)), counter=Words()).rows["output_tokens"] == [6]


def test_tokenizer_counts_tool_calls_and_text_over_fragments() -> None:
    call = delta(tool_calls=[{"function": {"name": " f", "arguments": " {}"}}])
    parts = [STREAM_HEAD + chunk(sse(delta(content="one t"))), chunk(sse(delta(content="wo")))]
    request = Request(reads=reads_of(*parts, chunk(sse(call)) + END), cuts=(1, 2))
    assert record_of(request, counter=Words()).rows["output_tokens"] == [4]


def test_interleaved_choices_are_counted_separately() -> None:
    parts = [
        event_json(1, [{"index": index % 2, "delta": {"content": text}, "finish_reason": None}])
        for index, text in enumerate(("one tw", "three fo", "o", "ur"))
    ]
    think = {"index": 1, "delta": {"reasoning_content": "hm hm"}, "finish_reason": None}
    together = [{"index": i, "delta": {"content": " x"}, "finish_reason": "stop"} for i in (0, 1)]
    events = [event_json(1, [think]), *parts, event_json(1, together), TOLD]  # type: ignore[arg-type]
    row = record_of(Request(reads=reads_of(stream(*events))), counter=Words()).rows[0]
    # `hm hm`, `one two x` and `three four x`. Mixed together, they would be other words.
    assert [row["output_tokens"], row["reasoning_tokens"]] == [8, 2]
    assert row["usage_completion_tokens"] == 20


def test_choices_of_a_body_are_counted_separately() -> None:
    body = {
        "choices": [
            {"index": i, "message": {"content": "a b"}, "finish_reason": "stop"} for i in range(3)
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 9},
    }
    request = Request(reads=reads_of(plain(json.dumps(body).encode())), flags=Flag(0))
    made = record_of(request, counter=Words(), streaming=False)
    assert made.rows["output_tokens"] == [6]


class Fragile(Words):
    """Fails for a batch with one of these words."""

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        if any("bad" in text for text in texts):
            raise OverflowError("too long for the tokenizer")
        return super().count_batch(texts)


def test_uncountable_text_is_one_error() -> None:
    good, bad = (stream(delta(content=text), finish()) for text in ("one two", "a bad one"))
    requests = [
        Request(reads=reads_of(raw), request_id=n, seq=n) for n, raw in enumerate((good, bad), 1)
    ]
    cut = Request(reads=reads_of(bad), request_id=3, seq=3, outcome=Outcome.CANCELLED)
    assembler = assembler_of(counter=Fragile())
    (parts,) = assembler.process(batch_of(*requests, cut), worker_rank=0)
    outcomes = [Outcome.COMPLETED, Outcome.ERRORED, Outcome.CANCELLED]
    assert parts.rows["outcome"].tolist() == outcomes
    assert parts.rows["error"].tolist() == [0, ErrorKind.MALFORMED, 0]
    assert parts.rows["output_tokens"].tolist() == [2, -1, -1]
    (sample,) = parts.errors
    text = "its tokens could not be counted: OverflowError: too long for the tokenizer"
    assert (sample.message, sample.count) == (text, 1)


@pytest.mark.parametrize(
    ("second", "prompt", "cached"),
    [
        ((12, 4), 12, CONTRADICTORY_TOKENS),
        ((9, 7), 9, CONTRADICTORY_TOKENS),
        ((9, 4), 9, 4),
        ((9, None), 9, 4),
    ],
)
def test_contradictory_prompt_counts_are_reported(
    second: tuple[int, int | None], prompt: int, cached: int
) -> None:
    def stated(tokens: int, found: int | None) -> bytes:
        if found is None:
            return usage(tokens, 1)
        return usage(tokens, 1, prompt_tokens_details={"cached_tokens": found})

    raw = stream(delta(content="a"), finish(), stated(9, 4), stated(*second))
    (row,) = record_of(Request(reads=reads_of(raw))).rows
    assert (row["usage_prompt_tokens"], row["cached_tokens"]) == (prompt, cached)


@pytest.mark.parametrize(
    ("last", "prompt", "cached"),
    [
        ({}, -1, -1),
        ({"input_tokens": 9}, 9, -1),
        ({"input_tokens": 1, "cache_read_input_tokens": 8}, 9, 8),
    ],
)
def test_prompt_of_zero_tokens_is_a_placeholder(
    last: dict[str, int], prompt: int, cached: int
) -> None:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    events = [
        {"type": "message_start", "message": {"usage": dict.fromkeys(names, 0)}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1} | last,
        },
    ]
    raw = stream(*(json.dumps(each).encode() for each in events))
    request = Request(reads=reads_of(raw), input_tokens=-1)
    (row,) = record_of(request, kind="messages").rows
    assert row["outcome"] == Outcome.COMPLETED
    assert (row["usage_prompt_tokens"], row["cached_tokens"]) == (prompt, cached)
    assert row["input_tokens"] == prompt
