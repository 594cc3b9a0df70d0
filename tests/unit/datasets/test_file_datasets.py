"""Valid contents of the three kinds of files, and the rejection of invalid ones."""

import json

import pytest

from aiperf_svc.core.datasets import multi_turn, sharegpt, single_turn
from aiperf_svc.core.datasets.base import PromptConversation
from aiperf_svc.domain.errors import DatasetError


def lines(*texts: str | bytes) -> list[tuple[int, bytes]]:
    return list(enumerate((t.encode() if isinstance(t, str) else t for t in texts), start=1))


def one(line: str) -> PromptConversation:
    (entry,), _ = single_turn.parse(lines(line), "f")
    return entry


# --- single turn ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ['"Hi"', '{"text":"Hi"}', '{"prompt":"Hi"}', '{"texts":["Hi"]}', '{"content":"Hi"}']
)
def test_a_prompt_can_be_written_in_five_ways(line: str) -> None:
    assert one(line).turns[0].prompt.texts == ("Hi",)


def test_messages_and_payloads_are_kept_whole() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert one(json.dumps({"messages": messages})).turns[0].prompt.messages == tuple(messages)
    payload = {"messages": messages, "temperature": 0.5}
    assert one(json.dumps({"payload": payload})).turns[0].prompt.payload == payload


@pytest.mark.parametrize("name", ["output_length", "max_tokens"])
def test_output_length_delay_role_and_id_are_read(name: str) -> None:
    entry = one(json.dumps({"text": "x", name: 7, "delay": 1.5, "role": "tool", "id": 12}))
    assert entry.id == "12"
    assert entry.turns[0].delay_ns == 1_500_000
    assert entry.turns[0].prompt.output_tokens == 7
    assert entry.turns[0].prompt.role == "tool"


@pytest.mark.parametrize(
    "line",
    [
        '{"query": "q", "passages": ["a", "b"]}',
        '{"texts": [{"name": "query", "contents": ["q"]}, '
        '{"name": "passages", "contents": ["a", "b"]}]}',
    ],
)
def test_a_ranking_has_a_query_and_passages(line: str) -> None:
    prompt = one(line).turns[0].prompt
    assert (prompt.texts, prompt.passages) == (("q",), ("a", "b"))


def test_unknown_members_blank_lines_and_bom_are_accepted() -> None:
    content = lines(b'\xef\xbb\xbf{"text":"a","category":"c"}\r\n', b"  \n", b'"b"')
    entries, left_out = single_turn.parse(content, "f")
    assert [entry.turns[0].prompt.texts[0] for entry in entries] == ["a", "b"]
    assert [entry.place for entry in entries] == ["f:1", "f:3"]
    assert [entry.id for entry in entries] == ["session_000000", "session_000001"]
    assert left_out == 0


