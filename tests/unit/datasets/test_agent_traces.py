"""The readers of agent traces: streams, edges, pauses and clear errors."""

import json
from typing import Any

import pytest

from aiperf_svc.core.datasets import otel_trace, weka_trace
from aiperf_svc.core.datasets.dag_jsonl import DagSessions
from aiperf_svc.core.datasets.session_trees import ResponseOf, TracedTree
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import PlannedRequest
from tests.support.agent_traces import call, subagent, weka

S = 1_000_000_000
HELLO = [{"role": "user", "content": "Hello"}]


# --- Weka ----------------------------------------------------------------------------------------


def plans(tree: TracedTree) -> list[tuple[int, tuple[int, ...], int]]:
    return [(plan.stream, plan.after, plan.delay_ns) for plan in tree.plans]


def test_subagent_is_spawned_and_joined_by_its_times() -> None:
    content = weka(call(0, [1]), subagent(2, call(2, [7]), call(4, [7, 8])), call(6, [1, 2]))
    tree = weka_trace.read_tree(content, "f:1")
    assert [(stream.id, stream.parent) for stream in tree.streams] == [("root", -1), ("sub", 0)]
    assert plans(tree) == [(0, (), 0), (1, (0,), 1 * S), (1, (1,), 1 * S), (0, (0, 2), 1 * S)]


def test_subagent_that_overlaps_is_not_joined() -> None:
    tree = weka_trace.read_tree(
        weka(call(0, [1]), subagent(1, call(1, [7], 9.0)), call(3, [1, 2])), "f:1"
    )
    assert plans(tree) == [(0, (), 0), (1, (0,), 0), (0, (0,), 2 * S)]


def test_times_before_the_subagents_are_relative_to_it() -> None:
    tree = weka_trace.read_tree(weka(call(0, [1]), subagent(5, call(0.5, [7]))), "f:1")
    assert tree.requests[1].plan.start_ns == 5.5 * S


def test_flat_requests_are_split_by_their_prefixes() -> None:
    tree = weka_trace.read_tree(
        weka(call(0, [1, 2]), call(2, [1, 9]), call(2.5, [1, 2, 3]), call(4, [1, 9, 10])), "f:1"
    )
    assert [plan.stream for plan in tree.plans] == [0, 1, 0, 1]


def test_shortened_context_stays_in_its_stream() -> None:
    tree = weka_trace.read_tree(weka(call(0, [1, 2, 3]), call(2, [1, 4]), call(4, [1, 4, 5])), "f")
    assert [plan.stream for plan in tree.plans] == [0, 0, 0]


def test_another_model_is_another_stream() -> None:
    tree = weka_trace.read_tree(weka(call(0, [1]), call(2, [1, 2], model="other")), "f:1")
    assert [plan.stream for plan in tree.plans] == [0, 1]


def test_recorded_think_time_replaces_the_gap() -> None:
    content = weka(call(0, [1]), call(9, [1, 2], think_time=0.25))
    assert weka_trace.read_tree(content, "f", think_time_only=True).plans[1].delay_ns == S / 4
    assert weka_trace.read_tree(content, "f").plans[1].delay_ns == 8 * S


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (weka(call(0, [1]), hash_id_scope="global"), "`hash_id_scope` 'global' is not supported"),
        (weka(call(-1, [1])), r"requests\[0\]: `t` -1 is not between 0 and"),
        (weka(call(0, [1], -2.0)), r"requests\[0\]: `api_time` -2 is not between"),
        (weka(call(1e12, [1])), r"`t` 1e\+12 is not between 0 and 31,536,000 seconds"),
        (weka(call(0, [1, 2, 3], **{"in": 20})), "3 hash ids for 20 tokens"),
        (weka(subagent(0, call(0, [1]), agent_id="")), "a subagent without `agent_id`"),
        (weka(subagent(0, subagent(0))), r"requests\[0\]\.requests\[0\]: a subagent within"),
        (weka(call(0, [1]), block_size=0), "`block_size` 0"),
        (weka(), "no requests"),
        (b"{}", "missing required field `id`"),
        (weka({"t": 0, "type": "x"}), "Invalid enum value 'x'"),
    ],
)
def test_bad_weka_trace_is_one_clear_line(content: bytes, wrong: str) -> None:
    with pytest.raises(DatasetError, match=wrong) as raised:
        weka_trace.read_tree(content, "trace.json:3")
    assert str(raised.value).startswith("trace.json:3: ")
    assert "\n" not in str(raised.value)


