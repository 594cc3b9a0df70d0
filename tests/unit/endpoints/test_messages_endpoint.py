"""The messages API: bodies, events and complete messages."""

import json
from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Delta, Prompt
from aiperf_svc.core.endpoints.messages import MESSAGES
from tests.support.endpoint_requests import request_body

REQUIRED = {"model", "messages", "max_tokens"}
"""Required fields of the published request."""

body = partial(request_body, MESSAGES)


def test_body_has_the_documented_request_members() -> None:
    sent = body(Prompt(texts=("a",), output_tokens=5), streaming=True, force_output_length=False)
    messages = [{"role": "user", "content": "a"}]
    assert sent == {"messages": messages, "model": "m", "stream": True, "max_tokens": 5}


def test_maximum_is_always_sent() -> None:
    sent = body(Prompt(texts=("a",)))
    assert sent.keys() == REQUIRED
    assert sent["max_tokens"] == 1024
    assert body(Prompt(texts=("a",)), extra_inputs={"max_tokens": 7})["max_tokens"] == 7


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_use_the_system_field(role: str) -> None:
    hi = {"role": "user", "content": "hi"}
    sent = body(Prompt(messages=({"role": role, "content": "be brief"}, hi | {"name": "Ann"})))
    assert sent["system"] == [{"type": "text", "text": "be brief"}]
    assert sent["messages"] == [hi]
    with pytest.raises(ValueError, match="besides those of the system"):
        body(Prompt(messages=({"role": role, "content": "be brief"},)))


def test_pictures_in_chat_messages_become_blocks() -> None:
    text, urls = {"type": "text", "text": "t"}, ("data:image/png;base64,QUJD", "https://p/a.png")
    parts = [text, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    result = {"role": "tool", "tool_call_id": "c", "content": parts}
    sent = body(Prompt(messages=({"role": "user", "content": parts}, result)))
    sources = [
        {"type": "base64", "media_type": "image/png", "data": "QUJD"},
        {"type": "url", "url": "https://p/a.png"},
    ]
    blocks = [text, *({"type": "image", "source": source} for source in sources)]
    assert sent["messages"] == [
        {"role": "user", "content": blocks},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": blocks}],
        },
    ]


def test_several_texts_are_the_blocks_of_one_message() -> None:
    blocks = [{"type": "text", "text": text} for text in "ab"]
    assert body(Prompt(texts=("a", "b")))["messages"] == [{"role": "user", "content": blocks}]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {
                "type": "message_start",
                "message": {"content": [], "usage": {"input_tokens": 25, "output_tokens": 1}},
            },
            Delta(prompt_tokens=25),
        ),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, Delta()),
        (
            {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            },
            Delta(tool_calls="f"),
        ),
        ({"type": "ping"}, Delta()),
        (
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
            Delta(content="x"),
        ),
        (
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
            Delta(reasoning="x"),
        ),
        (
            {
                "type": "content_block_delta",
                "delta": {"type": "input_json_delta", "partial_json": "x"},
            },
            Delta(tool_calls="x"),
        ),
        (
            {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
            Delta(),
        ),
        ({"type": "content_block_stop", "index": 0}, Delta()),
        (
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": 15},
            },
            Delta(completion_tokens=15, finish_reason="end_turn", finished=1),
        ),
        ({"type": "message_stop"}, Delta()),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            Delta(error="Overloaded"),
        ),
    ],
)
def test_each_event_type_is_parsed(event: dict[str, object], expected: Delta) -> None:
    assert MESSAGES.parse_event(json.dumps(event).encode()) == expected


def test_a_whole_message_has_all_of_it() -> None:
    data = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 9, "output_tokens": 12},
    }
    assert MESSAGES.parse_body(json.dumps(data, separators=(",", ":")).encode()) == Delta(
        content="Hi",
        reasoning="hm",
        tool_calls='f{"a":1}',
        prompt_tokens=9,
        completion_tokens=12,
        finish_reason="tool_use",
        finished=1,
    )
