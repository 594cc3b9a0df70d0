"""Earlier responses of a conversation are sent back unchanged. The mock server compares them and
rejects what a real API rejects."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_one_loop import config, results_of, server, talks

TOOLS: dict[str, Any] = {
    "chat": {"type": "function", "function": {"name": "lookup", "parameters": {}}},
    "responses": {"type": "function", "name": "lookup", "parameters": {}},
    "messages": {"name": "lookup", "input_schema": {"type": "object"}},
}
TURNS: list[dict[str, Any]] = [
    {"text": "question"},
    {"role": "tool", "text": "12 °C", "tool_call_id": "a", "delay": 5},
    {"role": "tool", "text": 'a "quoted" result', "tool_call_id": "b"},
    {"role": "assistant", "text": "recorded"},
    {"text": "and then?"},
    {"role": "tool", "text": "13 °C", "tool_call_id": "c"},
    {"text": "Thanks", "role": "user"},
]
REQUESTS = 4
"""Requests of such a conversation: the two results share one, and a text follows the last one."""


async def run_of(folder: Path, url: str, endpoint: dict[str, Any], **dataset: Any) -> Any:
    settings = config(
        url, dataset=talks(folder, *TURNS, count=5) | dataset, concurrency=2, requests=5 * REQUESTS
    )
    settings["endpoint"] |= endpoint
    return await results_of(settings, folder)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", TOOLS)
@pytest.mark.parametrize(("reasoning", "calls"), [(0, 0), (0, 1), (7, 0), (7, 3)])
async def test_server_gets_its_responses_back_unaltered(
    api: str, streaming: bool, reasoning: int, calls: int, tmp_path: Path
) -> None:
    endpoint: dict[str, Any] = {"type": api, "streaming": streaming}
    endpoint["extra_inputs"] = {"tools": [TOOLS[api]]}
    settings = {"tokens": 60, "reasoning_tokens": reasoning, "tool_calls": calls}
    with server(check_history=True, **settings) as mock:
        summary = await run_of(tmp_path, mock.url, endpoint)
    assert summary["error_summary"] == []
    assert summary["request_count"]["avg"] == 5 * REQUESTS
    reasons = {each["check"]: each["text"] for each in summary["aiperf_svc"]["reasons"]}
    assert ("histories" in reasons) == (calls == 0)
    if not calls:
        assert "10 without a tool call" in reasons["histories"]


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_refusals_are_sent_back_unaltered(streaming: bool, tmp_path: Path) -> None:
    with server(check_history=True, refusals=True, tokens=5) as mock:
        summary = await run_of(tmp_path, mock.url, {"streaming": streaming})
    assert summary["error_summary"] == []
    assert summary["request_count"]["avg"] == 5 * REQUESTS


@pytest.mark.parametrize("api", TOOLS)
async def test_agents_send_back_unaltered_on_every_api(api: str, tmp_path: Path) -> None:
    user, tool = {"role": "user", "content": "Hello"}, TOOLS["chat"]
    result = {"role": "tool", "tool_call_id": "a", "content": "12 °C"}
    turns = [{"messages": each, "tools": [tool]} for each in ([user], [result, user], [user])]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({"session_id": s, "turns": turns}) for s in "abc"))
    with server(check_history=True, tool_calls=2, reasoning_tokens=3, tokens=9) as mock:
        dataset = {"kind": "dag_jsonl", "file": str(file)}
        settings = config(mock.url, dataset=dataset, concurrency=2, requests=9)
        settings["endpoint"] |= {"type": api}
        summary = await results_of(settings, tmp_path)
    assert summary["error_summary"] == []
    assert summary["request_count"]["avg"] == 9


WITH_TOOLS: list[dict[str, Any]] = [
    {"text": "question"},
    {
        "role": "assistant",
        "text": "let me see",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "text": "12 °C", "tool_call_id": "a"},
    {"role": "assistant", "text": "It is 12 °C"},
    {"text": "Thanks"},
]


@pytest.mark.parametrize("api", TOOLS)
async def test_recorded_responses_are_added_to_the_history(api: str, tmp_path: Path) -> None:
    settings = config("", dataset=talks(tmp_path, *WITH_TOOLS, count=3), concurrency=2, requests=9)
    settings["endpoint"] |= {"type": api}
    settings["dataset"]["history"] = "recorded"
    with server(check_history=True, prefix_cache_block=1, tokens=4) as mock:
        settings["endpoint"] |= {"url": mock.url, "session_headers": []}
        summary = await results_of(settings, tmp_path)
    assert summary["error_summary"] == []
    assert summary["request_count"]["avg"] == 9
    turns = summary["aiperf_svc"]["cache"]["turns"]
    assert [turn["requests"] for turn in turns] == [3, 3, 3]
    # Words of the texts. In some APIs, tool texts are not content.
    words = 9
    assert turns[0]["prompt_tokens"] == 3
    assert turns[2]["prompt_tokens"] >= 3 * words


async def test_server_detects_altered_history(tmp_path: Path) -> None:
    settings = config("", dataset=talks(tmp_path, *WITH_TOOLS, count=1), concurrency=1, requests=3)
    settings["dataset"]["history"] = "recorded"
    with server(check_history=True) as mock:
        settings["endpoint"]["url"] = mock.url
        summary = await results_of(settings, tmp_path)
    (error,) = summary["error_summary"]
    assert "response 1 was altered" in error["error_details"]["message"]
