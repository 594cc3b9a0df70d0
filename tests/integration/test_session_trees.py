"""Session trees in whole runs, compared with the mock server's own record of arrival times."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from tokenizers import Tokenizer, models, pre_tokenizers

from aiperf_svc.adapters.exports.jsonl_export import write_lines
from aiperf_svc.core.datasets.weka_trace import read_tree
from aiperf_svc.core.datasets.words import WORDS
from aiperf_svc.core.endpoints.history import Reply
from aiperf_svc.core.responses.text import reply_of
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from aiperf_svc.services import worker
from tests.support.agent_traces import call, subagent, weka
from tests.support.in_one_loop import config, results_of, server, stack
from tests.support.scripted_server import served

MS = 1_000_000
Rows = dict[str, dict[str, Any]]


def rows_of(mock: Any) -> Rows:
    rows = {row["request_id"]: row for row in mock.truth(rows=True)["rows"]}
    return {name: row for name, row in rows.items() if "probe" not in name}


def dataset(folder: Path, kind: str, *lines: bytes, **members: Any) -> dict[str, Any]:
    file = folder / "trace.jsonl"
    file.write_bytes(b"\n".join(lines))
    return {"kind": kind, "file": str(file), **members}


def row(rows: Rows, index: int, number: int, phase: Phase = Phase.PROFILING) -> dict[str, Any]:
    return rows[request_id("test", phase, index, number)]


def random_tree(rng: Random, name: str) -> bytes:
    """Return a root with subagents at random times, some of which overlap its next request."""
    now, ids, requests = 0.0, [1], list[dict[str, Any]]()
    fresh = itertools.count(2)
    for _ in range(rng.randint(4, 9)):
        ids = [*ids, next(fresh)]
        taken = rng.uniform(0.001, 0.02)
        requests.append(call(now, ids, taken))
        now += taken
        for number in range(rng.choice((0, 0, 1, 2))):
            own, at = [next(fresh)], now + rng.uniform(0, 0.004)
            inner = []
            for _ in range(rng.randint(1, 4)):
                inner.append(call(at, list(own), span := rng.uniform(0.001, 0.01)))
                at += span + rng.uniform(0, 0.004)
                own.append(next(fresh))
            requests.append(subagent(inner[0]["t"], *inner, agent_id=f"{now}-{number}"))
            if rng.random() < 0.7:
                now = max(now, at)
        now += rng.uniform(0, 0.006)
    return weka(*requests, id=name)


async def test_thousands_of_requests_keep_their_order(tmp_path: Path) -> None:
    rng = Random(5)
    lines = [random_tree(rng, f"t{number}") for number in range(150)]
    trees = [read_tree(line, "f") for line in lines]
    total = sum(len(tree.requests) for tree in trees)
    assert total > 2_000
    assert sum(len(tree.streams) - 1 for tree in trees) > 300
    with server(ttft="1ms", tokens=2) as mock:
        settings = config(
            mock.url,
            dataset=dataset(tmp_path, "weka_trace", *lines),
            concurrency=20,
            requests=total,
        )
        summary = await results_of(settings, tmp_path, workers=2)
        rows = rows_of(mock)
    assert summary["request_count"]["avg"] == total == len(rows)
    accounts = summary["aiperf_svc"]["accounts"]
    assert (accounts["issued"], accounts["completed"]) == (150, 150)
    joins = 0
    for index, tree in enumerate(trees):
        for number, plan in enumerate(tree.plans):
            arrival = row(rows, index, number)["arrival_wall_ns"]
            ends = [row(rows, index, other)["end_wall_ns"] for other in plan.after]
            joins += len(ends) > 1
            if ends:
                assert arrival >= max(ends) + plan.delay_ns, (index, number)
    assert joins > 200


async def test_user_has_one_live_tree(tmp_path: Path) -> None:
    line = weka(call(0, [1]), subagent(1, call(1.01, [7]), call(1.02, [7, 8])), call(1.05, [1, 2]))
    lines = [line.replace(b'"a"', b'"t%d"' % number) for number in range(12)]
    trace = dataset(tmp_path, "weka_trace", *lines, delay_factor=0.01)
    with server(ttft="2ms", tokens=2) as mock:
        await results_of(config(mock.url, dataset=trace, concurrency=3, requests=48), tmp_path)
        rows = rows_of(mock)
    spans = [
        (
            min(row(rows, index, number)["arrival_wall_ns"] for number in range(4)),
            max(row(rows, index, number)["end_wall_ns"] for number in range(4)),
        )
        for index in range(12)
    ]
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    assert max(itertools.accumulate(step for _, step in edges)) == 3


HELLO = {"role": "user", "content": "Hello"}
Prompts = list[list[dict[str, Any]]]


def message(content: str | None, *call_ids: str) -> dict[str, Any]:
    """Return the message of a response, with tool calls."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": each, "type": "function", "function": function} for each in call_ids]
    made: dict[str, Any] = {"role": "assistant", "content": content}
    return made | ({"tool_calls": calls} if calls else {})