# --- DAG -----------------------------------------------------------------------------------------


def dag(*sessions: dict[str, Any]) -> DagSessions:
    lines = [(number, json.dumps(each).encode()) for number, each in enumerate(sessions, start=1)]
    return DagSessions(lines, "dag.jsonl")


def session(name: str, *turns: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"session_id": name, "turns": [{"messages": HELLO} | turn for turn in turns]} | members


def test_spawned_sessions_are_joined_at_the_next_turn() -> None:
    (tree,) = dag(
        session("a", {"spawns": ["b", "c"]}, {"delay": 200}),
        session("b", {}, {"delay": 30}),
        session("c", {}),
    ).trees()
    assert [(stream.id, stream.parent) for stream in tree.streams] == [
        ("a", -1),
        ("b", 0),
        ("c", 0),
    ]
    assert plans(tree) == [
        (0, (), 0),
        (1, (0,), 0),
        (1, (1,), 30_000_000),
        (2, (0,), 0),
        (0, (0, 2, 3), 200_000_000),
    ]


def test_join_can_be_later_than_the_next_turn() -> None:
    (tree,) = dag(
        session("a", {"spawns": [{"children": ["b"], "join_at": 2}]}, {}, {}), session("b", {})
    ).trees()
    assert [plan.after for plan in tree.plans] == [(), (0,), (0,), (1, 2)]


def test_fork_inherits_the_history_and_ends_the_parent() -> None:
    (tree,) = dag(session("a", {}, {"forks": ["b"]}), session("b", {})).trees()
    assert tree.requests[2].messages == (*HELLO, ResponseOf(0), *HELLO, ResponseOf(1), *HELLO)
    assert tree.plans[2] == PlannedRequest((1,), stream=1)


def test_background_fork_is_not_waited_for() -> None:
    fork = {"forks": [{"child": "b", "background": True}]}
    (tree,) = dag(session("a", fork, {}), session("b", {})).trees()
    assert [plan.after for plan in tree.plans] == [(), (0,), (0,)]


def test_context_mode_decides_the_prompts_messages() -> None:
    turns: tuple[dict[str, Any], ...] = (
        {},
        {"messages": [{"role": "assistant", "content": "Hi"}, *HELLO]},
    )
    for mode, expected in (
        ("deltas_with_responses", 3),
        ("deltas_without_responses", 4),
        ("message_array_with_responses", 2),
    ):
        (tree,) = dag(session("a", *turns, context_mode=mode)).trees()
        assert len(tree.requests[1].messages) == expected


def test_orchestrator_repeats_its_rounds() -> None:
    (tree,) = dag(
        {"session_id": "o", "orchestrator": True, "spawns": ["b", "c"], "rounds": 2,
         "think_time_ms": 40},
        session("b", {}),
        session("c", {}),
    ).trees()  # fmt: skip
    assert plans(tree) == [
        (1, (), 40_000_000),
        (2, (), 40_000_000),
        (3, (0, 1), 40_000_000),
        (4, (0, 1), 40_000_000),
    ]


def test_stream_without_requests_is_no_parent() -> None:
    (tree,) = dag(
        {"session_id": "o", "orchestrator": True, "spawns": ["b"]},
        session("b", {"spawns": ["p"]}, {}),
        {"session_id": "p", "orchestrator": True, "spawns": ["c"]},
        session("c", {}),
    ).trees()
    parents = [(stream.id, stream.parent) for stream in tree.streams]
    assert parents == [("o", -1), ("b", -1), ("p", 1), ("c", 1)]
    tree = weka_trace.read_tree(weka(subagent(1, call(1, [7]))), "f:1")
    assert [stream.parent for stream in tree.streams] == [-1, -1]


