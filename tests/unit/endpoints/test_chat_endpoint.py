"""Chat: bodies, histories, events and complete responses."""

import json
from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import UNREADABLE, MalformedResponse, Prompt, parse_odd
from aiperf_svc.core.endpoints.chat import CHAT
from tests.support.endpoint_requests import endpoint_options, request_body


def event(delta: dict[str, object], **more: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, **more}]}).encode()


body = partial(request_body, CHAT)
HELLO = Prompt(texts=("Hello",))


def test_a_plain_request_has_model_and_messages_only() -> None:
    assert body(HELLO) == {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_streaming_request_includes_usage_option() -> None:
    sent = body(HELLO, streaming=True)
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}


def test_usage_is_not_requested_if_disabled() -> None:
    assert "stream_options" not in body(HELLO, streaming=True, request_usage=False)


def test_forced_length_sets_min_tokens_and_ignore_eos() -> None:
    sent = body(Prompt(texts=("x",), output_tokens=7))
    assert (sent["max_tokens"], sent["min_tokens"], sent["ignore_eos"]) == (7, 7, True)


def test_unforced_length_is_only_a_maximum() -> None:
    sent = body(Prompt(texts=("x",), output_tokens=7), force_output_length=False)
    assert sent["max_tokens"] == 7
    assert not {"min_tokens", "ignore_eos"} & sent.keys()


def test_extra_inputs_override_and_null_removes() -> None:
    extra = {"temperature": 0, "max_tokens": None, "max_completion_tokens": 9, "model": "other"}
    sent = body(Prompt(texts=("x",), output_tokens=7), extra_inputs=extra)
    assert sent["model"] == "other"
    assert sent["temperature"] == 0
    assert sent["max_completion_tokens"] == 9
    assert "max_tokens" not in sent


def test_the_model_can_be_left_out() -> None:
    assert "model" not in body(HELLO, extra_inputs={"model": None})


def test_several_texts_are_the_parts_of_one_message() -> None:
    sent = body(Prompt(texts=("a", "b")))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert sent["messages"] == [{"role": "user", "content": parts}]


def test_messages_are_sent_unchanged() -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "ü", "name": "n"})
    assert body(Prompt(messages=messages))["messages"] == list(messages)


def test_turns_of_one_shape_share_head_and_tail() -> None:
    first, second = (CHAT.render(Prompt(texts=(text,)), endpoint_options()) for text in "ab")
    assert (first.head, first.tail) == (second.head, second.tail)


def test_content_is_read() -> None:
    delta = CHAT.parse_event(event({"role": "assistant", "content": "Grüße"}))
    assert (delta.content, delta.has_output) == ("Grüße", True)


@pytest.mark.parametrize("first", [{"role": "assistant"}, {"content": ""}, {"content": None}, {}])
def test_event_without_text_has_no_output(first: dict[str, object]) -> None:
    assert not CHAT.parse_event(event(first)).has_output


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_separate_from_content(name: str) -> None:
    delta = CHAT.parse_event(event({name: "hm", "content": "a"}))
    assert (delta.reasoning, delta.content) == ("hm", "a")


def test_reasoning_under_both_names_counts_once() -> None:
    assert CHAT.parse_event(event({"reasoning": "hm", "reasoning_content": "hm"})).reasoning == "hm"


def test_reasoning_may_be_in_details_alone() -> None:
    text, other = {"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted"}
    details = [text, other | {"data": "x"}, {"type": "reasoning.summary", "summary": "!"}]
    alone = CHAT.parse_event(event({"content": "", "reasoning_details": details}))
    assert (alone.reasoning, alone.is_blank) == ("hm!", False)
    both = CHAT.parse_event(event({"reasoning": "hm", "reasoning_details": [text]}))
    assert both.reasoning == "hm"


def test_tool_calls_are_output() -> None:
    calls = [
        {"index": 0, "id": "1", "function": {"name": "add", "arguments": '{"a"'}},
        {"index": 1, "function": {"arguments": ":1}"}},
        {"index": 2},
    ]
    delta = CHAT.parse_event(event({"tool_calls": calls}))
    assert delta.tool_calls == 'add{"a":1}'
    assert delta.has_output
    assert not delta.content


def test_calls_of_custom_tools_are_output() -> None:
    begin = {"index": 0, "id": "1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    more = {"index": 0, "id": None, "function": None, "custom": {"input": "*** a"}}
    deltas = [CHAT.parse_event(event({"tool_calls": [call]})) for call in (begin, more)]
    assert [delta.tool_calls for delta in deltas] == ["patch", "*** a"]


def test_a_refusal_is_content() -> None:
    assert CHAT.parse_event(event({"refusal": "No."})).content == "No."


def test_all_choices_of_an_event_count() -> None:
    data = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}
    assert CHAT.parse_event(json.dumps(data).encode()).content == "ab"


def test_the_finish_reason_is_read() -> None:
    assert CHAT.parse_event(event({}, finish_reason="length")).finish_reason == "length"


def test_the_usage_event_has_no_output() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "total_tokens": 14,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    delta = CHAT.parse_event(json.dumps({"choices": [], "usage": usage}).encode())
    assert (delta.prompt_tokens, delta.completion_tokens, delta.reasoning_tokens) == (5, 9, 4)
    assert not delta.has_output


@pytest.mark.parametrize(
    "details", [None, {"reasoning_tokens": 0}, {"accepted_prediction_tokens": 3}]
)
def test_reasoning_tokens_may_be_beside_details(details: dict[str, int] | None) -> None:
    """As in SGLang's usage."""
    unknown = 0 if details and "reasoning_tokens" in details else -1
    for stated, expected in ((4, 4), (0, unknown)):
        usage = {
            "completion_tokens": 9,
            "completion_tokens_details": details,
            "reasoning_tokens": stated,
        }
        delta = CHAT.parse_event(json.dumps({"choices": [], "usage": usage}).encode())
        assert (delta.completion_tokens, delta.reasoning_tokens) == (9, expected)


def test_counts_are_unknown_without_usage() -> None:
    delta = CHAT.parse_event(b'{"choices":[],"usage":null}')
    assert (delta.prompt_tokens, delta.completion_tokens, delta.reasoning_tokens) == (-1, -1, -1)


@pytest.mark.parametrize("value", ["null", '""', "false", "{}"])
def test_an_empty_error_member_is_none(value: str) -> None:
    assert CHAT.parse_event(b'{"choices":[],"error":%b}' % value.encode()).error == ""


@pytest.mark.parametrize("value", [b"5", b"{}", b'"\xff"', b'"\xc3"', b'"\\ud800"', b'"a'])
def test_non_text_content_is_malformed(value: bytes) -> None:
    with pytest.raises(UNREADABLE):
        CHAT.parse_event(b'{"choices":[{"delta":{"content":%b}}]}' % value)
    with pytest.raises(UNREADABLE):
        CHAT.parse_body(b'{"choices":[{"message":{"content":%b}}]}' % value)


def test_a_malformed_response_is_quoted_from_its_beginning() -> None:
    with pytest.raises(MalformedResponse, match=r"<html>x{74}…$"):
        parse_odd(CHAT.parse_event, b"<html>" + b"x" * 1000)


def test_a_whole_response_is_read() -> None:
    response = {
        "choices": [
            {
                "message": {"role": "assistant", "content": "Hi", "reasoning": "hm"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    delta = CHAT.parse_body(json.dumps(response).encode())
    assert (delta.content, delta.reasoning, delta.finish_reason) == ("Hi", "hm", "stop")
    assert (delta.prompt_tokens, delta.completion_tokens) == (1, 2)
