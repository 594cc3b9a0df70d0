"""Streams of other APIs than completions, in the form that the references of their APIs show."""

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

OPENAI = rb"""event: response.created
data: {"type":"response.created","response":{"id":"resp_1","object":"response","created_at":1741290958,"status":"in_progress","error":null,"incomplete_details":null,"model":"m","output":[],"tools":[],"usage":null}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}

event: response.content_part.added
data: {"type":"response.content_part.added","item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":" [there","logprobs":[]}

event: response.output_text.done
data: {"type":"response.output_text.done","item_id":"msg_1","output_index":0,"content_index":0,"text":"Hi [there"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","object":"response","status":"completed","error":null,"incomplete_details":null,"output":[{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"Hi [there","annotations":[]}]}],"usage":{"input_tokens":37,"output_tokens":11,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":48}}}

"""  # noqa: E501
ANTHROPIC = rb"""event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"!"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501

TGI = rb""":keep-alive

data:{"index":1,"token":{"id":10002,"text":" is","logprob":-0.41,"special":false},"generated_text":null,"details":null}

data:{"index":2,"token":{"id":18147,"text":" deep","logprob":-0.34,"special":false},"generated_text":null,"details":null}

data:{"index":3,"token":{"id":2,"text":"</s>","logprob":-0.1,"special":true},"generated_text":" is deep","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"input_length":6}}

"""  # noqa: E501

EACH = pytest.mark.parametrize(
    ("kind", "raw", "usage", "first"),
    [
        ("responses", OPENAI, (37, 11), 3),
        ("messages", ANTHROPIC, (25, 15), 3),
        ("huggingface_generate", TGI, (6, 3), 1),
    ],
)
"""The kind, the stream, its tokens of input and output, and the place of its first token; the
second one follows."""


def events_of(raw: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in raw.split(b"\n\n")[:-1]]


def read_of(events: list[bytes], at_ms: int) -> list[Read]:
    """Each event in a chunk and a read of its own, 10 ms apart."""
    return [Read(chunk(event), stamp_of(at_ms + 10 * i)) for i, event in enumerate(events)]


@EACH
def test_its_tokens_usage_and_end_are_found(
    kind: str, raw: bytes, usage: tuple[int, int], first: int
) -> None:
    reads = read_of(events_of(raw), 100)
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += LAST_CHUNK
    row = record_of(Request(reads=reads), kind=kind).rows[0]
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == usage
    assert (row["finish_reason"], row["error"]) == (FinishReason.STOP, ErrorKind.NONE)
    assert row["first_token_wall_ns"] == stamp_of(100 + 10 * first)
    assert row["last_token_wall_ns"] == stamp_of(110 + 10 * first)


@EACH
def test_stream_without_its_last_event_is_an_error(
    kind: str, raw: bytes, usage: tuple[int, int], first: int
) -> None:
    reads = read_of(events_of(raw)[: first + 2], 100)
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += LAST_CHUNK
    row = record_of(Request(reads=reads), kind=kind).rows[0]
    assert row["error"] == ErrorKind.DISCONNECTED


@EACH
def test_an_error_in_it_is_the_servers(
    kind: str, raw: bytes, usage: tuple[int, int], first: int
) -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"x","message":"too busy"}}\n\n'
    reads = read_of([*events_of(raw)[: first + 2], error], 100)
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += LAST_CHUNK
    record = record_of(Request(reads=reads), kind=kind)
    assert record.rows[0]["error"] == ErrorKind.SERVER
    assert record.errors[0].message == "too busy"
