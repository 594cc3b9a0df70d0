"""Routers keep a conversation on one server by the session ids of its requests."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiperf_svc.adapters.inference.entry_cache import Entry
from aiperf_svc.adapters.inference.resolved_target import Target, resolve_target
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from aiperf_svc.protocol.messages.dataset import Conversation, Turn
from tests.support.agent_traces import call, subagent, weka
from tests.support.hash_router import routing
from tests.support.in_one_loop import config, results_of, server, talks
from tests.support.scripted_server import served
from tests.support.small_configs import small_config

TALKS = 16
TURNS = 4


async def _servers_of_talks(folder: Path, endpoint: dict[str, Any]) -> list[set[int]]:
    """Return the servers that received each conversation's turns."""
    dataset = talks(folder, *({"text": f"question {i}"} for i in range(TURNS)), count=TALKS)
    with server(tokens=2) as first, server(tokens=2) as second:
        with routing(first.url, second.url) as url:
            settings = config(url, dataset=dataset, concurrency=4, requests=TALKS * TURNS)
            settings["endpoint"] |= endpoint
            summary = await results_of(settings, folder, workers=1)
        assert summary["request_count"]["avg"] == TALKS * TURNS
        seen = [{row["request_id"] for row in s.truth(rows=True)["rows"]} for s in (first, second)]
    return [
        {
            number
            for number, ids in enumerate(seen)
            for turn in range(TURNS)
            if request_id("test", Phase.PROFILING, talk, turn) in ids
        }
        for talk in range(TALKS)
    ]


async def test_consistent_hash_keeps_turns_on_one_server(tmp_path: Path) -> None:
    found = await _servers_of_talks(tmp_path, {})
    assert all(len(servers) == 1 for servers in found)
    assert set().union(*found) == {0, 1}


async def test_turns_scatter_without_session_headers(tmp_path: Path) -> None:
    found = await _servers_of_talks(tmp_path, {"session_headers": []})
    assert any(len(servers) == 2 for servers in found)


async def test_subagents_have_own_and_parents_ids(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []

    async def respond(request: web.Request) -> web.Response:
        if "X-Session-ID" in request.headers:  # the readiness probe has none
            seen.append((request.headers["X-Session-ID"], request.headers.get("X-Parent")))
        message = {"role": "assistant", "content": "a"}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    file = tmp_path / "trace.jsonl"
    file.write_bytes(
        weka(call(0, [1]), subagent(2, call(2, [7]), call(3, [7, 8])), call(5, [1, 2]))
    )
    dataset = {"kind": "weka_trace", "file": str(file), "delay_factor": 0}
    async with served("/v1/chat/completions", respond) as url:
        settings = config(url, dataset=dataset, concurrency=1, requests=4)
        settings["endpoint"] |= {"streaming": False, "parent_session_headers": ["X-Parent"]}
        await results_of(settings, tmp_path)
    root = request_id("test", Phase.PROFILING, 0, 0)
    (own,) = {session for session, parent in seen if parent is not None}
    assert own != root
    assert sorted(seen, key=str) == sorted([(root, None)] * 2 + [(own, root)] * 2, key=str)


@pytest.mark.parametrize("history", ["live", "recorded"])
async def test_issued_ids_are_returned_with_later_turns(history: str, tmp_path: Path) -> None:
    seen: dict[str, list[str | None]] = {}

    async def respond(request: web.Request) -> web.Response:
        name = request.headers.get("X-Correlation-ID", "probe")
        turns = seen.setdefault(name, [])
        turns.append(request.headers.get("x-session-id"))
        # The router moves the conversation after its second turn and reports this once.
        issued = {0: f"{name}-a", 1: f"{name}-b"}.get(len(turns) - 1)
        headers = {"X-SESSION-ID": issued} if issued else {}
        message = {"role": "assistant", "content": "a"}
        return web.json_response({"choices": [{"index": 0, "message": message}]}, headers=headers)

    turns: list[dict[str, Any]] = [{"text": "q"}, {"role": "assistant", "text": "a"}] * 3
    async with served("/v1/chat/completions", respond) as url:
        dataset = talks(tmp_path, *turns, {"text": "q"}, count=3) | {"history": history}
        settings = config(url, dataset=dataset, concurrency=2, requests=12)
        settings["endpoint"] |= {"streaming": False, "session_response_header": "x-session-id"}
        await results_of(settings, tmp_path)
    seen.pop("probe", None)
    assert len(seen) == 3
    for name, turns_seen in seen.items():
        assert turns_seen == [None, f"{name}-a", f"{name}-b", f"{name}-b"]


def target(**endpoint: Any) -> Target:
    return resolve_target(small_config("http://127.0.0.1:1", endpoint=endpoint))


def conversation(turns: int) -> Conversation:
    return Conversation("a", (Turn(b"1", b"]}"),) * turns, head=b'{"messages":[')


def sent(prepared: Any) -> bytes:
    before, after = prepared[:2]
    return bytes(before + b"ID" + after)


def test_session_id_is_in_headers_and_body() -> None:
    where = target(
        session_headers=["X-SMG-Routing-Key"],
        session_body=["user", "session_params.session_id", "session_params.kind"],
    )
    entry = Entry(0, conversation(2), where, where.request(b"")[0])
    request = sent(entry.prepare(1, [b"0"], b"id-7"))
    assert b"X-SMG-Routing-Key: id-7\r\n" in request
    assert b"X-Session-ID" not in request
    body = b'{"user":"id-7","session_params":{"session_id":"id-7","kind":"id-7"},"messages":[0,1]}'
    assert request.endswith(b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_single_request_has_no_session() -> None:
    where = target(session_body=["user"])
    entry = Entry(0, conversation(1), where, where.request(b"")[0])
    assert b"X-Session-ID" not in sent(entry.only)
    assert b"user" not in sent(entry.only)


def test_header_of_the_config_replaces_a_session_header() -> None:
    where = target(headers={"x-session-id": "mine"})
    entry = Entry(0, conversation(2), where, where.request(b"")[0])
    request = sent(entry.prepare(0, (), b"id-7"))
    assert request.lower().count(b"x-session-id") == 1
    assert b"X-Correlation-ID: id-7\r\n" in request


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ({"session_body": ["user"], "extra_inputs": {"user": "me"}}, "same member"),
        ({"session_body": ["a", "a.b"]}, "parent of another"),
        ({"session_headers": ["X-A", "x-a"]}, "'x-a' is given twice"),
        ({"session_headers": ["X A"]}, "session_headers"),
        ({"session_body": ["a..b"]}, "session_body"),
        ({"session_body": ["user"], "type": "embeddings"}, "endpoint.session_body"),
    ],
)
def test_wrong_session_settings_are_named(endpoint: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        target(**endpoint)
