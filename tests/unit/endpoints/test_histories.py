"""The parts of a response that each API expects in the history, complete and streamed."""

import json
from typing import Any

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints import chat, messages, responses
from aiperf_svc.core.endpoints.base import MalformedResponse, Prompt
from aiperf_svc.core.endpoints.history import (
    NO_RESULT,
    Call,
    Conversations,
    Defect,
    Reply,
    added_to_history,
    split_results,
)

CHAT, RESPONSES, MESSAGES = chat.CONVERSATIONS, responses.CONVERSATIONS, messages.CONVERSATIONS
OPTIONS = Options(url="http://h", model="m")
CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1}'},
}
HELLO = Prompt(texts=("Hello",))


def events(api: Conversations, *data: dict[str, Any]) -> Reply:
    return api.read_events([json.dumps(each).encode() for each in data])


def whole(api: Conversations, data: dict[str, Any]) -> Reply:
    return api.read_body(json.dumps(data).encode())


def items(reply: Reply) -> Any:
    return json.loads(b"[%b]" % reply.items)


# --- chat ----------------------------------------------------------------------------------------


def delta(**members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members}]}


def part(index: int | None, arguments: str, **members: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    function = {"arguments": arguments} | (
        {"name": members.pop("name")} if "name" in members else {}
    )
    return delta(tool_calls=[place | members | {"function": function}])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_chat_keeps_reasoning_under_its_name(name: str) -> None:
    expected = {"role": "assistant", name: "why", "content": "so"}
    message: dict[str, Any] = {
        "role": "assistant",
        name: "why",
        "content": "so",
        "tool_calls": [],
        "audio": None,
    }
    assert items(whole(CHAT, {"choices": [{"message": message}]})) == [expected]
    streamed = events(CHAT, delta(**{name: "w"}), delta(**{name: "hy"}), delta(content="so"))
    assert items(streamed) == [expected]


def test_chat_joins_streamed_details_of_reasoning() -> None:
    text, other = {"type": "reasoning.text", "index": 0}, {"type": "reasoning.encrypted"}
    reply = events(
        CHAT,
        delta(reasoning_details=[text | {"text": "w", "signature": None, "format": "a"}]),
        delta(reasoning_details=[text | {"text": "hy", "signature": "s"}, other | {"data": "x"}]),
        delta(content="so"),
    )
    details = [text | {"text": "why", "signature": "s", "format": "a"}, other | {"data": "x"}]
    expected = {"role": "assistant", "reasoning_details": details, "content": "so"}
    assert items(reply) == [expected]
    message = expected | {"tool_calls": None}
    assert items(whole(CHAT, {"choices": [{"message": message}]})) == [expected]


def test_chat_keeps_a_refusal() -> None:
    expected = {"role": "assistant", "refusal": "no", "content": ""}
    message: dict[str, Any] = {"content": None, "refusal": "no"}
    assert items(whole(CHAT, {"choices": [{"message": message}]})) == [expected]
    assert items(events(CHAT, delta(refusal="n"), delta(refusal="o"))) == [expected]


def test_chat_content_is_null_only_beside_calls() -> None:
    message = {"content": None, "tool_calls": [CALL]}
    reply = whole(CHAT, {"choices": [{"message": message}]})
    assert items(reply) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    assert reply.calls == (Call("c1"),)
    assert items(whole(CHAT, {"choices": [{"message": {"content": None}}]})) == [
        {"role": "assistant", "content": ""}
    ]


def test_chat_merges_parts_of_calls_by_index() -> None:
    reply = events(
        CHAT,
        delta(role="assistant", content=None),
        part(0, "", id="c1", type="function", name="f"),
        part(1, '{"b"', id="c2", name="g"),
        part(0, '{"a":'),
        part(1, ": 2}"),
        part(0, " 1}"),
    )
    other = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": '{"b": 2}'}}
    mine = CALL | {"function": {"name": "f", "arguments": '{"a": 1}'}}
    assert items(reply) == [{"role": "assistant", "content": None, "tool_calls": [mine, other]}]
    assert reply.calls == (Call("c1"), Call("c2"))
    assert reply.defects == ()


def test_chat_calls_without_index_begin_with_an_id() -> None:
    reply = events(
        CHAT, part(None, "{", id="c1", name="f"), part(None, "}"), part(None, "{}", id="c2")
    )
    (message,) = items(reply)
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["{}", "{}"]


@pytest.mark.parametrize(
    ("parts", "defect"),
    [
        ([part(0, '{"a": ', id="c1", name="f")], Defect.ARGUMENTS),
        ([part(0, "{}", name="f")], Defect.NO_ID),
        ([part(0, "{", id="c1", name="f"), part(0, "}", id="c2")], Defect.CHANGED_ID),
        ([part(0, "{}", id="c1", name="f"), part(1, "{}", id="c1")], Defect.REPEATED_ID),
    ],
)
def test_chat_names_defects_of_calls(parts: list[dict[str, Any]], defect: Defect) -> None:
    assert events(CHAT, *parts).defects == (defect,)


def test_chat_keeps_arguments_that_are_an_object() -> None:
    call = CALL | {"function": {"name": "f", "arguments": {"a": 1}}}
    for reply in (
        whole(CHAT, {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}),
        events(CHAT, delta(tool_calls=[call])),
        events(CHAT, delta(tool_calls=call), delta(tool_calls={"index": 0, "function": {}})),
    ):
        assert items(reply) == [{"role": "assistant", "content": None, "tool_calls": [call]}]
        assert (reply.calls, reply.defects) == ((Call("c1"),), ())


def test_chat_joins_a_call_without_a_list() -> None:
    parts = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a'}},
        {"index": 0, "id": "c1", "type": "function", "function": {"arguments": '": 1}'}},
    ]
    reply = events(CHAT, *(delta(tool_calls=each) for each in parts))
    assert items(reply) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_chat_joins_calls_of_custom_tools() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** a {"}}
    parts = [
        {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": ""}},
        {"index": 0, "id": None, "type": None, "function": None, "custom": {"input": "*** a"}},
        {"index": 0, "custom": {"input": " {"}},
    ]
    for reply in (
        whole(CHAT, {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}),
        events(CHAT, *(delta(tool_calls=[each]) for each in parts)),
    ):
        assert items(reply)[0]["tool_calls"] == [call]
        assert (reply.calls, reply.defects) == ((Call("c1"),), ())


@pytest.mark.parametrize("place", [0, 1])
def test_chat_keeps_signatures_of_calls(place: int) -> None:
    """As required by Gemini."""
    signed = {"extra_content": {"google": {"thought_signature": "s=="}}}
    parts = [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a": '}}]
    parts.append({"index": 0, "function": {"arguments": "1}"}})
    parts[place] |= signed
    reply = events(CHAT, *(delta(tool_calls=[each]) for each in parts))
    assert items(reply)[0]["tool_calls"] == [CALL | signed]


def test_chat_uses_the_first_choice() -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    assert items(events(CHAT, delta(content="a"), second, delta(content="b"))) == [
        {"role": "assistant", "content": "ab"}
    ]


def test_chat_joins_content_parts_of_one_kind() -> None:
    think = {"type": "thinking", "thinking": [{"type": "text", "text": "w"}]}
    reply = events(
        CHAT,
        delta(content=[think]),
        delta(content=[think]),
        delta(content=[{"type": "text", "text": "a"}]),
        delta(content=[{"type": "text", "text": "b"}]),
    )
    both = {"type": "thinking", "thinking": [*think["thinking"], *think["thinking"]]}
    assert items(reply)[0]["content"] == [both, {"type": "text", "text": "ab"}]


def test_one_bad_event_does_not_hide_the_others() -> None:
    bad = b'{"choices":[{"index":0,"delta":{"content":"b"},"logprobs":NaN}]}'
    reply = CHAT.read_events([json.dumps(delta(content="a")).encode(), b" ", bad])
    assert items(reply) == [{"role": "assistant", "content": "ab"}]
    with pytest.raises(MalformedResponse):
        CHAT.read_events([b"{"])


# --- responses -----------------------------------------------------------------------------------

REASONING: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "gAAA",
}
MESSAGE: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hé", "annotations": []}],
}
FUNCTION: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c1",
    "name": "f",
    "arguments": '{"a": 1}',
}
CUSTOM: dict[str, Any] = {
    "type": "custom_tool_call",
    "call_id": "c2",
    "name": "g",
    "input": "text {",
}
OUTPUT = [REASONING, MESSAGE, FUNCTION, CUSTOM]