def test_session_before_the_first_turn_is_in_background() -> None:
    (tree,) = dag(session("a", {}, {}, pre_session_spawns=["b"]), session("b", {})).trees()
    assert [(plan.stream, plan.after) for plan in tree.plans] == [(1, ()), (0, ()), (0, (1,))]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def assistant(call: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("sessions", "wrong"),
    [
        ([session("a", {"spawns": ["b"]})], "starts 'b', and no line has this `session_id`"),
        (
            [session("a", {"spawns": ["b"]}), session("b", {"spawns": ["a"]})],
            "a cycle: 'a' is started by 'b' is started by 'a'",
        ),
        (
            [
                session("a", {}, {"spawns": [{"children": ["b"], "join_at": 1}]}, {}),
                session("b", {}),
            ],
            r"turns\[1\]: `join_at` 1 is before the spawn",
        ),
        (
            [session("a", {"spawns": [{"children": ["b"], "join_at": 4}]}, {}), session("b", {})],
            r"turns\[0\]: `join_at` 4: the session has 2 turns",
        ),
        ([session("a", {"forks": ["b"]}, {}), session("b", {})], "forks to 'b', which ends"),
        ([session("a", {"spawns": ["b", "b"]}), session("b", {})], "starts 'b' twice"),
        (
            [session("a", {"spawns": ["c"]}), session("b", {"spawns": ["c"]}), session("c", {})],
            "starts 'c', which 'a' starts too",
        ),
        ([session("a", {"delay": -1})], r"turns\[0\]: `delay` -1 is not between 0 and 86,400,000"),
        ([session("a", {"messages": [{"role": "robot"}]})], r"`messages\[0\].role` 'robot'"),
        ([session("a", {"messages": [{"role": "tool"}]})], "has no `tool_call_id`"),
        ([session("a", assistant(CALL | {"id": ""}))], r"tool_calls\[0\]` has no `id`"),
        (
            [session("a", assistant(CALL | {"function": {"name": "f", "arguments": "{"}}))],
            "has `arguments` that are not JSON: '{'",
        ),
        ([session("a", {"max_tokens": 10**12})], "`max_tokens` 1000000000000: expected a number"),
        (
            [
                session("a", orchestrator=True, rounds=[{"spawns": ["b"], "think_time_ms": -5}]),
                session("b", {}),
            ],
            r"rounds\[0\]: `think_time_ms` -5 is not between 0 and",
        ),
        (
            [session("a", orchestrator=True, spawns=["b"], think_time_sigma=99), session("b", {})],
            "`think_time_sigma` 99 is not between 0 and 10",
        ),
        ([session("a")], "no `turns`"),
        ([session("a", {}), session("a", {})], "a second one with this `session_id`"),
        ([session("a", {"spawn": ["b"]})], "unknown field `spawn`"),
    ],
)
def test_bad_session_is_one_clear_line(sessions: list[dict[str, Any]], wrong: str) -> None:
    with pytest.raises(DatasetError, match=wrong) as raised:
        dag(*sessions)
    assert str(raised.value).startswith("dag.jsonl:")
    assert "\n" not in str(raised.value)


def test_too_deeply_nested_session_spawns_are_refused() -> None:
    chain = [session(f"s{n}", {"spawns": [f"s{n + 1}"]}) for n in range(3_000)]
    with pytest.raises(DatasetError, match=r"s0.*start each other too deeply"):
        list(dag(*chain, session("s3000", {})).trees())


# --- OpenTelemetry -------------------------------------------------------------------------------


def span(name: str, start: float, end: float, messages: Any, **attributes: Any) -> dict[str, Any]:
    return {
        "span_id": name,
        "start_time": f"2026-01-01T00:00:{start:06.3f}Z",
        "end_time": f"2026-01-01T00:00:{end:06.3f}Z",
        "attributes": {"gen_ai.input.messages": messages}
        | {f"gen_ai.{key}": value for key, value in attributes.items()},
    }


def otel(*spans: dict[str, Any]) -> bytes:
    return json.dumps({"spans": spans}).encode()


def test_spans_become_streams_by_their_messages() -> None:
    answer = {"role": "assistant", "content": "Hi"}
    other = [{"role": "user", "content": "Other"}]
    tree = otel_trace.read_tree(
        otel(
            span("c", 5, 6, json.dumps([*HELLO, answer, *HELLO])),
            span("a", 1, 2, HELLO, **{"request.model": "m", "usage.completion_tokens": 7}),
            span("b", 2.5, 4, other, **{"usage.output_tokens": 9}),
            {"span_id": "t", "start_time": "1", "end_time": "2", "attributes": {}},
        ),
        "f:1",
    )
    assert plans(tree) == [(0, (), 0), (1, (0,), S / 2), (0, (0, 1), 1 * S)]
    assert [request.output_tokens for request in tree.requests] == [7, 9, None]


