"""The four trace formats, from files to requests, and their invalid contents."""

import json
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from aiperf_svc.adapters.datasets.builder import AnyDataset, build_dataset
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import DatasetError
from tests.support.traces import AZURE, BURST_GPT

Config = Callable[..., BenchmarkConfig]

CONTENT = {
    "mooncake_trace": '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [46]}\n'
    '{"timestamp": 10535, "input_length": 9, "output_length": 2, "hash_ids": [46]}\n',
    "bailian_trace": '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "turn": 1, '
    '"type": "text", "input_length": 6, "output_length": 5, "hash_ids": [46]}\n'
    '{"timestamp": 61.2, "input_length": 9, "output_length": 2}\n',
    "burst_gpt_trace": BURST_GPT
    + "5,ChatGPT,6,5,11,Conversation log\n45.5,GPT-4,9,2,11,Conversation log\n"
    + "46,GPT-4,9,0,9,API log\n",
    "azure_trace": AZURE + "2023-11-16 18:15:46.6805900,6,5\r\n2023-11-16 18:15:46.6805901,9,2\r\n",
}
KINDS = pytest.mark.parametrize("kind", CONTENT)


async def built(in_file: Config, kind: str, content: str, **endpoint: object) -> AnyDataset:
    return await build_dataset(in_file(kind, content, endpoint=endpoint))


def payloads(dataset: AnyDataset) -> list[dict[str, object]]:
    data = json.loads(b"".join(dataset.inputs_json()))["data"]  # type: ignore[union-attr]
    return [payload for session in data for payload in session["payloads"]]


@KINDS
async def test_every_format_states_its_lengths(in_file: Config, kind: str) -> None:
    dataset = await built(in_file, kind, CONTENT[kind], type="completions")
    requests = payloads(dataset)
    assert [len(str(request["prompt"]).split()) for request in requests] == [6, 9]
    assert [request["max_tokens"] for request in requests] == [5, 2]
    assert dataset.report.left_out == (1 if kind == "burst_gpt_trace" else 0)


@KINDS
async def test_a_broken_last_line_is_named(in_file: Config, kind: str) -> None:
    whole = CONTENT[kind].rstrip()
    number = len(whole.splitlines())
    broken = whole[: whole.rindex("}" if whole.startswith("{") else ",")]
    with pytest.raises(DatasetError, match=rf"data:{number}: .*; expected ") as raised:
        await built(in_file, kind, broken)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "content", "wrong"),
    [
        ("burst_gpt_trace", AZURE + "2023-11-16 18:15:46,1,1\n", "1: no column 'Timestamp'"),
        ("azure_trace", "TIMESTAMP,Context\n", "1: no column 'ContextTokens' and no column 'Gen"),
        ("azure_trace", AZURE + "18:15,1,1\n", "2: Invalid isoformat string: '18:15'"),
        ("burst_gpt_trace", BURST_GPT + "5,m,many,1,1,l\n", "2: invalid literal for int.*'many'"),
        ("burst_gpt_trace", BURST_GPT + "5,m,1,1,2,l\n4,m,1,1,2,l\n", "3: time 4 is before 5"),
        ("burst_gpt_trace", BURST_GPT + "-5,m,1,1,2,l\n", "2: time -5 is negative"),
        ("bailian_trace", "{}\n", "1: .*missing required field `timestamp`"),
        ("bailian_trace", CONTENT["azure_trace"], "1: .*malformed"),
        ("mooncake_trace", '{"input_length": 5, "hash_ids": [-1]}', "1: Expected `int` >= 0"),
        ("mooncake_trace", '{"timestamp": 5}', "1: needs one of .*found none"),
        ("mooncake_trace", '{"input_length": 5, "text_input": "x"}', "1: .*found `input_length` a"),
        ("mooncake_trace", '{"text_input": ""}', "1: `text` is empty"),
        ("mooncake_trace", '{"input_length": 5, "delay": -1}', "1: `delay` -1"),
        ("mooncake_trace", '{"text_input": "x", "message_mode": 1}', "1: `message_mode` is not"),
    ],
)
async def test_a_bad_row_is_refused_with_its_line(
    in_file: Config, kind: str, content: str, wrong: str
) -> None:
    with pytest.raises(DatasetError, match=rf"data:{wrong}"):
        await built(in_file, kind, content)


async def test_mooncake_rows_may_hold_texts_messages_and_payloads(in_file: Config) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    rows = [{"text_input": "t"}, {"messages": messages}, {"payload": {"messages": messages}}]
    content = "\n".join(json.dumps(row) for row in rows)
    requests = payloads(await built(in_file, "mooncake_trace", content))
    assert requests[0]["messages"] == [{"role": "user", "content": "t"}]
    assert [request["messages"] for request in requests[1:]] == [messages, messages]


