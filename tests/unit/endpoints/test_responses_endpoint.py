"""The responses API: bodies, events and complete responses."""

import json
from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Delta, Prompt
from aiperf_svc.core.endpoints.responses import RESPONSES
from tests.support.endpoint_requests import request_body

REQUEST_MEMBERS = {"input", "model", "stream", "max_output_tokens"}
"""Fields of the published request that are sent."""

body = partial(request_body, RESPONSES)


def test_body_has_the_documented_request_members() -> None:
    sent = body(Prompt(texts=("a",), output_tokens=5), streaming=True, force_output_length=False)
    assert sent == {"input": "a", "model": "m", "stream": True, "max_output_tokens": 5}
    assert sent.keys() <= REQUEST_MEMBERS


def test_chat_messages_become_messages_of_this_api() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    messages = (
        {"role": "system", "content": "be brief"},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
    )
    assert body(Prompt(messages=messages))["input"] == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "data:x", "detail": "low"},
            ],
        },
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]


def test_parts_of_tool_results_are_input_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    result = {"role": "tool", "tool_call_id": "c", "content": parts}
    (item,) = body(Prompt(messages=(result,)))["input"]
    assert item["output"] == [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:x", "detail": "auto"},
    ]


def test_several_texts_are_the_parts_of_one_message() -> None:
    parts = [{"type": "input_text", "text": text} for text in "ab"]
    assert body(Prompt(texts=("a", "b")))["input"] == [{"role": "user", "content": parts}]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("response.output_text.delta", Delta(content="x")),
        ("response.refusal.delta", Delta(content="x")),
        ("response.reasoning_text.delta", Delta(reasoning="x")),
        ("response.reasoning_summary_text.delta", Delta(reasoning="x", is_summary=True)),
        ("response.audio.transcript.delta", Delta(content="x")),
        ("response.audio.delta", Delta(items=1, item_bytes=1)),
        ("response.function_call_arguments.delta", Delta(tool_calls="x")),
        ("response.output_text.done", Delta()),
        ("response.of_the_future", Delta()),
    ],
)
def test_each_event_type_adds_its_kind_of_output(kind: str, expected: Delta) -> None:
    data = {"type": kind, "item_id": "i", "output_index": 0, "content_index": 0, "delta": "x"}
    assert RESPONSES.parse_event(json.dumps(data).encode()) == expected


def test_the_name_of_a_called_function_is_output() -> None:
    data = (
        b'{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call",'
        b'"id":"fc_1","call_id":"call_1","name":"get_weather","arguments":""}}'
    )
    assert RESPONSES.parse_event(data).tool_calls == "get_weather"
    for item in (b'{"type":"message","content":[]}', b'{"type":"web_search_call","name":null}'):
        silent = b'{"type":"response.output_item.added","item":%b}' % item
        assert not RESPONSES.parse_event(silent).has_output


def whole(**members: object) -> dict[str, object]:
    usage = {
        "input_tokens": 37,
        "output_tokens": 11,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 48,
    }
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
        },
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ]
    made: dict[str, object] = {"id": "resp", "status": "completed", "output": output}
    return made | {"error": None, "incomplete_details": None, "usage": usage} | members


def test_last_event_holds_usage_but_no_output() -> None:
    event = {"type": "response.completed", "response": whole()}
    assert RESPONSES.parse_event(json.dumps(event).encode()) == Delta(
        prompt_tokens=37,
        completion_tokens=11,
        reasoning_tokens=4,
        finish_reason="completed",
        finished=1,
    )


def test_a_whole_response_has_all_of_it() -> None:
    delta = RESPONSES.parse_body(json.dumps(whole()).encode())
    assert (delta.content, delta.reasoning, delta.tool_calls) == ("Hi", "hm", "f{}")
    assert (delta.prompt_tokens, delta.completion_tokens, delta.reasoning_tokens) == (37, 11, 4)


def test_cut_response_has_its_reason() -> None:
    cut = whole(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    for parse, data in (
        (RESPONSES.parse_body, cut),
        (RESPONSES.parse_event, {"type": "response.incomplete", "response": cut}),
    ):
        assert parse(json.dumps(data).encode()).finish_reason == "max_output_tokens"


@pytest.mark.parametrize(
    "data",
    [
        {"type": "error", "code": "server_error", "message": "no", "param": None},
        {"type": "error", "error": {"code": "x", "message": "no"}},
        {"error": {"message": "no"}},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no"}}},
    ],
)
def test_every_form_of_an_error_gives_its_message(data: dict[str, object]) -> None:
    assert RESPONSES.parse_event(json.dumps(data).encode()).error == "no"