def test_only_as_many_lines_as_wanted_are_read() -> None:
    entries, _ = single_turn.parse(lines('"a"', '"b"', "not read"), "f", limit=2)
    assert len(entries) == 2


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("hello", "malformed"),
        ('{"text": "x"', "truncated"),
        ('{"text": "x"} {}', "malformed"),
        (b'{"text": "\xff"}', "can't decode"),
        ("[]", "got `array`"),
        ("5", "got `int`"),
        ("null", "got `null`"),
        ('""', "empty"),
        ("{}", "found none"),
        ('{"text": ""}', "`text` is empty"),
        ('{"texts": []}', "`texts` is empty"),
        ('{"texts": ["a", ""]}', "`texts` is empty"),
        ('{"texts": [1]}', r"\$\.texts\[0\]"),
        ('{"text": 5}', r"\$\.text`"),
        ('{"text": "a", "prompt": "b"}', "`text` and `prompt`"),
        ('{"messages": []}', "`messages` is empty"),
        ('{"messages": ["a"]}', r"\$\.messages\[0\]"),
        ('{"messages": [{"content": "a"}]}', r"messages\[0\]` has no `role`"),
        ('{"payload": {}}', "`payload` is empty"),
        ('{"payload": "x"}', r"\$\.payload"),
        ('{"text": "a", "output_length": 0}', "output length 0"),
        ('{"text": "a", "max_tokens": -1}', "output length -1"),
        ('{"text": "a", "max_tokens": 1, "output_length": 1}', "both"),
        ('{"text": "a", "max_tokens": "many"}', r"\$\.max_tokens"),
        ('{"text": "a", "delay": -1}', "`delay` -1"),
        ('{"text": "a", "delay": 1e12}', "`delay` 1e\\+12"),
        ('{"text": "a", "video": "x.mp4"}', "`video` is not supported"),
        (
            '{"messages": [{"role": "user"}], "image": "x.png"}',
            "already contain images and sounds",
        ),
        ('{"text": "a", "images": "x.png"}', r"\$\.images"),
        ('{"query": "q"}', "need each other"),
        ('{"text": "q", "passages": ["a"]}', "need each other"),
        ('{"query": "q", "passages": []}', "`passages` is empty"),
        ('{"query": "q", "passages": ["a", ""]}', "`passages` is empty"),
        ('{"texts": [{"name": "query", "contents": ["q"]}]}', "`texts` with names"),
        ('{"texts": [{"name": "title", "contents": ["q"]}]}', r"\$\.texts\[0\]\.name"),
    ],
)
def test_bad_line_is_refused_with_place_and_expectation(line: str | bytes, wrong: str) -> None:
    with pytest.raises(DatasetError, match=rf"^dir/f\.jsonl:2: .*{wrong}.*; expected a JSON str"):
        single_turn.parse(lines('"fine"', line), "dir/f.jsonl")


# --- multi turn ----------------------------------------------------------------------------------


def conversation(*turns: object, **more: object) -> PromptConversation:
    (entry,), _ = multi_turn.parse(lines(json.dumps({"turns": list(turns), **more})), "f")
    return entry


def test_every_turn_is_a_request_with_its_delay() -> None:
    entry = conversation({"text": "a"}, {"content": "b", "delay": 500}, "c", session_id="s")
    assert entry.id == "s"
    assert [turn.prompt.texts for turn in entry.turns] == [("a",), ("b",), ("c",)]
    assert [turn.delay_ns for turn in entry.turns] == [0, 500_000_000, 0]