def test_responses_keeps_all_items_as_they_came() -> None:
    reply = whole(RESPONSES, {"output": OUTPUT})
    assert items(reply) == OUTPUT
    assert reply.items == b",".join(json.dumps(item).encode() for item in OUTPUT)
    assert reply.calls == (
        Call("c1", "function_call_output"),
        Call("c2", "custom_tool_call_output"),
    )
    assert reply.defects == ()


def test_responses_api_uses_items_when_complete() -> None:
    added = [
        {"type": "response.output_item.added", "output_index": n, "item": {"type": item["type"]}}
        for n, item in enumerate(OUTPUT)
    ]
    done = [
        {"type": "response.output_item.done", "output_index": n, "item": item}
        for n, item in enumerate(OUTPUT)
    ]
    end = {"type": "response.completed", "response": {"output": [MESSAGE]}}
    assert items(events(RESPONSES, *added, done[1], done[0], done[2], done[3], end)) == OUTPUT
    assert items(events(RESPONSES, *added, end)) == [MESSAGE]


@pytest.mark.parametrize(
    ("item", "defect"),
    [(FUNCTION | {"arguments": "{"}, Defect.ARGUMENTS), (FUNCTION | {"call_id": ""}, Defect.NO_ID)],
)
def test_responses_names_defects_of_calls(item: dict[str, Any], defect: Defect) -> None:
    assert whole(RESPONSES, {"output": [item]}).defects == (defect,)


