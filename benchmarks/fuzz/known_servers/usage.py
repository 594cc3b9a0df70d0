"""Servers with unusual usage or token counts."""

import json
from collections.abc import Callable
from typing import Any

from benchmarks.fuzz.known_servers.known_server import KnownServer, stream
from benchmarks.fuzz.reply import Reply
from benchmarks.truth.client_runs import ClientRun

FIRST_S = 0.1
GAP_S = 0.01
SUMMARY = " a part of the summary, which is of fifty characters"[:50]
TOLERANCE = 0.15
"""A server that sleeps between tokens is late by up to a millisecond or two in ten."""


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _delta(**members: Any) -> bytes:
    return _event({"choices": [{"index": 0, "delta": members, "finish_reason": None}]})


def _tail(**usage: Any) -> bytes:
    """Return the end of a stream, which is sent with its last token."""
    end = _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return end + (_event({"choices": [], "usage": usage}) if usage else b"") + b"data: [DONE]\n\n"


def _chat(tokens: list[bytes], **usage: Any) -> Callable[[int], Reply]:
    """Respond with a token every `GAP_S`, the first after `FIRST_S`."""
    events = [*tokens[:-1], tokens[-1] + _tail(**usage)]
    return lambda _index: stream(events, gap_s=GAP_S, first_s=FIRST_S)


def _words(count: int) -> list[bytes]:
    return [_delta(content=" word") for _ in range(count)]


def _differences(run: ClientRun, **expected: float) -> list[str]:
    """Compare averages of metrics with the truth."""
    found = {tag: run.results.get(tag, {}).get("avg") for tag in expected}
    return [
        f"{tag} is {found[tag]}, expected {truth}"
        for tag, truth in expected.items()
        if found[tag] is None or abs(found[tag] - truth) > TOLERANCE * abs(truth)
    ]


def _not_valid(run: ClientRun, check: str) -> list[str]:
    failed = {each["check"] for each in run.verdict["checks"] if each["severity"] != "valid"}
    return [] if check in failed else [f"the check {check} passed: {run.verdict['verdict']}"]


def _valid(run: ClientRun) -> list[str]:
    return [] if run.verdict["verdict"] == "valid" else [f"verdict {run.verdict['verdict']}"]


def _hidden(run: ClientRun) -> list[str]:
    return _valid(run) + _differences(
        run,
        time_to_first_token=100,
        inter_token_latency=10,
        output_token_throughput_per_user=100,
        output_sequence_length=1006,
        hidden_token_count=1000,
    )


def _beside(run: ClientRun) -> list[str]:
    return _valid(run) + _differences(
        run,
        output_sequence_length=105,
        output_token_count=5,
        reasoning_token_count=100,
        inter_token_latency=10,
    )


def _ten(run: ClientRun) -> list[str]:
    times = {"time_to_first_token": 100, "inter_token_latency": 10, "request_latency": 190}
    return _valid(run) + _differences(run, **times)


def _typed(kind: str, **members: Any) -> bytes:
    """An event of an API whose events name their types."""
    return f"event: {kind}\n".encode() + _event({"type": kind, **members})


