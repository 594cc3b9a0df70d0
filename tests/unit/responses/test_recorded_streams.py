"""Streams of real servers (`tests/data/streams`) that break strict parsers: comments, empty lists
of choices, nulls, additional fields, a role in every event, and a usage with the finish reason.

llama.cpp's streams were recorded from our own server, unchanged except for ids. The others follow
the servers' sources and references.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind
from tests.support.raw_batches import (
    LAST_CHUNK,
    STREAM_HEAD,
    Read,
    Request,
    chunk,
    record_of,
    stamp_of,
)

STREAMS = Path(__file__).parents[2] / "data/streams"
LENGTH, STOP, TOOL_CALLS = FinishReason.LENGTH, FinishReason.STOP, FinishReason.TOOL_CALLS


class Stream(NamedTuple):
    """Contents of a stream: input and output tokens, its end, events with output, and the positions
    of the first and last of them."""

    name: str
    kind: str
    usage: tuple[int, int]
    finish: FinishReason
    chunks: int
    places: tuple[int, int]

    @property
    def raw(self) -> bytes:
        return (STREAMS / f"{self.name}.sse").read_bytes()


ALL = [
    Stream("llama.cpp-completions", "completions", (2, 2), LENGTH, 2, (0, 1)),
    Stream("llama.cpp-responses", "responses", (9, 2), STOP, 2, (4, 5)),
    Stream("llama.cpp-messages", "messages", (9, 2), LENGTH, 2, (2, 3)),
    Stream("ollama", "chat", (26, 4), STOP, 3, (0, 2)),
    Stream("sglang", "chat", (36, 3), STOP, 2, (1, 2)),
    Stream("tensorrt-llm", "chat", (12, 3), STOP, 3, (1, 3)),
    Stream("vllm", "chat", (11, 12), TOOL_CALLS, 3, (1, 3)),
    Stream("openai", "chat", (8, 9), STOP, 2, (1, 2)),
    Stream("openai-responses", "responses", (37, 11), STOP, 2, (3, 4)),
    Stream("azure", "chat", (19, 2), STOP, 2, (2, 3)),
    Stream("deepseek", "chat", (12, 3), STOP, 2, (3, 5)),
    Stream("tgi", "chat", (37, 2), LENGTH, 2, (0, 1)),
    Stream("tgi-generate", "huggingface_generate", (6, 3), STOP, 2, (1, 2)),
    Stream("anthropic", "messages", (25, 15), STOP, 2, (3, 4)),
    Stream("anthropic-tool", "messages", (472, 89), TOOL_CALLS, 3, (2, 8)),
]
each = pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)


def pieces(raw: bytes, size: int) -> list[Read]:
    """Return the stream as reads and chunks of this size. 0 means one event each."""
    parts = [raw[at : at + size] for at in range(0, len(raw), size)] if size else []
    parts = parts or [event + b"\n\n" for event in raw.split(b"\n\n")[:-1]]
    reads = [Read(chunk(part), stamp_of(100 + index)) for index, part in enumerate(parts)]
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += LAST_CHUNK
    return reads


@each
@pytest.mark.parametrize("size", [0, 7, 100, 10_000])
def test_stream_is_complete_under_every_split(stream: Stream, size: int) -> None:
    row = record_of(Request(reads=pieces(stream.raw, size)), kind=stream.kind).rows[0]
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == stream.usage
    assert (row["error"], row["finish_reason"]) == (ErrorKind.NONE, stream.finish)
    assert row["chunks"] == stream.chunks
    if not size:
        first, last = (stamp_of(100 + place) for place in stream.places)
        assert (row["first_token_wall_ns"], row["last_token_wall_ns"]) == (first, last)


@each
def test_recorded_stream_is_equal_with_other_line_ends(stream: Stream) -> None:
    for end in (b"\r\n", b"\r"):
        whole = pieces(stream.raw.replace(b"\n", end), 10_000)
        row = record_of(Request(reads=whole), kind=stream.kind).rows[0]
        assert (row["error"], row["chunks"]) == (ErrorKind.NONE, stream.chunks)
        assert row["usage_completion_tokens"] == stream.usage[1]


@each
def test_recorded_stream_cut_early_is_an_error(stream: Stream) -> None:
    # Before the first event with a finish reason, and without [DONE].
    at = re.search(rb'"(finish|stop)_reason":"|response\.completed', stream.raw)
    assert at is not None
    begun = stream.raw[: stream.raw.rfind(b"\n\n", 0, at.start()) + 2]
    row = record_of(Request(reads=pieces(begun, 0)), kind=stream.kind).rows[0]
    assert row["error"] == ErrorKind.DISCONNECTED


OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"x","message":"Overloaded"}}\n\n'


@pytest.mark.parametrize(
    ("name", "event", "message"),
    [
        (
            "sglang",
            b'data: {"error": {"object": "error", "message": "CUDA out of memory", "type": '
            b'"InternalServerError", "param": null, "code": 500}}\n\n',
            "CUDA out of memory",
        ),
        ("tgi", b'data: {"error":"too busy","error_type":"generation"}\n\n', "too busy"),
        (
            "vllm",
            b'data: {"object":"error","message":"engine died","type":"InternalServerError"}\n\n',
            "engine died",
        ),
        (
            "ollama",
            b'error: {"code":500,"message":"slot lost","type":"server_error"}\n\n'
            b'data: {"error":{"code":500,"message":"slot lost","type":"server_error"}}\n\n',
            "slot lost",
        ),
        ("vllm", b"event: error\n: no more responders\n\ndata: [DONE]\n\n", "no more responders"),
        ("anthropic", OVERLOADED, "Overloaded"),
        ("openai-responses", OVERLOADED, "Overloaded"),
        ("tgi-generate", OVERLOADED, "Overloaded"),
    ],
)
def test_an_error_in_the_middle_is_the_servers(name: str, event: bytes, message: str) -> None:
    (stream,) = (stream for stream in ALL if stream.name == name)
    begun = stream.raw.split(b"\n\n")[: max(stream.places[0], 0) + 2]
    raw = b"\n\n".join(begun) + b"\n\n" + event
    record = record_of(Request(reads=pieces(raw, 0)), kind=stream.kind)
    assert record.rows[0]["error"] == ErrorKind.SERVER
    assert record.errors[0].message == message