def as_lines(*sessions: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in sessions]


async def prompts_of(
    folder: Path, trace: dict[str, Any], reply: Callable[[int], dict[str, Any]], *, requests: int
) -> tuple[Prompts, dict[str, Any]]:
    """Return the prompts that a server received in order, and the results. It answers request `n`,
    from 1, with the message `reply(n)`."""
    prompts: Prompts = []

    async def respond(request: web.Request) -> web.Response:
        prompts.append((await request.json())["messages"])
        return web.json_response({"choices": [{"index": 0, "message": reply(len(prompts))}]})

    async with served("/v1/chat/completions", respond) as url:
        settings = config(url, dataset=trace, concurrency=1, requests=requests)
        settings["endpoint"] |= {"streaming": False}
        async with stack(settings, folder) as run:
            return prompts, await run.results()


async def test_live_responses_are_in_the_prompts_of_forks(tmp_path: Path) -> None:
    turn = {"messages": [HELLO]}
    lines = as_lines(
        {"session_id": "a", "turns": [turn, turn | {"forks": ["b"]}]},
        {"session_id": "b", "turns": [turn]},
    )
    trace = dataset(tmp_path, "dag_jsonl", *lines)
    prompts, _ = await prompts_of(tmp_path, trace, lambda n: message(f"answer {n}"), requests=3)
    one, two = (message(f"answer {number}") for number in (1, 2))
    assert prompts == [[HELLO], [HELLO, one, HELLO], [HELLO, one, HELLO, two, HELLO]]


async def test_orchestrator_sends_the_requests_of_its_rounds(tmp_path: Path) -> None:
    lines = as_lines(
        {"session_id": "o", "orchestrator": True, "spawns": ["b", "c"], "rounds": 2},
        *({"session_id": name, "turns": [{"messages": [HELLO]}]} for name in "bc"),
    )
    trace = dataset(tmp_path, "dag_jsonl", *lines)
    prompts, _ = await prompts_of(tmp_path, trace, lambda _: message("Hi"), requests=4)
    assert prompts == [[HELLO]] * 4


async def test_tool_results_get_ids_of_live_calls(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "recorded", "content": "12 °C"}
    turns = [{"messages": each} for each in ([HELLO], [result, HELLO], [HELLO])]

    def reply(turn: int) -> dict[str, Any]:
        return message(None, f"live-{turn}-0", f"live-{turn}-1")

    def answered(turn: int, content: str) -> list[dict[str, Any]]:
        """Return the message of a response and the results of its calls."""
        made = reply(turn)
        ids = [each["id"] for each in made["tool_calls"]]
        return [made, *({"role": "tool", "tool_call_id": n, "content": content} for n in ids)]

    trace = dataset(tmp_path, "dag_jsonl", *as_lines({"session_id": "a", "turns": turns}))
    prompts, _ = await prompts_of(tmp_path, trace, reply, requests=3)
    # The last recorded result is used for further calls. Without one, the result is "ok".
    first, second = answered(1, "12 °C"), answered(2, "ok")
    assert prompts == [[HELLO], [HELLO, *first, HELLO], [HELLO, *first, HELLO, *second, HELLO]]


async def test_response_before_several_forks_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [{"role": "tool", "tool_call_id": "recorded", "content": text} for text in "bc"]
    lines = as_lines(
        {"session_id": "a", "turns": [{"messages": [HELLO], "forks": ["b", "c"]}]},
        *({"session_id": each["content"], "turns": [{"messages": [each]}]} for each in results),
    )
    reads = list[bytes]()

    def read(data: bytes, **options: Any) -> Reply:
        reads.append(data)
        return reply_of(data, **options)

    monkeypatch.setattr(worker, "reply_of", read)
    trace = dataset(tmp_path, "dag_jsonl", *lines)
    prompts, _ = await prompts_of(tmp_path, trace, lambda _: message(None, "x"), requests=3)
    assert sorted(prompt[-1]["content"] for prompt in prompts[1:]) == ["b", "c"]
    assert len(reads) == 1