def _messages(thoughts: int, thought: str, **usage: Any) -> Callable[[int], Reply]:
    """Respond in the messages API with this many thinking parts, then with five text parts."""

    def delta(kind: str, **members: str) -> bytes:
        return _typed("content_block_delta", index=0, delta={"type": kind, **members})

    tokens = [delta("thinking_delta", thinking=thought)] * thoughts
    tokens += [delta("text_delta", text=" so")] * 5
    end = _typed("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)
    tokens[-1] += end + _typed("message_stop")
    return lambda _index: stream(tokens, gap_s=GAP_S, first_s=FIRST_S)


def _responses(**usage: Any) -> Callable[[int], Reply]:
    """Respond in the responses API with five text parts."""
    tokens = [_typed("response.output_text.delta", delta=" so")] * 5
    tokens[-1] += _typed("response.completed", response={"status": "completed", "usage": usage})
    return lambda _index: stream(tokens, gap_s=GAP_S, first_s=FIRST_S)


def _thought(run: ClientRun) -> list[str]:
    problems = _ten(run) + _differences(run, time_to_first_output_token=150)
    if "output_token_count" in run.results:
        problems.append("an output without reasoning is counted, and nobody can know it")
    return problems


def _summarised(run: ClientRun) -> list[str]:
    """Check that the summary is not counted and that times between tokens begin after it."""
    return _valid(run) + _differences(
        run,
        time_to_first_token=100,
        time_to_first_output_token=400,
        inter_token_latency=10,
        output_sequence_length=1005,
        hidden_token_count=1000,
    )


def _in_content(run: ClientRun) -> list[str]:
    """Check for ten events of five tokens each, including reasoning."""
    return _valid(run) + _differences(run, inter_token_latency=90 / 49, output_sequence_length=50)


def _api_flags(api: str) -> tuple[str, ...]:
    """Return the flags of a run against an API other than chat."""
    return ("--endpoint-type", api, "--streaming", "--concurrency", "2", "--request-count", "20")


def _without_counts(run: ClientRun) -> list[str]:
    """Return a problem if the missing metrics are not named."""
    notes = run.results["aiperf_svc"]["notes"]
    is_named = any("Inter Token Latency" in note and "--tokenizer" in note for note in notes)
    return [] if is_named else [f"no note names the missing metrics: {notes}"]


SERVERS: tuple[KnownServer, ...] = (
    KnownServer(
        "hidden-reasoning",
        _hidden,
        _chat(
            _words(6),
            prompt_tokens=550,
            completion_tokens=1006,
            total_tokens=1556,
            completion_tokens_details={"reasoning_tokens": 1000},
        ),
    ),
    KnownServer(
        "reasoning-within-the-content",
        _in_content,
        _chat(
            [_delta(content="<think> one two three four")]
            + [_delta(content=" one two three four five")] * 9,
            prompt_tokens=550,
            completion_tokens=50,
            total_tokens=600,
            completion_tokens_details={"reasoning_tokens": 30},
        ),
    ),
    KnownServer(
        "one-word-behind-hidden-reasoning",
        _valid,
        _chat(
            _words(1),
            prompt_tokens=550,
            completion_tokens=1001,
            total_tokens=1551,
            completion_tokens_details={"reasoning_tokens": 1000},
        ),
    ),
    KnownServer(
        "reasoning-beside-completion-tokens",
        _beside,
        _chat(
            _words(5),
            prompt_tokens=550,
            completion_tokens=5,
            total_tokens=655,
            completion_tokens_details={"reasoning_tokens": 100},
        ),
    ),
    KnownServer(
        "usage-without-tokens",
        lambda run: _not_valid(run, "token_bytes"),
        _chat(_words(10), prompt_tokens=550, completion_tokens=0),
    ),
    KnownServer(
        "more-tokens-than-bytes",
        lambda run: _not_valid(run, "token_bytes"),
        _chat([_delta(content="four")] * 10, prompt_tokens=550, completion_tokens=1000),
    ),
    KnownServer(
        "fewer-tokens-than-events",
        lambda run: _not_valid(run, "token_events"),
        _chat(_words(10), prompt_tokens=550, completion_tokens=2),
    ),
    KnownServer(
        "first-tokens-without-text",
        _ten,
        _chat([_delta(content="")] * 5 + _words(5), prompt_tokens=550, completion_tokens=10),
    ),
    KnownServer(
        "first-tokens-without-text-with-roles",
        _ten,
        _chat(
            [_delta(role="assistant", content=text) for text in [""] * 5 + [" word"] * 5],
            prompt_tokens=550,
            completion_tokens=10,
        ),
    ),
    KnownServer(
        "last-tokens-without-text",
        _ten,
        _chat(_words(5) + [_delta(content="")] * 5, prompt_tokens=550, completion_tokens=10),
    ),
    KnownServer(
        "deltas-without-text-nobody-counts",
        lambda run: _not_valid(run, "blank_deltas"),
        _chat([_delta(content="")] * 5 + _words(5), prompt_tokens=550, completion_tokens=30),
    ),
    KnownServer(
        "thinking-of-messages",
        _thought,
        _messages(5, " hmm", output_tokens=10),
        flags=_api_flags("messages"),
    ),
    KnownServer(
        "reasoning-beside-output-tokens",
        _beside,
        _responses(
            input_tokens=550,
            output_tokens=5,
            total_tokens=655,
            output_tokens_details={"reasoning_tokens": 100},
        ),
        flags=_api_flags("responses"),
    ),
    KnownServer(
        "summary-of-reasoning",
        _summarised,
        _chat(
            [_delta(reasoning_content=SUMMARY)] * 30 + _words(5),
            prompt_tokens=550,
            completion_tokens=1005,
            completion_tokens_details={"reasoning_tokens": 1000},
        ),
    ),
    KnownServer(
        "summary-of-thinking",
        _summarised,
        _messages(30, SUMMARY, output_tokens=1005, output_tokens_details={"thinking_tokens": 1000}),
        flags=_api_flags("messages"),
    ),
    KnownServer(
        "summary-of-thinking-nobody-counts",
        lambda run: _not_valid(run, "token_events"),
        _messages(30, SUMMARY, output_tokens=1005),
        flags=_api_flags("messages"),
    ),
    KnownServer(
        "sound-before-its-text",
        _ten,
        _chat(
            [_delta(audio={"id": "a", "data": "QUJD" * 100})] * 9
            + [_delta(audio={"id": "a", "transcript": "Hello"})],
            prompt_tokens=550,
            completion_tokens=10,
        ),
    ),
    KnownServer(
        "no-token-counts",
        _without_counts,
        _chat(_words(10)),
    ),
)
