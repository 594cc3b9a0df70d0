"""Servers with unusual events, framings or contents."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from aiperf_svc.domain.outcomes import ErrorKind
from benchmarks.fuzz.known_servers.known_server import KnownServer, stream
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
    """Every response is good: so many content events, and as many tokens in the usage."""
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
    """The event before and after each token."""
    return _events(odd, *(TOKEN, odd) * TOKENS, *ENDING)


_LOGPROB = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":%b}]}'
    b"}]}\n\n"
)
_NO_NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"-1", b"NaN")
_USAGE_AS_TEXT = USAGE.replace(b":550", b':"550"').replace(b":5", b':"5"')
_DEEP = b'data: {"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"


def _deep(index: int) -> Reply:
    """One response has an event of JSON with 100,000 levels."""
    events = [*[TOKEN] * TOKENS, *ENDING]
    if index == 7:
        events.insert(2, _DEEP)
    return stream(events)


def _one_malformed(run: ClientRun) -> list[str]:
    errors = [ErrorKind(each).name for each in run.records["error"].tolist() if each]
    return [] if errors == ["MALFORMED"] else [f"errors {errors}, expected one MALFORMED"]


def _without_end(index: int) -> Reply:
    """After `[DONE]` neither the last chunk comes nor a close."""
    whole = stream([*[TOKEN] * TOKENS, *ENDING], first_s=10 * GAP_S, gap_s=GAP_S)
    return replace(whole, parts=whole.parts[:-1], ending=Ending.HANG)


def _good_and_ended_at_once(run: ClientRun) -> list[str]:
    late_ns = run.records["end_wall_ns"] - run.records["last_token_wall_ns"]
    late_ms = float(np.median(late_ns)) / 1e6 - len(ENDING) * GAP_S * 1e3
    late = [f"requests end {late_ms:.0f} ms after [DONE]"] if late_ms > LATEST_MS else []
    return good(run) + late


CALL = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function",'
    b'"function":{"name":"look","arguments":"{}"}}]}}]}\n\n'
)


def _says_histories_are_incomplete(run: ClientRun) -> list[str]:
    """The next turns are sent without the tool calls, and the verdict counts them."""
    reasons = {each["check"]: each["text"] for each in run.verdict["reasons"]}
    named = "without the tool calls" in reasons.get("histories", "")
    return [] if named else [f"no check of histories in {sorted(reasons)}"]


SERVERS: tuple[KnownServer, ...] = (
    KnownServer("pings-with-data", good, _between(b"event: ping\ndata: 2026-01-01T00:00:00\n\n")),
    KnownServer("empty-data", good, _between(b"data: \n\n")),
    KnownServer("numbers-not-json", good, _events(*(_LOGPROB % n for n in _NO_NUMBERS), *ENDING)),
    KnownServer("usage-as-text", good, _events(*[TOKEN] * TOKENS, FINISH, _USAGE_AS_TEXT, DONE)),
    KnownServer("deep-json", _one_malformed, _deep),
    KnownServer(
        "tool-calls-in-conversations",
        _says_histories_are_incomplete,
        _events(CALL, FINISH, USAGE, DONE),
        flags=(
            *("--streaming", "--concurrency", "2", "--request-count", "6"),
            *("--conversation-turn-mean", "3"),
        ),
    ),
    KnownServer("done-without-last-chunk", _good_and_ended_at_once, _without_end),
)