def test_instruction_is_inserted_before_the_next_turn() -> None:
    entry = conversation(
        {"role": "system", "text": "be brief"},
        {"text": "a", "max_tokens": 3, "delay": 1},
        {"role": "developer", "text": "be long"},
        {"messages": [{"role": "user", "content": "b"}]},
    )
    assert [turn.prompt.messages for turn in entry.turns] == [
        ({"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}),
        ({"role": "developer", "content": "be long"}, {"role": "user", "content": "b"}),
    ]
    assert entry.turns[0].prompt.output_tokens == 3
    assert entry.turns[0].delay_ns == 1_000_000


def test_request_of_results_has_their_output_length() -> None:
    result = {"role": "tool", "tool_call_id": "c", "text": "r", "output_length": 7}
    answer = {"role": "assistant", "text": "b"}
    entry = conversation("a", answer, result, answer, result, {"text": "c", "output_length": 9})
    assert [turn.prompt.output_tokens for turn in entry.turns] == [None, 7, 9]
    with pytest.raises(DatasetError, match=r"turns\[1\]: output length 0 is not"):
        conversation("a", result | {"output_length": 0})


def test_media_after_an_instruction_are_sent() -> None:
    entry = conversation(
        {"role": "system", "text": "be brief"},
        {"role": "system", "text": "be kind"},
        {"text": "a", "image": "a.png", "max_tokens": 3},
        {"role": "system", "text": "listen"},
        {"audio": "b.wav"},
    )
    first, second = (turn.prompt for turn in entry.turns)
    assert (first.system, first.texts, first.output_tokens) == ("be brief\n\nbe kind", ("a",), 3)
    assert [media.reference for media in first.media] == ["a.png"]
    assert (second.system, second.texts) == ("listen", ())
    assert [media.reference for media in second.media] == ["b.wav"]


@pytest.mark.parametrize(
    ("turns", "wrong"),
    [
        (({"role": "system", "text": "a", "image": "i.png"}, "b"), r"turns\[0\]: .* is text"),
        (({"role": "developer", "text": "a"}, {"image": "i.png"}), r"turns\[1\]: .*`system`"),
        (
            ({"role": "system", "text": "a"}, {"query": "q", "passages": ["p"]}),
            r"turns\[1\]: `passages`",
        ),
    ],
)
def test_instruction_that_the_request_cannot_carry_is_refused(
    turns: tuple[object, ...], wrong: str
) -> None:
    with pytest.raises(DatasetError, match=wrong):
        conversation(*turns)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("[]", "got `array`"),
        ("{}", "missing required field `turns`"),
        ('{"turns": []}', "`turns` is empty"),
        ('{"turns": "x"}', r"\$\.turns"),
        ('{"turns": [5]}', r"\$\.turns\[0\]"),
        ('{"turns": [{"text": "a"}, {}]}', r"turns\[1\]: .*found none"),
        ('{"turns": [{"text": "a", "delay": -5}]}', r"turns\[0\]: `delay`"),
        ('{"turns": [{"role": "assistant", "text": "b"}]}', r"turns\[0\]: role"),
        ('{"turns": ["a", {"role": "assistant"}]}', r"turns\[1\]: role .* needs `text`"),
        (
            '{"turns": ["a", {"role": "assistant", "text": "b"}, '
            '{"role": "assistant", "text": "c"}]}',
            r"turns\[2\]: role",
        ),
        ('{"turns": ["a", {"role": "tool", "texts": ["a", "b"]}]}', r"turns\[1\]: role `tool`"),
        ('{"turns": [{"payload": {"messages": []}}]}', r"turns\[0\]: `payload`"),
        ('{"turns": [{"role": "system", "text": "a"}]}', "no request carries"),
        ('{"turns": ["a", {"role": "robot", "text": "b"}]}', r"turns\[1\]: role 'robot': expected"),
        ('{"turns": [{"role": "tool", "text": "b"}]}', r"turns\[0\]: role .tool.: no request"),
    ],
)
def test_bad_conversation_is_refused_with_line_and_turn(line: str, wrong: str) -> None:
    with pytest.raises(DatasetError, match=rf"^f\.jsonl:2: .*{wrong}.*; expected an object"):
        multi_turn.parse(lines('{"turns": ["fine"]}', line), "f.jsonl")


def test_more_turns_than_sixteen_bits_hold_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"65,536 turns"):
        conversation(*["a"] * 65_536)


# --- ShareGPT ------------------------------------------------------------------------------------


def shared(*messages: tuple[str, str]) -> list[PromptConversation]:
    turns = [{"from": speaker, "value": text} for speaker, text in messages]
    return sharegpt.parse(lines(json.dumps({"id": "x", "conversations": turns})), "f")[0]


def test_human_messages_are_turns_and_responses_give_lengths() -> None:
    (entry,) = shared(("human", "a"), ("gpt", "A"), ("user", "b"), ("assistant", "B"))
    assert entry.id == "x"
    assert [(t.prompt.texts, t.response) for t in entry.turns] == [(("a",), "A"), (("b",), "B")]


def test_a_system_message_is_in_the_first_request() -> None:
    (entry,) = shared(("system", "s"), ("human", "a"), ("gpt", "A"), ("human", "b"))
    assert [message["role"] for message in entry.turns[0].prompt.messages] == ["system", "user"]
    assert entry.turns[1].prompt.texts == ("b",)