def test_parts_become_messages_of_the_chat_api() -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "Hello"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "f", "arguments": {"x": 1}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "result": "ok"}]},
    ]
    tree = otel_trace.read_tree(
        otel(span("a", 1, 2, messages, **{"tool.definitions": '[{"type": "function"}]'})), "f:1"
    )
    function = {"name": "f", "arguments": '{"x":1}'}
    assert tree.requests[0].messages == (
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    )
    assert tree.requests[0].members == {"tools": [{"type": "function"}]}


def test_reasoning_and_pictures_of_parts_are_sent() -> None:
    picture = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "QUJD"}
    linked = {"type": "uri", "modality": "image", "uri": "https://p/a.png"}
    text = {"type": "text", "content": "Hello"}
    messages = [
        {"role": "user", "parts": [picture, text, linked]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, text]},
        {"role": "user", "parts": [text]},
    ]
    first, second = ("data:image/png;base64,QUJD", "https://p/a.png")
    (request,) = otel_trace.read_tree(otel(span("a", 1, 2, messages)), "f:1").requests
    assert request.messages == (
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": first}},
                {"type": "text", "text": "Hello"},
                {"type": "image_url", "image_url": {"url": second}},
            ],
        },
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
        {"role": "user", "content": "Hello"},
    )


def test_parts_of_anthropics_api_are_sent() -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}],
        },
        {"role": "user", "parts": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
    ]
    (request,) = otel_trace.read_tree(otel(span("a", 1, 2, messages)), "f:1").requests
    function = {"name": "f", "arguments": '{"x":1}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert request.messages == (
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    )


@pytest.mark.parametrize("instructions", [[{"type": "text", "content": "Be brief"}], "Be brief"])
def test_instructions_and_tools_of_conventions_are_sent(instructions: Any) -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    attributes = {
        "system_instructions": instructions,
        "tool.definitions": [{"type": "function", **function}],
    }
    (request,) = otel_trace.read_tree(otel(span("a", 1, 2, HELLO, **attributes)), "f:1").requests
    assert request.messages == ({"role": "system", "content": "Be brief"}, *HELLO)
    assert request.members == {"tools": [{"type": "function", "function": function}]}


def test_output_of_a_span_is_not_read() -> None:
    strange = [{"role": "assistant", "parts": [{"type": "strange"}]}]
    tree = otel_trace.read_tree(otel(span("a", 1, 2, HELLO, **{"output.messages": strange})), "f:1")
    assert tree.requests[0].messages == tuple(HELLO)


def of_user(**part: Any) -> bytes:
    """Return a span whose message has this part."""
    return otel(span("a", 1, 2, [{"role": "user", "parts": [part]}]))


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (of_user(type="file", modality="image", file_id="x"), "part of type 'file' in a message"),
        (of_user(type="blob", modality="audio", content="QUJD"), "type 'blob'.*with an image"),
        (of_user(type="uri", modality="image"), "type 'uri'.*with an image"),
        (otel(span("a", 1, 2, {"role": "user"})), "input.messages` is not a list; expected one"),
        (otel(span("a", 2, 1, HELLO)), "`end_time` is before `start_time`"),
        (otel(span("a", 1, 2, "[")), "`gen_ai.input.messages` is not JSON"),
        (otel(span("a", 1, 2, [{"role": "robot"}])), "'robot': expected system"),
        (otel(span("a", 1, 2, assistant(CALL | {"id": None})["messages"])), "has no `id`"),
        (
            otel(span("a", 1, 2, HELLO, **{"usage.completion_tokens": -3})),
            "-3 is not a number of tokens",
        ),
        (otel(), "no span with `gen_ai.input.messages`"),
        (otel({"span_id": "a", "start_time": "noon", "end_time": "noon",
               "attributes": {"gen_ai.input.messages": HELLO}}), "Invalid isoformat"),
        (otel(span("a", 1, 2, HELLO) | {"end_time": "9999-01-01"}), "`end_time` .* is not between"),
        (otel(span("a", 1, 2, HELLO) | {"end_time": "9" * 400}), "too large"),
        (otel(span("a", 1, 2, HELLO) | {"end_time": 10**400}), "too large"),
        (otel(span("a", 1, 2, HELLO) | {"end_time": "²"}), "Invalid isoformat"),
    ],
)  # fmt: skip
def test_bad_span_is_one_clear_line(content: bytes, wrong: str) -> None:
    with pytest.raises(DatasetError, match=wrong) as raised:
        otel_trace.read_tree(content, "spans.json:1")
    assert str(raised.value).startswith("spans.json:1: ")
    assert "\n" not in str(raised.value)