async def test_tool_results_without_live_call_become_user_text(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "recorded", "content": "12 °C"}
    turns = [{"messages": [HELLO]}, {"messages": [result]}]
    trace = dataset(tmp_path, "dag_jsonl", *as_lines({"session_id": "a", "turns": turns}))
    prompts, results = await prompts_of(tmp_path, trace, lambda _: message("no call"), requests=2)
    assert prompts[1] == [HELLO, message("no call"), {"role": "user", "content": "12 °C"}]
    checks = results["aiperf_svc"]["reasons"]
    assert [each["check"] for each in checks if each["check"] == "histories"] == ["histories"]


def word_tokenizer(folder: Path) -> str:
    """Write a tokenizer whose tokens are words, and return its folder."""
    words = {word: number for number, word in enumerate(("[UNK]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


async def test_server_caches_the_blocks_of_the_trace(tmp_path: Path) -> None:
    # One tree with growing prompts whose remainders exceed their blocks, and an unrelated tree.
    own = [call(0, [1, 2]), call(1, [1, 2, 3], **{"in": 27}), call(2, [1, 2, 3, 4], **{"in": 38})]
    lines = [weka(*own, id="a"), weka(call(0, [1, 2, 3]), id="b")]
    trace = dataset(tmp_path, "weka_trace", *lines, delay_factor=0.0)
    with server(tokens=2, prefix_cache_block=5) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, requests=4)
        settings["endpoint"] |= {"type": "completions", "prompt_token_ids": True}
        settings["tokenizer"] = {"name": word_tokenizer(tmp_path)}
        await results_of(settings, tmp_path)
    lines_of_run = (tmp_path / "artifacts" / "profile_export.jsonl").read_text().splitlines()
    found = {}
    for line in map(json.loads, lines_of_run):
        metrics, metadata = line["metrics"], line["metadata"]
        key = (metadata["conversation_id"], metadata["turn_index"])
        names = ("usage_prompt_tokens", "usage_prompt_cache_read_tokens")
        found[key] = tuple(metrics[name]["value"] for name in names)
    # The prompts share 20 and 27 tokens. The server caches the whole blocks of 5 tokens among them.
    tree, other = sorted({key[0] for key in found})
    assert [found[tree, turn] for turn in range(3)] == [(20, 0), (27, 20), (38, 25)]
    assert found[other, 0] == (30, 0)


async def test_failed_request_fails_only_its_tree(tmp_path: Path) -> None:
    lines = [
        weka(call(0, [1]), subagent(2, call(2, [7])), call(4, [1, 2]), id=f"t{number}")
        for number in range(8)
    ]
    trace = dataset(tmp_path, "weka_trace", *lines, delay_factor=0)
    with server(tokens=2, error_rate=0.2) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, requests=60)
        summary = await results_of(settings, tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["errored"] > 0
    assert accounts["completed"] > 0
    assert accounts["violations"] == []


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"request_rate": 60.0}])
async def test_stop_ends_every_tree(load: dict[str, Any], tmp_path: Path) -> None:
    lines = [
        weka(call(0, [1], 0.01), call(0.05, [1, 2], 0.01), call(30, [1, 2, 3]), id=f"t{number}")
        for number in range(9)
    ]
    trace = dataset(tmp_path, "weka_trace", *lines)
    with server(ttft="5ms", tokens=2) as mock:
        settings = config(mock.url, dataset=trace, duration=2, grace_period=5, **load)
        summary = await results_of(settings, tmp_path, workers=2)
        sent = len(rows_of(mock))
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["cancelled"] > 0
    assert accounts["lost"] == 0
    assert summary["request_count"]["avg"] == sent


async def test_load_begins_inside_with_a_filled_cache(tmp_path: Path) -> None:
    ids = list(range(1, 41))
    lines = [
        weka(*(call(n / 100, ids[: n + 1], 0.001) for n in range(40)), id=f"t{number}")
        for number in range(6)
    ]
    trace = dataset(
        tmp_path,
        "weka_trace",
        *lines,
        cache_bust="first_turn_prefix",
        cache_bust_per="conversation",
    )
    agentic = {"start": {"min": 0.5, "max": 0.5}, "warmup_requests": 3}
    with server(tokens=5) as mock:
        settings = config(mock.url, dataset=trace, concurrency=4, requests=200, agentic=agentic)
        summary = await results_of(settings, tmp_path, workers=2)
        rows = rows_of(mock)
    warmed = sorted(name for name in rows if name.split("-")[2] == "8000")
    # Half of 390 ms is before request 20, and three more requests are warmed.
    numbers = [19, 20, 21, 22]
    assert warmed == sorted(
        request_id("test", Phase.WARMUP, index, number) for index in range(4) for number in numbers
    )
    chunks = {len(rows[name]["chunk_wall_ns"]) for name in warmed}
    whole = {len(each["chunk_wall_ns"]) for name, each in rows.items() if name not in warmed}
    assert max(chunks) < max(whole)
    assert summary["request_count"]["avg"] == 200
    for index in range(4):
        assert request_id("test", Phase.PROFILING, index, 22) not in rows
        assert request_id("test", Phase.PROFILING, index, 23) in rows
    assert request_id("test", Phase.PROFILING, 4, 0) in rows
    assert summary["aiperf_svc"]["topology"]["dataset"]["theoretical_prefix_cache_hit"] == 39 / 41


