"""Which tokens were streamed and when, if the server's counts differ from its events."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import ErrorKind
from aiperf_svc.protocol.records import UNCOUNTED_TOKENS, Flag, Rows
from tests.support import fake_run
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Read,
    Request,
    Words,
    chunk,
    delta,
    event_json,
    finish,
    plain,
    reads_of,
    record_of,
    sse,
    stamp_of,
    stream,
    usage,
)


def metric(tag: str, rows: Rows) -> float:
    """Return a metric of the only row."""
    compute = CATALOG[tag].compute
    assert compute is not None
    (chunk_of_rows,) = PhaseRows(fake_run.columns_of(rows)).chunks()
    (value,) = compute(chunk_of_rows)
    return float(value)


def streamed(
    *events: bytes, at_ms: list[int] | None = None, kind: str = "chat", counter: Any = None
) -> Rows:
    """Return the row of a stream with one event per read at these times after the start."""
    times = at_ms or [100 + 10 * place for place in range(len(events))]
    reads = [
        Read(chunk(sse(event)), stamp_of(time - 10))
        for event, time in zip(events, times, strict=True)
    ]
    reads[0].data = STREAM_HEAD + reads[0].data
    reads.append(Read(chunk(DONE) + LAST_CHUNK, reads[-1].stamp))
    request = Request(reads=reads, input_tokens=-1, flags=Flag.STREAMED | Flag.REUSED)
    parts = record_of(request, kind=kind, counter=counter)
    assert parts.rows["error"] == [0]
    return parts.rows


def reasoned(total: int, reasoning: int, **more: Any) -> bytes:
    return usage(50, total, completion_tokens_details={"reasoning_tokens": reasoning}, **more)


TEXTS = [delta(content=" one") for _ in range(6)]


def test_inter_token_times_use_streamed_tokens_only() -> None:
    rows = streamed(*TEXTS, finish(), reasoned(1006, 1000))
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)
    assert metric("output_token_throughput_per_user", rows) == pytest.approx(100.0)
    assert metric("e2e_output_token_throughput", rows) == pytest.approx(6 / 0.150)
    assert metric("hidden_token_count", rows) == 1000
    assert metric("output_sequence_length", rows) == 1006
    assert metric("output_token_count", rows) == 6
    assert metric("time_to_first_token", rows) == 100


def test_hidden_tokens_are_output_of_a_tokenizer_too() -> None:
    rows = streamed(*TEXTS, finish(), reasoned(1006, 1000), counter=Words())
    assert metric("output_sequence_length", rows) == 1006
    assert metric("output_token_count", rows) == 6
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


@pytest.mark.parametrize("counter", [None, Words()])
def test_streamed_reasoning_is_not_hidden(counter: Any) -> None:
    thoughts = [delta(reasoning_content=" hm") for _ in range(4)]
    rows = streamed(*thoughts, *TEXTS, finish(), reasoned(10, 4), counter=counter)
    assert np.isnan(metric("hidden_token_count", rows))
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)
    assert metric("output_token_count", rows) == 6


def test_reasoning_inside_the_content_is_not_hidden() -> None:
    thoughts = [delta(content=" hm") for _ in range(4)]
    rows = streamed(*thoughts, *TEXTS, finish(), reasoned(10, 4))
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)
    assert np.isnan(metric("hidden_token_count", rows))


@pytest.mark.parametrize("counter", [None, Words()])
def test_marked_reasoning_in_few_events_is_not_hidden(counter: Any) -> None:
    """As MiniMax's API and SGLang's parser `minimax-append-think` send it in the content."""
    parts = [delta(content="<think> one two three"), delta(content=" </think> four five six")]
    rows = streamed(*parts, finish(), reasoned(8, 5), counter=counter)
    assert np.isnan(metric("hidden_token_count", rows))
    assert metric("inter_token_latency", rows) == pytest.approx(10.0 / 7)
    assert metric("output_sequence_length", rows) == 8


def test_marked_reasoning_of_a_whole_response_is_shown() -> None:
    message = {"content": "<think> one two three </think> four five six"}
    counts = {"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 5}}
    body = json.dumps({"choices": [{"message": message}], "usage": counts}).encode()
    rows = record_of(Request(reads=reads_of(plain(body))), streaming=False, counter=Words()).rows
    assert (rows["hidden_tokens"], rows["output_tokens"]) == ([0], [8])


def test_empty_mark_of_reasoning_leaves_tokens_hidden() -> None:
    parts = [delta(content="<think></think>one"), delta(content=" two")]
    rows = streamed(*parts, finish(), reasoned(1_004, 1_000))
    assert metric("hidden_token_count", rows) == 1_000


def test_short_reasoning_text_leaves_tokens_hidden() -> None:
    thoughts = [delta(reasoning_content=" hm") for _ in range(4)]
    times = [100, 110, 120, 130, *(200 + 10 * place for place in range(8))]
    rows = streamed(*thoughts, *TEXTS, finish(), reasoned(1006, 1000), at_ms=times)
    assert metric("time_to_first_token", rows) == 100
    assert metric("hidden_token_count", rows) == 1000
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


def test_reasoning_summary_leaves_tokens_hidden() -> None:
    def event(kind: str, text: str) -> bytes:
        return json.dumps({"type": f"response.{kind}.delta", "delta": text}).encode()

    counts = {
        "input_tokens": 5,
        "output_tokens": 66,
        "output_tokens_details": {"reasoning_tokens": 60},
    }
    ending = {"type": "response.completed", "response": {"status": "completed", "usage": counts}}
    summary = [event("reasoning_summary_text", " a summary of all that was thought")] * 4
    texts = [event("output_text", " one")] * 6
    times = [100, 110, 120, 130, *(200 + 10 * place for place in range(7))]
    rows = streamed(*summary, *texts, json.dumps(ending).encode(), at_ms=times, kind="responses")
    assert metric("hidden_token_count", rows) == 60
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


SUMMARY = " fifteen bytes."


@pytest.mark.parametrize("counter", [None, Words()])
def test_summary_in_reasoning_field_leaves_tokens_hidden(counter: Any) -> None:
    summary = [delta(reasoning_content=SUMMARY) for _ in range(10)]
    times = [100 + 10 * place for place in range(10)] + [500 + 10 * place for place in range(8)]
    rows = streamed(*summary, *TEXTS, finish(), reasoned(106, 100), at_ms=times, counter=counter)
    assert metric("hidden_token_count", rows) == 100
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)
    assert metric("output_sequence_length", rows) == 106


@pytest.mark.parametrize(
    ("thought", "events"), [(" h", 60), (" fifty bytes of thinking, in several tokens of it", 10)]
)
def test_reasoning_with_enough_text_is_not_hidden(thought: str, events: int) -> None:
    thoughts = [delta(reasoning_content=thought) for _ in range(events)]
    rows = streamed(*thoughts, *TEXTS, finish(), reasoned(106, 100))
    assert rows["hidden_tokens"] == [0]


@pytest.mark.parametrize(
    ("kind", "text", "usage_of"),
    [
        (
            "responses",
            {"type": "response.output_text.delta", "delta": " one"},
            lambda counts: {
                "type": "response.completed",
                "response": {"status": "completed", "usage": counts},
            },
        ),
        (
            "messages",
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": " one"}},
            lambda counts: {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": counts,
            },
        ),
    ],
)
def test_reasoning_beside_the_output_tokens_of_any_api(kind: str, text: Any, usage_of: Any) -> None:
    details = {"reasoning_tokens": 100, "thinking_tokens": 100}
    counts = {"input_tokens": 50, "output_tokens": 5, "output_tokens_details": details}
    ending = usage_of(counts | {"total_tokens": 155})
    events = [json.dumps(each).encode() for each in [*[text] * 5, ending]]
    rows = streamed(*events, kind=kind)
    assert metric("output_sequence_length", rows) == 105
    assert metric("output_token_count", rows) == 5
    assert metric("hidden_token_count", rows) == 100
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


def test_hidden_tokens_of_a_whole_response_are_counted() -> None:
    body = {
        "choices": [{"index": 0, "message": {"content": "a b"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 102,
            "completion_tokens_details": {"reasoning_tokens": 100},
        },
    }
    request = Request(reads=reads_of(plain(json.dumps(body).encode())), flags=Flag(0))
    rows = record_of(request, streaming=False).rows
    assert (rows["hidden_tokens"], rows["text_bytes"]) == ([100], [3])


@pytest.mark.parametrize(
    "stated",
    [reasoned(5, 100), reasoned(5, 100, total_tokens=155), reasoned(200, 100, total_tokens=350)],
)
def test_reasoning_beside_the_completion_tokens_is_output(stated: bytes) -> None:
    rows = streamed(*TEXTS[:5], finish(), stated)
    total = json.loads(stated)["usage"]["completion_tokens"] + 100
    assert metric("output_sequence_length", rows) == total
    assert metric("usage_completion_tokens", rows) == total
    assert metric("output_token_count", rows) == total - 100
    assert metric("reasoning_token_count", rows) == 100


def test_reasoning_in_the_total_alone_is_output() -> None:
    rows = streamed(*TEXTS[:5], finish(), usage(50, 5, total_tokens=155))
    assert metric("output_sequence_length", rows) == 105
    assert metric("usage_completion_tokens", rows) == 105
    assert metric("hidden_token_count", rows) == 100
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "counts",
    [
        {"total_tokens": 55},
        {"total_tokens": 455, "prompt_tokens_details": {"cached_tokens": 400}},
        {"total_tokens": 155, "prompt_tokens": 0},
    ],
)
def test_other_totals_contain_no_reasoning(counts: dict[str, Any]) -> None:
    rows = streamed(*TEXTS[:5], finish(), usage(**{"prompt": 50, "completion": 5, **counts}))
    assert metric("output_sequence_length", rows) == 5
    assert rows["hidden_tokens"] == [0]


def test_contradictory_counts_are_never_negative() -> None:
    counts = {"completion_tokens_details": {"reasoning_tokens": 100}, "completion_tokens": 200}
    rows = streamed(*TEXTS, event_json(1, [], usage=counts), usage(50, 5), finish())
    assert metric("output_sequence_length", rows) == 5
    assert metric("output_token_count", rows) == 0


def test_uncounted_reasoning_leaves_output_count_unknown() -> None:
    def event(kind: str, **members: str) -> bytes:
        return json.dumps(
            {"type": "content_block_delta", "delta": {"type": kind, **members}}
        ).encode()

    thoughts = [event("thinking_delta", thinking=" hm") for _ in range(100)]
    texts = [event("text_delta", text=" one") for _ in range(5)]
    for stated in (None, 0, 100):
        ending = {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 105, "output_tokens_details": {"thinking_tokens": stated}},
        }
        rows = streamed(*thoughts, *texts, json.dumps(ending).encode(), kind="messages")
        assert metric("time_to_first_token", rows) == 100
        assert metric("time_to_first_output_token", rows) == 1100
        assert metric("output_sequence_length", rows) == 105
        assert metric("inter_token_latency", rows) == pytest.approx(10.0)
        if stated:
            assert metric("output_token_count", rows) == 5
        else:
            assert rows["reasoning_tokens"] == [UNCOUNTED_TOKENS]
            assert np.isnan(metric("output_token_count", rows))


# --- deltas with an empty text -------------------------------------------------------------------

BLANK = delta(content="")
ROLE = delta(role="assistant", content="")


def ten(*, blank: range) -> list[bytes]:
    """Return ten events, some of them with an empty text."""
    return [BLANK if place in blank else delta(content=" one") for place in range(10)]


@pytest.mark.parametrize("blank", [range(5), range(5, 10), range(3, 7), range(0, 9, 2)], ids=repr)
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("counter", [None, Words()])
def test_empty_deltas_are_tokens_if_usage_counts_them(
    blank: range, more: int, counter: Any
) -> None:
    events = [ROLE, *ten(blank=blank), finish(), usage(50, 10 + more)]
    times = [50, *(100 + 10 * place for place in range(10)), 200, 200]
    rows = streamed(*events, at_ms=times, counter=counter)
    assert metric("time_to_first_token", rows) == 100
    assert metric("time_to_first_output_token", rows) == 100
    assert metric("time_to_second_token", rows) == 10
    assert metric("request_latency", rows) == 190
    assert metric("content_chunk_count", rows) == 10
    assert rows["blank_tokens"] == [len(blank)]
    tokens = 10 + (more if counter is None else 0)
    assert metric("inter_token_latency", rows) == pytest.approx(90 / (tokens - 1))
    assert rows["blank_lead_us"] == [0]


@pytest.mark.parametrize("blank", [range(5), range(5, 10), range(3, 7)], ids=repr)
def test_a_role_in_every_delta_opens_no_message(blank: range) -> None:
    texts = ["" if place in blank else " one" for place in range(10)]
    events = [delta(role="assistant", content=text) for text in texts]
    rows = streamed(*events, finish(), usage(50, 10))
    assert metric("time_to_first_token", rows) == 100
    assert metric("request_latency", rows) == 190
    assert metric("inter_token_latency", rows) == pytest.approx(10.0)


def test_openings_of_several_choices_are_no_tokens() -> None:
    roles = [
        event_json(1, [{"index": i, "delta": {"role": "assistant", "content": ""}}]) for i in (0, 1)
    ]
    texts = [event_json(1, [{"index": i % 2, "delta": {"content": "a"}}]) for i in range(4)]
    ends = [event_json(1, [{"index": i, "delta": {}, "finish_reason": "stop"}]) for i in (0, 1)]
    rows = streamed(*roles, *texts, *ends, usage(50, 6))
    assert metric("time_to_first_token", rows) == 120
    assert (rows["blank_tokens"], rows["blank_lead_us"]) == ([0], [0])


@pytest.mark.parametrize("tokens", [5, 6, 9])
def test_empty_deltas_beyond_usage_are_no_tokens(tokens: int) -> None:
    rows = streamed(*ten(blank=range(5)), finish(), usage(50, tokens))
    assert metric("time_to_first_token", rows) == 150
    assert (rows["chunks"], rows["blank_tokens"], rows["blank_lead_us"]) == ([5], [0], [0])


@pytest.mark.parametrize("ending", [[usage(50, 30)], []], ids=["thirty tokens", "no usage"])
def test_undecided_empty_deltas_are_recorded_as_blank(ending: list[bytes]) -> None:
    rows = streamed(*ten(blank=range(5)), finish(), *ending)
    assert metric("time_to_first_token", rows) == 150
    assert (rows["blank_tokens"], rows["blank_lead_us"]) == ([0], [50_000])


def test_a_blank_before_reasoning_is_no_output_token() -> None:
    thought = delta(reasoning_content=" hm")
    rows = streamed(BLANK, thought, *TEXTS, finish(), usage(50, 8))
    assert metric("time_to_first_token", rows) == 100
    assert metric("time_to_first_output_token", rows) == 120


@pytest.mark.parametrize(
    ("kind", "blank"),
    [
        ("completions", {"choices": [{"index": 0, "text": ""}]}),
        ("huggingface_generate", {"token": {"text": "<pad>", "special": True}, "details": None}),
    ],
)
def test_blank_tokens_of_other_apis_count_too(kind: str, blank: dict[str, Any]) -> None:
    encode = msgspec.json.encode
    if kind == "completions":
        token: object = {"choices": [{"index": 0, "text": " one"}]}
        ending = [usage(50, 4)]
    else:
        token = {"token": {"text": " one", "special": False}}
        details = {"finish_reason": "length", "generated_tokens": 4, "input_length": 1}
        ending = [encode({"token": {"text": "</s>", "special": True}, "details": details})]
    rows = streamed(*map(encode, (blank, blank, token, token)), *ending, kind=kind)
    assert metric("time_to_first_token", rows) == 100
    assert rows["blank_tokens"] == [2]


def test_a_stream_of_blanks_alone_has_no_content() -> None:
    raw = stream(*[BLANK] * 5, finish(), usage(50, 5))
    assert record_of(Request(reads=reads_of(raw))).rows["error"] == [ErrorKind.EMPTY]


# --- sounds --------------------------------------------------------------------------------------


def test_sound_is_output_from_its_first_piece() -> None:
    sounds = [delta(audio={"id": "a", "data": "QUJD" * 100}) for _ in range(3)]
    transcript = [delta(audio={"id": "a", "transcript": "Hello"})]
    ends = [delta(audio={"id": "a", "expires_at": 1}), finish(), usage(50, 40)]
    rows = streamed(ROLE, *sounds, *transcript, *ends)
    assert metric("time_to_first_token", rows) == 110
    assert metric("time_to_first_output_token", rows) == 110
    assert metric("request_latency", rows) == 140
    assert rows["chunks"] == [4]
    assert rows["text_bytes"] == [1205]


def test_a_sound_in_a_whole_response_is_output() -> None:
    message = {"content": None, "audio": {"id": "a", "data": "QUJD", "transcript": "Hi"}}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    request = Request(reads=reads_of(plain(json.dumps(body).encode())), flags=Flag(0))
    rows = record_of(request, streaming=False).rows
    assert (rows["error"], rows["text_bytes"]) == ([0], [6])