async def test_mooncake_rows_may_have_tools_and_further_members(in_file: Config) -> None:
    messages = [{"role": "user", "content": "u"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [{"messages": messages, "tools": tools, "extra": {"seed": 5}},
            {"text_input": "t", "tools": tools}]  # fmt: skip
    content = "\n".join(json.dumps(row) for row in rows)
    first, second = payloads(await built(in_file, "mooncake_trace", content))
    assert (first["messages"], first["tools"], first["seed"]) == (messages, tools, 5)
    assert (second["messages"], second["tools"]) == ([{"role": "user", "content": "t"}], tools)


@pytest.mark.parametrize(
    ("api", "prompt_key", "tool"),
    [
        ("responses", "input", {"type": "function", "name": "f"}),
        ("messages", "messages", {"name": "f", "input_schema": {"type": "object"}}),
    ],
)
async def test_mooncake_rows_are_converted_to_the_api(
    in_file: Config, api: str, prompt_key: str, tool: dict[str, object]
) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = json.dumps({"messages": messages, "tools": tools, "extra": {"seed": 5}})
    (request,) = payloads(await built(in_file, "mooncake_trace", row, type=api))
    assert (request["tools"], request["seed"]) == ([tool], 5)
    assert request[prompt_key] == (messages if api == "responses" else messages[1:])


async def test_further_members_need_an_api_with_messages(in_file: Config) -> None:
    row = json.dumps({"text_input": "t", "extra": {"seed": 5}})
    with pytest.raises(DatasetError, match=r"data:1: `tools` and `extra` need endpoint\.type chat"):
        await built(in_file, "mooncake_trace", row, type="completions")


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"input_length": 5, "tools": [{}]}, "`tools` and `extra` need `messages`"),
        ({"text_input": "t", "tools": [{}], "session_id": "a"}, "write complete `messages`"),
        ({"messages": [{"role": "robot"}]}, "'robot': expected system"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            r"tool_calls\[0\]` has no `id`",
        ),
    ],
)
async def test_bad_mooncake_messages_are_named(
    row: dict[str, object], wrong: str, in_file: Config
) -> None:
    with pytest.raises(DatasetError, match=f"data:1: .*{wrong}"):
        await built(in_file, "mooncake_trace", json.dumps(row))


async def test_complete_messages_have_one_system_text(in_file: Config) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    row = json.dumps({"session_id": "a", "messages": messages})
    requests = payloads(await built(in_file, "mooncake_trace", f"{row}\n{row}", type="messages"))
    assert [each["system"] for each in requests] == [[{"type": "text", "text": "s"}]] * 2


async def test_payloads_of_a_session_keep_their_models(in_file: Config) -> None:
    messages = [{"role": "user", "content": "u"}]
    rows = [{"session_id": "a", "payload": {"model": name, "messages": messages}} for name in "xyx"]
    made = await built(in_file, "mooncake_trace", "\n".join(map(json.dumps, rows)))
    assert [each["model"] for each in payloads(made)] == ["x", "y", "x"]


async def test_session_has_complete_messages_or_new_turns(in_file: Config) -> None:
    whole = {"session_id": "a", "messages": [{"role": "user", "content": "u"}]}
    turn = {"session_id": "a", "text_input": "t"}
    with pytest.raises(DatasetError, match="data:2: session 'a' has complete `messages`"):
        await built(in_file, "mooncake_trace", f"{json.dumps(whole)}\n{json.dumps(turn)}")
    content = f"{json.dumps(whole)}\n{json.dumps(whole)}"
    dataset = await built(in_file, "mooncake_trace", content)
    (entry,) = dataset.conversations  # type: ignore[union-attr]
    assert [each.is_whole for each in entry.turns] == [True, True]


async def test_a_session_needs_the_chat_api(in_file: Config) -> None:
    content = '{"input_length": 5, "session_id": "a"}\n' * 2
    assert len((await built(in_file, "mooncake_trace", content)).conversations) == 1  # type: ignore[union-attr]
    with pytest.raises(DatasetError, match=r"data:1: a conversation of 2 turns .*chat"):
        await built(in_file, "mooncake_trace", content, type="completions")


async def test_the_block_size_can_be_set(in_file: Config) -> None:
    row = '{"input_length": 9, "hash_ids": [1, 2, 3]}'
    with pytest.raises(DatasetError, match=r"3 hash ids for 9 tokens.*dataset\.block_size"):
        await build_dataset(in_file("mooncake_trace", row))
    benchmark = in_file("mooncake_trace", row, dataset={"block_size": 4})
    assert (await build_dataset(benchmark)).report.entries == 1


@KINDS
async def test_limits_drop_long_prompts_and_cut_long_responses(in_file: Config, kind: str) -> None:
    without, prompts, responses = [
        await build_dataset(in_file(kind, CONTENT[kind], dataset=limits))
        for limits in ({}, {"max_input_tokens": 8}, {"max_output_tokens": 3})
    ]
    assert [request["max_tokens"] for request in payloads(prompts)] == [5]
    assert prompts.report.left_out == without.report.left_out + 1
    assert [request["max_tokens"] for request in payloads(responses)] == [3, 2]
    assert responses.report.left_out == without.report.left_out


async def test_turn_over_the_limit_is_left_out(in_file: Config) -> None:
    turns = [(5, {"timestamp": 0}), (90, {"delay": 1}), (7, {"delay": 1})]
    rows = [{"session_id": "a", "input_length": n, "output_length": 4} | at for n, at in turns]
    parts = {"dataset": {"max_input_tokens": 10}, "load": {"fixed_schedule": True}}
    content = "\n".join(map(json.dumps, rows))
    dataset = await build_dataset(in_file("mooncake_trace", content, **parts))
    assert [len(entry.turns) for entry in dataset.conversations] == [2]  # type: ignore[union-attr]
    assert dataset.report.left_out == 1


@pytest.mark.parametrize("name", ["max_input_tokens", "max_output_tokens"])
def test_a_limit_without_a_trace_is_refused(config: Config, name: str) -> None:
    with pytest.raises(ValidationError, match=rf"{name}.* needs .*mooncake_trace.*, not single_t"):
        config(dataset={"kind": "single_turn", "file": "f", name: 4})


@pytest.mark.parametrize("kind", ["single_turn", "azure_trace"])
def test_a_block_size_without_blocks_is_refused(config: Config, kind: str) -> None:
    with pytest.raises(ValidationError, match="block_size"):
        config(dataset={"kind": kind, "file": "f", "block_size": 4})


@KINDS
def test_a_trace_needs_a_file(config: Config, kind: str) -> None:
    with pytest.raises(ValidationError, match=r"needs {file}"):
        config(dataset={"kind": kind})