# --- messages ------------------------------------------------------------------------------------

BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "why", "signature": "sig=="},
    {"type": "redacted_thinking", "data": "ENC"},
    {"type": "text", "text": "so"},
    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, 2.50]}},
]


def test_messages_keeps_all_blocks_as_they_came() -> None:
    reply = whole(MESSAGES, {"content": [*BLOCKS, {"type": "text", "text": ""}]})
    assert items(reply) == [{"role": "assistant", "content": BLOCKS}]
    assert b",".join(json.dumps(block).encode() for block in BLOCKS) in reply.items
    assert reply.calls == (Call("t1"),)


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def add(index: int, **members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": members}


def test_messages_puts_blocks_together_from_events() -> None:
    reply = events(
        MESSAGES,
        {"type": "message_start", "message": {}},
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        add(0, type="thinking_delta", thinking="w"),
        add(0, type="thinking_delta", thinking="hy"),
        add(0, type="signature_delta", signature="sig=="),
        start(1, BLOCKS[1]),
        start(2, {"type": "text", "text": ""}),
        add(2, type="text_delta", text="so"),
        start(3, BLOCKS[3] | {"input": {}}),
        add(3, type="input_json_delta", partial_json=""),
        add(3, type="input_json_delta", partial_json='{"a": [1,'),
        add(3, type="input_json_delta", partial_json=" 2.50]}"),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    )
    assert items(reply) == [{"role": "assistant", "content": BLOCKS}]
    assert b'{"a": [1, 2.50]}' in reply.items


def test_messages_keeps_citations() -> None:
    text = {"type": "text", "text": "", "citations": []}
    reply = events(MESSAGES, start(0, text), add(0, text="a"), add(0, citation={"url": "u"}))
    assert items(reply)[0]["content"][0]["citations"] == [{"url": "u"}]


def test_messages_names_invalid_json_arguments() -> None:
    reply = events(MESSAGES, start(0, BLOCKS[3] | {"input": {}}), add(0, partial_json='{"a'))
    assert reply.defects == (Defect.ARGUMENTS,)
    assert items(reply)[0]["content"][0]["input"] == {}


def test_empty_message_is_not_sent_back() -> None:
    assert whole(MESSAGES, {"content": []}).items == b""
    assert added_to_history(MESSAGES, b"1", Reply(b""), ())[0] == [b"1"]


# --- all -----------------------------------------------------------------------------------------

TWO = Reply(b'{"r":1}', (Call("c1", "function_call_output"), Call("c2", "function_call_output")))


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        (
            CHAT,
            [
                {"role": "tool", "tool_call_id": "c1", "content": "x"},
                {"role": "tool", "tool_call_id": "c2", "content": "y"},
            ],
        ),
        (
            RESPONSES,
            [
                {"type": "function_call_output", "call_id": "c1", "output": "x"},
                {"type": "function_call_output", "call_id": "c2", "output": "y"},
            ],
        ),
        (
            MESSAGES,
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "x"},
                        {"type": "tool_result", "tool_use_id": "c2", "content": "y"},
                    ],
                }
            ],
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_results_have_the_ids_of_the_calls(api: Conversations, expected: list[Any]) -> None:
    parts, defects = added_to_history(api, b"1", TWO, (b'"x"', b'"y"'))
    assert json.loads(b"[%b]" % b",".join(parts)) == [1, {"r": 1}, *expected]
    assert defects == ()


