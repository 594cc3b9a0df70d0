"""Servers with unusual events, framings or contents."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from aiperf_svc.domain.outcomes import ErrorKind
from benchmarks.fuzz.known_servers.known_server import KnownServer, Quiet, handling, stream
from benchmarks.fuzz.reply import Ending, Reply
from benchmarks.truth.client_runs import ClientRun

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":550,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"
TOKENS = 5
GAP_S = 0.01
LATEST_MS = 20
ENDING = (FINISH, USAGE, DONE)


def good(run: ClientRun) -> list[str]:
    """Check that every response is good and has the expected content events and usage tokens."""
    problems = []
    failed = int((~run.is_completed).sum())
    if failed:
        problems.append(f"{failed} of {len(run.is_completed)} requests failed")
    for name in ("chunks", "usage_completion_tokens"):
        if (found := set(run.records[name].tolist())) != {TOKENS}:
            problems.append(f"{name} {sorted(found)}, expected {TOKENS}")
    if run.verdict["verdict"] == "invalid":
        problems.append(f"invalid: {run.verdict['reasons']}")
    return problems


def _events(*events: bytes) -> Callable[[int], Reply]:
    return lambda _index: stream(list(events), first_s=GAP_S, gap_s=GAP_S)


def _between(odd: bytes) -> Callable[[int], Reply]:
    """Put an unusual event before and after each token."""
    return _events(odd, *(TOKEN, odd) * TOKENS, *ENDING)


_LOGPROB = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":%b}]}'
    b"}]}\n\n"
)
_NO_NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"-1", b"NaN")
_USAGE_AS_TEXT = USAGE.replace(b":550", b':"550"').replace(b":5", b':"5"')
_HALF = TOKEN.replace(b'"a"', b'"\\ud83d"')
"""A token that ends within an emoji, as written by an encoder that escapes non-ASCII characters."""
_DEEP = b'data: {"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"


def _deep(index: int) -> Reply:
    """Return a stream in which one response has an event of JSON with 100,000 levels."""
    events = [*[TOKEN] * TOKENS, *ENDING]
    if index == 7:
        events.insert(2, _DEEP)
    return stream(events)


def _one_malformed(run: ClientRun) -> list[str]:
    errors = [ErrorKind(each).name for each in run.records["error"].tolist() if each]
    return [] if errors == ["MALFORMED"] else [f"errors {errors}, expected one MALFORMED"]


def _unterminated(index: int) -> Reply:
    """Send neither the last chunk nor a close after `[DONE]`."""
    whole = stream([*[TOKEN] * TOKENS, *ENDING], first_s=10 * GAP_S, gap_s=GAP_S)
    return replace(whole, parts=whole.parts[:-1], ending=Ending.HANG)


def good_and_ended_at_once(run: ClientRun) -> list[str]:
    late_ns = run.records["end_wall_ns"] - run.records["last_token_wall_ns"]
    late_ms = float(np.median(late_ns)) / 1e6 - len(ENDING) * GAP_S * 1e3
    late = [f"requests end {late_ms:.0f} ms after [DONE]"] if late_ms > LATEST_MS else []
    return good(run) + late


CALL = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function",'
    b'"function":{"name":"look","arguments":"{}"}}]}}]}\n\n'
)
_conversations: list[list[dict[str, Any]]] = []
"""Number of messages in each request to the server that calls a tool."""


class _Calling(Quiet):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _conversations.append(json.loads(body)["messages"])
        self.wfile.write(stream([CALL, FINISH, USAGE, DONE]).data)


@contextlib.contextmanager
def calling_a_tool() -> Iterator[str]:
    """Serve responses that consist of a tool call."""
    _conversations.clear()
    with handling(_Calling) as url:
        yield url


def _sends_calls_and_results(run: ClientRun) -> list[str]:
    """Check that each earlier call and then its result are in every turn except the first."""
    problems = []
    lengths = []
    for messages in _conversations:
        calls = [n for n, each in enumerate(messages) if each["role"] == "assistant"]
        lengths.append(len(calls))
        for place in calls:
            ids = [call["id"] for call in messages[place].get("tool_calls", ())]
            results = [each.get("tool_call_id") for each in messages[place + 1 : place + 2]]
            if ids != ["c"] or results != ["c"]:
                problems.append(f"a history has the calls {ids}, and results of {results}")
    if sorted(set(lengths)) != [0, 1, 2]:
        problems.append(f"histories have {sorted(set(lengths))} responses, expected 0, 1 and 2")
    if failed := int((~run.is_completed).sum()):
        problems.append(f"{failed} of {len(run.is_completed)} requests failed")
    return problems


SERVERS: tuple[KnownServer, ...] = (
    KnownServer("pings-with-data", good, _between(b"event: ping\ndata: 2026-01-01T00:00:00\n\n")),
    KnownServer("empty-data", good, _between(b"data: \n\n")),
    KnownServer("numbers-not-json", good, _events(*(_LOGPROB % n for n in _NO_NUMBERS), *ENDING)),
    KnownServer("usage-as-text", good, _events(*[TOKEN] * TOKENS, FINISH, _USAGE_AS_TEXT, DONE)),
    KnownServer("deep-json", _one_malformed, _deep),
    KnownServer("half-an-emoji", good, _events(*[_HALF] * TOKENS, *ENDING)),
    KnownServer(
        "tool-calls-in-conversations",
        _sends_calls_and_results,
        serve=calling_a_tool,
        flags=(
            *("--streaming", "--concurrency", "2", "--request-count", "6"),
            *("--conversation-turn-mean", "3"),
        ),
    ),
    KnownServer("done-without-last-chunk", good_and_ended_at_once, _unterminated),
)