async def test_failed_warmup_request_fails_the_run(tmp_path: Path) -> None:
    line = weka(*(call(n, list(range(n + 1))) for n in range(9)))
    trace = dataset(tmp_path, "weka_trace", line)
    with server(tokens=5, error_rate=1.0) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, duration=5, agentic={})
        async with stack(settings, tmp_path) as run:
            await run.wait_for_state("failed")
            reason = run.records_manager.status().reason
    assert "1 of 1 session trees could not fill the server's cache" in reason


async def test_idle_caps_shorten_pauses(tmp_path: Path) -> None:
    line = weka(call(0, [1], 0.01), call(3600, [1, 2]), call(7200, [1, 2, 3]))
    trace = dataset(tmp_path, "weka_trace", line)
    agentic = {"start": {"min": 0, "max": 0}, "trajectory_idle_cap": 0.3, "system_idle_cap": 0.1}
    with server(tokens=2) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, requests=3, agentic=agentic)
        settings["workers"] = {"max": 1}
        await results_of(settings, tmp_path)
        rows = rows_of(mock)
    pause = row(rows, 0, 1)["arrival_wall_ns"] - row(rows, 0, 0)["end_wall_ns"]
    assert pause > 95 * MS
    assert request_id("test", Phase.PROFILING, 0, 2) in rows


async def test_longest_delay_bounds_the_first_pause(tmp_path: Path) -> None:
    line = weka(call(0, [1], 0.01), call(3600, [1, 2]))
    trace = dataset(tmp_path, "weka_trace", line, max_delay=0.1)
    agentic = {"start": {"min": 0.5, "max": 0.5}}
    with server(tokens=2) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, requests=2, agentic=agentic)
        await results_of(settings, tmp_path)
        rows = rows_of(mock)
    assert request_id("test", Phase.PROFILING, 0, 1) in rows


async def test_complete_messages_are_sent_without_a_history(tmp_path: Path) -> None:
    arrays = [[HELLO], [HELLO, message("recorded"), HELLO]]
    lines = as_lines(*({"session_id": "a", "messages": each} for each in arrays))
    trace = dataset(tmp_path, "mooncake_trace", *lines)
    prompts, _ = await prompts_of(tmp_path, trace, lambda _: message("live"), requests=2)
    assert prompts == arrays


def metadata_of(line: str) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(line)["metadata"]
    return metadata


async def test_lines_have_the_ids_of_streams(tmp_path: Path) -> None:
    line = weka(call(0, [1]), subagent(1, call(1, [7], 0.01)), call(1.02, [1, 2]))
    trace = dataset(tmp_path, "weka_trace", line, delay_factor=0.01)
    with server(tokens=2) as mock:
        settings = config(mock.url, dataset=trace, concurrency=1, requests=3)
        async with stack(settings, tmp_path) as run:
            await run.results()
            await run.wait_for_state("done")
    folder = tmp_path / "artifacts"
    write_lines(folder / "records.parquet", folder / "again.jsonl")
    found, again = (
        {each["turn_index"]: each for each in map(metadata_of, path.read_text().splitlines())}
        for path in (folder / "profile_export.jsonl", folder / "again.jsonl")
    )
    ids = ("x_correlation_id", "root_correlation_id", "parent_correlation_id", "agent_depth")
    for number in range(3):
        assert all(again[number].get(name) == found[number].get(name) for name in ids)
    lines = found
    root, child = (request_id("test", Phase.PROFILING, 0, number) for number in (0, 1))
    assert [lines[number]["x_correlation_id"] for number in range(3)] == [root, child, root]
    assert {each["root_correlation_id"] for each in lines.values()} == {root}
    assert [lines[number].get("parent_correlation_id") for number in range(3)] == [None, root, None]
    assert [lines[number]["agent_depth"] for number in range(3)] == [0, 1, 0]
    assert [each["conversation_id"] for each in lines.values()] == ["session_000000"] * 3
