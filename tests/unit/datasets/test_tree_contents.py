"""Requests of session trees: exact tokens, prefixes according to the hash ids, and markers."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.cache_bust import marker_of
from aiperf_svc.core.datasets.dag_jsonl import DagSessions
from aiperf_svc.core.datasets.session_trees import common_prefix
from aiperf_svc.core.datasets.tree_contents import TreeContents
from aiperf_svc.core.datasets.tree_dataset import TreeIndex
from aiperf_svc.core.datasets.weka_trace import read_tree
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import RESPONSE_PIECE, Conversation, LiveResponse
from tests.support.agent_traces import body_of, call, subagent, weka

Config = Callable[..., BenchmarkConfig]
TRACE = weka(
    call(0, [1, 2, 3], **{"in": 27}),
    call(2, [1, 2, 3, 4], **{"in": 45}),
    subagent(2, call(4, [9, 2, 3]), call(6, [9, 2, 3, 7], **{"in": 33})),
    call(9, [1, 2, 5]),
)


def entry(
    config: BenchmarkConfig, counter: LibraryTokenCounter | None = None, **trace: Any
) -> Conversation:
    content = json.dumps(json.loads(TRACE) | trace).encode()
    return TreeContents(config, counter).entry(read_tree(content, "f"), 0)


def texts(made: Conversation) -> list[str]:
    return [body_of(made, number)["messages"][0]["content"] for number in range(len(made.turns))]


def dag_entry(
    config: Config, line: dict[str, Any], endpoint: dict[str, str] | None = None, **dataset: str
) -> Conversation:
    """Return the entry for the session in this line."""
    (tree,) = DagSessions([(1, json.dumps(line).encode())], "f").trees()
    dataset = {"kind": "dag_jsonl", "file": "f"} | dataset
    return TreeContents(config(dataset=dataset, endpoint=endpoint or {}), None).entry(tree, 0)


def settings(config: Config, **dataset: Any) -> BenchmarkConfig:
    return config(dataset={"kind": "weka_trace", "file": "f"} | dataset)


def test_prompts_have_the_recorded_tokens(config: Config, any_counter: LibraryTokenCounter) -> None:
    made = entry(settings(config), any_counter)
    assert [any_counter.count(text) for text in texts(made)] == [27, 45, 30, 33, 30]
    assert [turn.input_tokens for turn in made.turns] == [27, 45, 30, 33, 30]


def test_common_hash_ids_yield_common_tokens(
    config: Config, any_counter: LibraryTokenCounter
) -> None:
    made = entry(settings(config), any_counter)
    tree = read_tree(TRACE, "f")
    ids = [list(request.hash_ids) for request in tree.requests]
    encoded = [any_counter.encode(text) for text in texts(made)]
    for one, other in itertools.combinations(range(len(ids)), 2):
        tokens = common_prefix(encoded[one], encoded[other]) // 10
        whole = min(len(encoded[one]), len(encoded[other])) // 10
        assert tokens == min(common_prefix(ids[one], ids[other]), whole)


def test_other_traces_have_other_tokens(config: Config, counter: LibraryTokenCounter) -> None:
    one, other = (texts(entry(settings(config), counter, id=name)) for name in "ab")
    assert common_prefix(counter.encode(one[0]), counter.encode(other[0])) < 10
    assert texts(entry(settings(config), counter)) == one


def test_hash_id_yields_the_same_text_everywhere(config: Config) -> None:
    made = texts(entry(settings(config)))
    words = [text.split() for text in made]
    assert words[0][10:20] == words[2][10:20] == words[1][10:20]
    assert words[0][20:27] == words[1][20:27] == words[2][20:27]


def test_each_block_is_held_once(config: Config) -> None:
    made = entry(settings(config))
    assert len(set(made.pieces)) == len(made.pieces)
    size = sum(map(len, made.pieces))
    assert size < 0.7 * sum(len(json.dumps(body_of(made, n))) for n in range(len(made.turns)))


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_every_text_api_carries_hash_ids(config: Config, api: str) -> None:
    dataset = {"kind": "weka_trace", "file": "f"}
    made = entry(config(dataset=dataset, endpoint={"type": api}))
    body = json.dumps(body_of(made, 1))
    assert len([word for word in body.split() if word.isalpha()]) > 40
    assert made.turns[1].requested_tokens == 5


def test_marker_is_before_the_first_user_turn(config: Config) -> None:
    benchmark = settings(config, cache_bust="first_turn_prefix")
    marker = marker_of(benchmark.prompt_seed, 0)
    plain = texts(entry(settings(config)))
    assert texts(entry(benchmark)) == [f"{marker}\n\n{text}" for text in plain]


def test_marker_of_messages_is_in_every_request(config: Config) -> None:
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    line = {
        "session_id": "a",
        "context_mode": "deltas_with_responses",
        "turns": [{"messages": [system, user]}, {"messages": [user]}],
    }
    made = dag_entry(config, line, cache_bust="first_turn_prefix")
    marked = {"role": "user", "content": f"{marker_of(0, 0)}\n\nu"}
    assert [body_of(made, n)["messages"] for n in (0, 1)] == [
        [system, marked],
        [system, marked, user],
    ]


def test_live_responses_have_a_place_in_later_prompts(config: Config) -> None:
    user = {"role": "user", "content": "u"}
    line = {"session_id": "a", "turns": [{"messages": [user], "tools": [{"type": "x"}]}] * 2}
    made = dag_entry(config, line)
    assert body_of(made, 0)["tools"] == [{"type": "x"}]
    assert int.from_bytes(made.turns[1].pieces[8:12], "little") == RESPONSE_PIECE + 0
    assert made.live == (LiveResponse(0),)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_sound_for_an_api_without_is_refused(config: Config, role: str) -> None:
    heard = {"role": role, "tool_call_id": "c", "content": [{"type": "input_audio"}]}
    first = {"messages": [{"role": "user", "content": "u"}]}
    line = {"session_id": "a", "turns": [first, {"messages": [heard]}]}
    with pytest.raises(DatasetError, match=r"f:1: .*: request 1: `input_audio`: sounds need"):
        dag_entry(config, line, {"type": "messages"})


def test_tool_results_follow_the_live_response(config: Config) -> None:
    user = {"role": "user", "content": "u"}
    results = [{"role": "tool", "tool_call_id": str(n), "content": f"r{n}"} for n in range(2)]
    line = {"session_id": "a", "turns": [{"messages": [user]}, {"messages": [*results, user]}]}
    made = dag_entry(config, line)
    assert made.live == (LiveResponse(0, (b'"r0"', b'"r1"')),)
    assert not [piece for piece in made.pieces if b"r0" in piece or b'"tool"' in piece]
    assert len(made.turns[1].pieces) == 4 * len(("head", "u", "live", "u"))


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_messages_take_the_form_of_the_api(config: Config, api: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "d"}]},
        *({"role": "tool", "tool_call_id": each, "content": "r"} for each in "cd"),
    ]
    function = {"name": "f", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    turn = {"messages": messages, "tools": [tool], "max_tokens": 5, "extra": {"stop": ["x"]}}
    made = dag_entry(config, {"session_id": "a", "turns": [turn]}, endpoint={"type": api})
    body = body_of(made, 0)
    assert "stop" not in body
    if api == "responses":
        assert [item.get("type", item.get("role")) for item in body["input"]] == [
            "system", "user", "function_call", "function_call", "function_call_output",
            "function_call_output",
        ]  # fmt: skip
        assert body["tools"] == [{"type": "function", **function}]
        assert body["max_output_tokens"] == 5
    else:
        assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user"]
        assert len(body["messages"][2]["content"]) == 2
        assert (body["system"], body["max_tokens"]) == ("s", 5)
        assert body["stop_sequences"] == ["x"]
        assert body["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]


def test_delays_follow_factor_and_limit(config: Config) -> None:
    made = entry(settings(config, delay_factor=0.5, max_delay="1s"))
    assert [turn.plan.delay_ns for turn in made.turns if turn.plan] == [0, 5e8, 5e8, 5e8, 1e9]


def test_one_token_requests_differ_in_the_length_alone(config: Config) -> None:
    load = {"requests": 5, "agentic": {}}
    made = entry(config(dataset={"kind": "weka_trace", "file": "f"}, load=load))
    turn = made.turns[0]
    assert turn.one_token_tail == turn.tail.replace(b":5,", b":1,").replace(b":5}", b":1}")
    assert turn.one_token_tail != turn.tail


def test_ceiling_counts_repeated_prefixes_of_a_tree() -> None:
    index = TreeIndex()
    index.add(read_tree(TRACE, "f"))
    # 3 new, 3 of 4 cached, 3 new with another first block, 3 of 4, 2 of 3.
    assert (index.hit_blocks, index.blocks) == (0 + 3 + 0 + 3 + 2, 3 + 4 + 3 + 4 + 3)
    index.add(read_tree(TRACE, "f"))
    assert index.prefix_cache_hit == 8 / 17


def id_settings(config: Config) -> BenchmarkConfig:
    return config(
        dataset={"kind": "weka_trace", "file": "f"},
        endpoint={"type": "completions", "prompt_token_ids": True},
        tokenizer={"name": "t"},
    )


def test_token_ids_are_exact_and_share_whole_blocks(
    config: Config, any_counter: LibraryTokenCounter
) -> None:
    made = entry(id_settings(config), any_counter)
    prompts = [body_of(made, number)["prompt"] for number in range(len(made.turns))]
    assert [len(prompt) for prompt in prompts] == [27, 45, 30, 33, 30]
    assert all(isinstance(each, int) for prompt in prompts for each in prompt)
    ids = [list(request.hash_ids) for request in read_tree(TRACE, "f").requests]
    for one, other in itertools.combinations(range(len(ids)), 2):
        whole = min(len(prompts[one]), len(prompts[other])) // 10
        shared = min(common_prefix(ids[one], ids[other]), whole)
        assert shared * 10 <= common_prefix(prompts[one], prompts[other]) < shared * 10 + 10
