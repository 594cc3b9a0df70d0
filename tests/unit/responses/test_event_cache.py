"""The cache of decoded events never changes the result of an event."""

import random

import pytest

from aiperf_svc.core.endpoints.base import UNREADABLE, Delta
from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.responses import RESPONSES
from aiperf_svc.core.responses import event_cache
from aiperf_svc.core.responses.event_cache import EventMemo

TRICKY = [
    b'{"id":"a","choices":[{"delta":{"content":" word"},"finish_reason":null}]}',
    b'{"id":"b","choices":[{"delta":{"content":" word"},"finish_reason":null}]}',
    b'{"id":"b","usage":{"prompt_tokens":9},"choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"b","error":{"message":"no"},"choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"b","error":null,"usage":null,"choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"b","choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":3}}',
    b'{"id":"b","other":[{"delta":{"content":" word"}}]}',
    b'{"id":"[","choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"a[b","choices":[{"delta":{"content":" word"}}]}',
    b'{"nested":{"choices":[{"delta":{"content":" word"}}]}}',
    b'{"nested":{"choices":[{"delta":{"content":" word"}}]},"choices":[]}',
    b'{"choices":[]}',
    b'{"choices":[{"delta":{"content":" word"}}]',
    b'[{"delta":{"content":" word"}}]}',
    b'{"id":"\xff","choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"b","choices":[{"delta":{"content":"\xff"}}]}',
    b'{"id":"b",\n"choices":[{"delta":{"content":" word"}}]}',
    b'{"id":"b","choices":[\n{"delta":{"content":" word"}}]}',
    b"[DONE]",
    b"DONE]",
    b'{"id":"b","choices":[DONE]',
    b"",
    b'{"object":"error","message":"no"}',
    b'{"id":"c","choices":[{"text":" word"}]}',
    b'{"id":"d","choices":[{"text":" word"}]}',
    b'{"type":"response.output_text.delta","logprobs":[],"delta":" word"}',
    b'{"type":"response.reasoning_text.delta","logprobs":[],"delta":" word"}',
    b'{"type":"response.output_text.done","logprobs":[],"delta":" word"}',
    b'{"type":"response.completed","list":[],"response":{"usage":{"input_tokens":2}}}',
    b'{"list":[],"type":"response.output_text.delta","delta":" word"}',
    b'{"type":"content_block_delta","list":[],"delta":{"text":" word"}}',
    b'{"type":"content_block_stop","list":[],"delta":{"text":" word"}}',
    b'{"type":"message_start","list":[],"message":{"usage":{"input_tokens":2}}}',
    b'{"type":"message_delta","list":[],"delta":{"stop_reason":"end_turn"}}',
    b'{"type":"content_block_start","list":[],"content_block":{"text":" word"}}',
    b'{"token":{"text":" word","special":false},"top_tokens":[],"generated_text":null}',
    b'{"token":{"text":"</s>","special":true},"top_tokens":[],"generated_text":null}',
    b'{"top_tokens":[],"token":{"text":" word","special":false},"generated_text":null}',
    b'{"token":null,"top_tokens":[],"details":{"finish_reason":"length"}}',
]


def parsed(parse: object, data: bytes) -> Delta | str:
    try:
        return parse(data)  # type: ignore[operator]
    except UNREADABLE as error:
        return str(error)


@pytest.mark.parametrize(
    "endpoint", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, HUGGINGFACE_GENERATE], ids=lambda e: e.type
)
def test_cached_events_equal_the_endpoints_reading(endpoint: object) -> None:
    parse_event = endpoint.parse_event  # type: ignore[attr-defined]
    memo, rng = EventMemo(parse_event), random.Random(1)
    for _ in range(200):
        for data in rng.sample(TRICKY, len(TRICKY)):
            assert parsed(memo.parse, data) == parsed(parse_event, data), data


@pytest.mark.parametrize(
    ("choice", "content", "reasoning"),
    [
        (b'{"delta":{"content":"x"}}', ["x"], []),
        (b'{"delta":{"reasoning_content":"y"}}', [], ["y"]),
        (b'{"delta":{"content":"x","reasoning_content":"y"}}', [], []),
        (b'{"delta":{"content":"x"},"finish_reason":"stop"}', [], []),
        (b'{"delta":{"reasoning_content":"y"},"finish_reason":"stop"}', [], []),
        (b'{"delta":{"content":""}}', [], []),
        (b'{"delta":{"role":"assistant"}}', [], []),
    ],
)
def test_only_pure_content_or_reasoning_is_cached(
    choice: bytes, content: list[str], reasoning: list[str]
) -> None:
    memo = EventMemo(CHAT.parse_event)
    for _ in range(2):
        memo.parse(b'{"id":"1","choices":[' + choice + b"]}")
    assert list(memo.known) == [choice + b"]}"]
    assert list(memo.content.values()) == content
    assert list(memo.reasoning.values()) == reasoning
    assert {*memo.content, *memo.reasoning} <= memo.known.keys()


def test_event_that_differs_in_its_id_is_cached() -> None:
    decoded: list[bytes] = []

    def parse(data: bytes) -> Delta:
        decoded.append(data)
        return CHAT.parse_event(data)

    memo = EventMemo(parse)
    events = [b'{"id":"%d","choices":[{"delta":{"content":"x"}}]}' % i for i in (1, 2)]
    for data in events:
        memo.parse(data)
    assert [data for data in decoded if data in events] == events[:1]


def test_cache_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_cache, "MAX_KNOWN", 10)
    memo = EventMemo(CHAT.parse_event)
    for i in range(100):
        memo.parse(b'{"id":"a","choices":[{"delta":{"content":"%d"}}]}' % i)
        assert len(memo.known) <= 10
        assert memo.content.keys() == memo.known.keys()
    long = b"x" * event_cache.MAX_REST
    memo.known.clear()
    memo.parse(b'{"id":"a","choices":[{"delta":{"content":"%b"}}]}' % long)
    assert not memo.known
