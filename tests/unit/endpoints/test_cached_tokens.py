"""Cached prompt tokens, as each server states them."""

import json
from typing import Any

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.responses import RESPONSES
from aiperf_svc.domain.endpoint_types import EndpointType

CHOICES: dict[str, Any] = {"choices": []}
RAW = custom_endpoint(Options(url="http://h", model="m", type=EndpointType.RAW))
UNKNOWN = (9, -1, -1)


def counts(parse: Any, data: dict[str, Any]) -> tuple[int, int, int]:
    delta = parse(json.dumps(data).encode())
    assert not delta.error
    return delta.prompt_tokens, delta.cached_tokens, delta.cache_write_tokens


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"usage": {"prompt_tokens": 9}}, UNKNOWN),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, UNKNOWN),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {}}}, UNKNOWN),
        (
            {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}},
            (9, 0, -1),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                }
            },
            (9, 4, 3),
        ),
        ({"usage": {"prompt_tokens": 9, "cached_tokens": 5}}, (9, 5, -1)),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "prompt_cache_hit_tokens": 6,
                    "prompt_cache_miss_tokens": 3,
                }
            },
            (9, 6, -1),
        ),
        ({"usage": {"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 1}}, (7, 6, -1)),
        ({"timings": {"prompt_n": 3, "cache_n": 8, "predicted_n": 2}}, (11, 8, -1)),
        ({"usage": {"prompt_tokens": 11}, "timings": {"prompt_n": 3, "cache_n": 8}}, (11, 8, -1)),
        ({"usage": {"prompt_tokens": 11}, "timings": {"prompt_n": 3}}, (11, -1, -1)),
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_servers_of_openais_form(
    endpoint: Any, members: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert counts(endpoint.parse_event, CHOICES | members) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 9}, UNKNOWN),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}}, (9, 0, -1)),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 1},
            },
            (9, 8, 1),
        ),
    ],
)
def test_responses(usage: dict[str, Any], expected: tuple[int, int, int]) -> None:
    whole = {"output": [], "usage": usage}
    assert counts(RESPONSES.parse_body, whole) == expected
    event = {"type": "response.completed", "response": whole}
    assert counts(RESPONSES.parse_event, event) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 9}, UNKNOWN),
        ({"input_tokens": 1, "cache_read_input_tokens": 8}, (9, 8, -1)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3},
            (9, 5, 3),
        ),
    ],
)
def test_messages_counts_what_was_read_and_written(
    usage: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    message = {"content": [], "usage": usage}
    assert counts(MESSAGES.parse_body, message) == expected
    event = {"type": "message_start", "message": message}
    assert counts(MESSAGES.parse_event, event) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}, (9, 4, -1)),
        ({"usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 0}}, (9, 0, -1)),
        ({"usage": {"prompt_tokens": 9}}, UNKNOWN),
    ],
)
def test_apis_of_the_users_own(members: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert counts(RAW.parse_event, {"text": "a"} | members) == expected