def test_messages_before_the_first_question_are_dropped() -> None:
    (entry,) = shared(("gpt", "hello"), ("human", "a"), ("gpt", "A"))
    assert [(t.prompt.texts, t.response) for t in entry.turns] == [(("a",), "A")]


def test_an_empty_question_ends_the_conversation() -> None:
    (entry,) = shared(("human", "a"), ("gpt", "A"), ("human", " "), ("human", "b"))
    assert len(entry.turns) == 1


@pytest.mark.parametrize("turns", [[], [("gpt", "A")], [("human", ""), ("gpt", "A")]])
def test_a_conversation_without_a_question_is_left_out(turns: list[tuple[str, str]]) -> None:
    assert shared(*turns) == []


def test_skipped_lines_are_counted_without_entries() -> None:
    good = '{"conversations":[{"from":"human","value":"a"}]}'
    odd = '{"conversations":[{"from":"human","value":"a"},{"from":"alien","value":"b"}]}'
    entries, left_out = sharegpt.parse(lines(odd, good, odd, good, good), "f", limit=2)
    assert (len(entries), left_out) == (2, 2)
    assert entries[0].id == "session_000000"


@pytest.mark.parametrize(
    ("element", "wrong"),
    [
        ("5", "got `int`"),
        ("{}", "missing required field `conversations`"),
        ('{"conversations": [{"from": "human"}]}', r"`value` - at `\$\.conversations\[0\]"),
        ('{"conversations": [{"value": "human"}]}', "`from`"),
        ('{"conversations": [{"from": "human", "value": 5}]}', r"\[0\]\.value"),
    ],
)
def test_bad_element_is_refused_with_file_and_line(element: str, wrong: str) -> None:
    with pytest.raises(DatasetError, match=rf"^f\.json:7: .*{wrong}.*; expected a JSON list"):
        sharegpt.parse([(7, element.encode())], "f.json")


@pytest.mark.parametrize("indent", [None, 1])
def test_list_elements_come_whole_and_in_order(indent: int | None) -> None:
    elements = [{"a": '[{"\\'}, {"b": [1, [2]]}, [], "x,]", {"c": {"d": "\n"}}]
    data = json.dumps(elements, indent=indent).encode()
    assert [json.loads(text) for _, text in sharegpt.list_elements(data, "f")] == elements


def test_list_elements_have_their_first_line_numbers() -> None:
    data = b'[\n{"a":\n1},\n\n{"b":2}, {"c":3}\n]'
    assert [number for number, _ in sharegpt.list_elements(data, "f")] == [2, 5, 5]


@pytest.mark.parametrize("data", [b"[]", b" [ ] ", b"\xef\xbb\xbf[]"])
def test_an_empty_list_has_no_elements(data: bytes) -> None:
    assert list(sharegpt.list_elements(data, "f")) == []


@pytest.mark.parametrize(
    ("data", "line", "wrong"),
    [
        (b"", 1, "truncated"),
        (b'{"a": []}', 1, "got `object`"),
        (b"\n\nhello", 3, "malformed"),
        (b"[", 1, "truncated"),
        (b"[{},\n{", 2, "truncated"),
        (b"[{},\n{}\n", 3, "truncated"),
        (b'[{},\n{"a": "b}]', 2, "truncated"),
        (b"[{}\n{}]", 2, "expected ',' or ']'"),
        (b"[{},]", 1, "trailing comma"),
        (b"[{},\n\n{5}]", 3, "malformed"),
        (b"[]\n[]", 2, "trailing characters"),
    ],
)
def test_incomplete_list_is_refused_with_its_line(data: bytes, line: int, wrong: str) -> None:
    with pytest.raises(DatasetError, match=rf"^f:{line}: .*{wrong}.*; expected a JSON list"):
        list(sharegpt.list_elements(data, "f"))