@pytest.mark.parametrize(
    ("api", "kind"), [(CHAT, "text"), (RESPONSES, "input_text"), (MESSAGES, "text")]
)
def test_result_parts_are_converted_to_the_api(api: Conversations, kind: str) -> None:
    content = [{"type": "text", "text": "x"}]
    message = {"role": "tool", "tool_call_id": "recorded", "content": content}
    rest, (result,) = split_results(Prompt(messages=(message,)), api)
    assert rest.is_empty
    assert json.loads(result) == [{"type": kind, "text": "x"}]


def test_missing_results_are_repeated_or_made() -> None:
    for results, spare, text in (
        ((b'"x"',), b'"s"', b'"x"'),
        ((), b'"s"', b'"s"'),
        ((), b"", NO_RESULT),
    ):
        parts, _ = added_to_history(CHAT, b"1", TWO, results, spare)
        assert parts[-1].count(text) == 2


def test_results_without_a_call_become_text() -> None:
    parts, defects = added_to_history(CHAT, b"1", Reply(b"2"), (b'"x"',))
    assert parts == [b"1", b"2", b'{"role":"user","content":"x"}']
    assert defects == (Defect.UNCALLED,)


@pytest.mark.parametrize(
    ("api", "key"),
    [(CHAT, "messages"), (RESPONSES, "input"), (MESSAGES, "messages")],
    ids=["chat", "responses", "messages"],
)
def test_history_fits_between_head_and_messages(api: Conversations, key: str) -> None:
    first, second = api.render([HELLO, Prompt(texts=("ünïcode 🎉",))], OPTIONS)
    assert first.head == second.head
    parts, _ = added_to_history(api, first.body, Reply(b'{"r":1}'), ())
    sent = json.loads(second.head + b",".join((*parts, second.body)) + second.tail)[key]
    texts = [each.get("content") for each in sent]
    assert texts == ["Hello", None, "ünïcode 🎉"]


def test_messages_keeps_the_system_in_later_turns() -> None:
    prompt = Prompt(
        messages=({"role": "system", "content": "Be brief"}, {"role": "user", "content": "a"})
    )
    first, second = MESSAGES.render([prompt, HELLO], OPTIONS)
    assert first.tail == second.tail
    assert json.loads(second.whole)["system"] == [{"type": "text", "text": "Be brief"}]


RECORDED: list[dict[str, Any]] = [
    {"role": "assistant", "content": "so", "reasoning": "why", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "x"},
]


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        (CHAT, RECORDED),
        (
            RESPONSES,
            [
                {"role": "assistant", "content": "so"},
                FUNCTION,
                {"type": "function_call_output", "call_id": "c1", "output": "x"},
            ],
        ),
        (
            MESSAGES,
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "so"},
                        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}],
                },
            ],
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_recorded_messages_have_the_form_of_the_api(
    api: Conversations, expected: list[Any]
) -> None:
    assert json.loads(b"[%b]" % api.render_messages(RECORDED)) == expected


def test_recorded_call_may_have_no_arguments() -> None:
    function = {"name": "f", "arguments": ""}
    message = {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": function}]}
    (item,) = json.loads(b"[%b]" % RESPONSES.render_messages([message]))
    assert item == FUNCTION | {"arguments": ""}
    (made,) = json.loads(b"[%b]" % MESSAGES.render_messages([message]))
    assert made["content"] == [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]
