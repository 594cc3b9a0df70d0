"""Cached prompt tokens in the format of each server."""

import json
from typing import Any

import pytest

from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.responses import RESPONSES
from tests.support.endpoint_requests import endpoint_options

RAW = custom_endpoint(endpoint_options(type="raw"))
UNKNOWN = (9, -1, -1)
ANTHROPIC = {"input_tokens": 1, "cache_read_input_tokens": 5}
DEEPSEEK = {"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 1}
Counts = tuple[int, int, int]


def counts(parse: Any, data: dict[str, Any]) -> Counts:
    delta = parse(json.dumps(data).encode())
    assert not delta.error
    return delta.prompt_tokens, delta.cached_tokens, delta.cache_write_tokens


def details(**members: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 9, "prompt_tokens_details": members}}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"usage": {"prompt_tokens": 9}}, UNKNOWN),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, UNKNOWN),
        (details(), UNKNOWN),
        (details(cached_tokens=0), (9, 0, -1)),
        (details(cached_tokens=4, cache_write_tokens=3), (9, 4, 3)),
        ({"usage": {"prompt_tokens": 9, "cached_tokens": 5}}, (9, 5, -1)),
        ({"usage": {"prompt_tokens": 9} | DEEPSEEK}, (9, 6, -1)),
        ({"usage": DEEPSEEK}, (7, 6, -1)),
        ({"timings": {"prompt_n": 3, "cache_n": 8, "predicted_n": 2}}, (11, 8, -1)),
        ({"usage": {"prompt_tokens": 11}, "timings": {"prompt_n": 3, "cache_n": 8}}, (11, 8, -1)),
        ({"usage": {"prompt_tokens": 11}, "timings": {"prompt_n": 3}}, (11, -1, -1)),
    ],
)
def test_servers_of_openais_form(members: dict[str, Any], expected: Counts) -> None:
    for endpoint in (CHAT, COMPLETIONS):
        assert counts(endpoint.parse_event, {"choices": []} | members) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, UNKNOWN),
        ({"input_tokens_details": {"cached_tokens": 0}}, (9, 0, -1)),
        ({"input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 1}}, (9, 8, 1)),
    ],
)
def test_responses(usage: dict[str, Any], expected: Counts) -> None:
    whole = {"output": [], "usage": {"input_tokens": 9} | usage}
    assert counts(RESPONSES.parse_body, whole) == expected
    event = {"type": "response.completed", "response": whole}
    assert counts(RESPONSES.parse_event, event) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 9}, UNKNOWN),
        ({"input_tokens": 1, "cache_read_input_tokens": 8}, (9, 8, -1)),
        ({"cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}, (9, 5, 3)),
    ],
)
def test_messages_counts_cache_reads_and_writes(usage: dict[str, Any], expected: Counts) -> None:
    message = {"content": [], "usage": {"input_tokens": 1} | usage}
    assert counts(MESSAGES.parse_body, message) == expected
    event = {"type": "message_start", "message": message}
    assert counts(MESSAGES.parse_event, event) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}, (9, 4, -1)),
        ({"usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 0}}, (9, 0, -1)),
        ({"timings": {"prompt_n": 3, "cache_n": 8}, "tokens_cached": 40}, (11, 8, -1)),
        ({"usage": {"input_tokens": 1, "cache_read_input_tokens": 8}}, (9, 8, -1)),
        ({"usage": {"input_tokens": "9", "cache_read_input_tokens": 0}}, (9, 0, -1)),
        ({"usage": {"input_tokens": 9, "cache_read_input_tokens": None}}, UNKNOWN),
        ({"usage": ANTHROPIC | {"cache_creation_input_tokens": 3}}, (9, 5, -1)),
        ({"usage": ANTHROPIC | {"cache_creation_input_tokens": {"1h": 3}}}, (6, 5, -1)),
        ({"usage": {"prompt_tokens": 9}}, UNKNOWN),
    ],
)
def test_apis_of_the_users_own(members: dict[str, Any], expected: Counts) -> None:
    assert counts(RAW.parse_event, {"text": "a"} | members) == expected
