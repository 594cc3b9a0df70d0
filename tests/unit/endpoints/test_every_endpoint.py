"""Properties of every endpoint."""

import base64
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.core.endpoints.base import (
    UNREADABLE,
    Endpoint,
    Media,
    Prompt,
    error_message,
    extra_input_problems,
    finish_body,
)
from aiperf_svc.core.endpoints.registry import ENDPOINTS, endpoint_of
from aiperf_svc.domain.endpoint_types import EndpointType, Feature, types_with
from tests.support.endpoint_requests import endpoint_options, request_body

EVERY = pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda found: found.type.value)
BY_NAME = {endpoint.type.value: endpoint for endpoint in ENDPOINTS.values()}
RANKINGS = ("cohere_rankings", "hf_tei_rankings", "nim_rankings")
NOT_STREAMED = ("embeddings", *RANKINGS)
SOUND = Media("audio/wav", base64.b64encode(b"needle").decode())
MESSAGES = Prompt(messages=({"role": "user", "content": "x"},))
MEMBERS = {"messages": [{"role": "user", "content": "x"}]}
TWO_TEXTS = Prompt(texts=("a", "b"))
HEARD = tuple(
    Prompt(messages=({"role": role, "content": [{"type": "input_audio"}], "tool_call_id": "c"},))
    for role in ("user", "tool")
)
NO_CALLS = tuple(
    Prompt(messages=({"role": "assistant", "content": None, "tool_calls": [call]},))
    for call in (
        {"id": "c"},
        {"function": {"name": "f", "arguments": "{}"}},
        {"id": "c", "function": {"name": "f", "arguments": {}}},
        {"id": "c", "function": {"name": "f", "arguments": "{"}},
    )
)
OLD_CALLS = (
    Prompt(messages=({"role": "function", "name": "f", "content": "x"},)),
    Prompt(messages=({"role": "assistant", "content": None, "function_call": {"name": "f"}},)),
    Prompt(texts=("x",), role="function"),
)


def payloads(*members: dict[str, Any]) -> tuple[Prompt, ...]:
    return tuple(Prompt(payload=each) for each in members)


def test_every_type_of_the_config_has_an_endpoint() -> None:
    assert ENDPOINTS.keys() | set(types_with(Feature.CUSTOM)) == set(EndpointType)
    for kind in EndpointType:
        keys = {"type": kind, "template": "{}"} if kind is EndpointType.TEMPLATE else {"type": kind}
        assert endpoint_of(endpoint_options(**keys)).type is kind


def test_page_of_apis_names_each_type() -> None:
    page = (Path(__file__).parents[3] / "docs" / "endpoints.md").read_text()
    assert [kind.value for kind in EndpointType if f"`{kind}`" not in page] == []


@EVERY
def test_body_holds_the_prompt_under_the_prompt_key(endpoint: Endpoint) -> None:
    passages = ("needle",) if endpoint.passages_key else ()
    is_sound = endpoint.type is EndpointType.AUDIO_TRANSCRIPTION
    prompt = Prompt(texts=("needle",), passages=passages)
    if is_sound:
        prompt = Prompt(media=(SOUND,))
    whole = endpoint.render(prompt, endpoint_options()).whole
    assert whole.index(b'"%b"' % endpoint.prompt_key.encode()) < whole.index(b"needle")


@pytest.mark.parametrize(
    ("kind", "payload", "added"),
    [
        ("chat", MEMBERS | {"model": "own", "max_tokens": 3, "seed": 1}, {}),
        ("completions", {"prompt": [1, 2], "max_tokens": 3, "n": 1}, {"model": "m"}),
        (
            "huggingface_generate",
            {"inputs": "a", "parameters": {"max_new_tokens": 3}},
            {"parameters": {"details": True, "max_new_tokens": 3}},
        ),
        (
            "image_generation",
            {"prompt": "a dog", "n": 3, "quality": "low"},
            {"model": "m", "response_format": "b64_json"},
        ),
        ("messages", MEMBERS | {"system": "s", "max_tokens": 3}, {"model": "m"}),
        ("hf_tei_rankings", {"query": "x", "texts": ["y"], "model": "own", "truncate": True}, {}),
        ("responses", {"input": MEMBERS["messages"], "max_output_tokens": 3}, {"model": "m"}),
    ],
)
def test_payload_keeps_its_members_but_not_its_streaming(
    kind: str, payload: dict[str, Any], added: dict[str, Any]
) -> None:
    # These two have no field that requests a stream.
    is_plain = kind in ("huggingface_generate", "hf_tei_rankings")
    streaming = {} if is_plain else {"stream": True, "stream_options": {}}
    prompt = Prompt(payload=payload | streaming, output_tokens=9)
    assert request_body(BY_NAME[kind], prompt) == payload | added


@pytest.mark.parametrize("kind", ["completions", "huggingface_generate", "messages", "responses"])
def test_output_tokens_of_a_prompt_are_requested(kind: str) -> None:
    endpoint = BY_NAME[kind]
    rendered = endpoint.render(Prompt(texts=("a",), output_tokens=5), endpoint_options())
    assert rendered.requested_tokens == 5


@pytest.mark.parametrize(("kind", "is_forced"), [("chat", True), ("image_generation", False)])
def test_only_apis_that_allow_it_force_lengths(kind: str, is_forced: bool) -> None:
    prompt, options = Prompt(texts=("a",), output_tokens=5), endpoint_options(type=kind)
    body = finish_body(prompt, options, prompt_key="prompt")
    assert body["max_tokens"] == 5
    assert ("min_tokens" in body, "ignore_eos" in body) == (is_forced, is_forced)


REFUSED: tuple[tuple[tuple[str, ...], str, tuple[Prompt, ...]], ...] = (
    (("chat", "messages"), "non-empty list `messages`", payloads({}, {"messages": []})),
    (("chat",), "messages", payloads({"messages": "x"})),
    (("completions",), "completions API", (MESSAGES, *payloads({"n": 1}))),
    (("embeddings",), "embeddings API", (MESSAGES, *payloads({"n": 1}))),
    (("responses",), "needs `input`", payloads({"prompt": "x"})),
    (("messages", "responses"), "write `tool_calls` and role `tool`", OLD_CALLS),
    (("messages", "responses"), "`tool_calls`", NO_CALLS),
    (("messages", "responses"), "`input_audio`: sounds need endpoint.type chat, not", HEARD),
    (
        ("huggingface_generate",),
        "huggingface_generate API",
        (MESSAGES, TWO_TEXTS, *payloads({"parameters": {}}, {"inputs": "a", "parameters": [1]})),
    ),
    (
        ("image_generation",),
        "image_generation",
        (MESSAGES, TWO_TEXTS, *payloads({"n": 1}), Prompt(media=(Media("image/png", "AA=="),))),
    ),
    (("audio_transcription",), "one sound", (Prompt(texts=("a",)), Prompt(media=(SOUND, SOUND)))),
    (("audio_transcription",), "give `audio`", (MESSAGES, *payloads({"file": "x"}))),
    (
        RANKINGS,
        "query|documents|texts|passages",
        (
            Prompt(texts=("q",)),
            Prompt(texts=("q", "r"), passages=("a",)),
            Prompt(messages=MESSAGES.messages, passages=("a",)),
            *payloads({"query": "x"}, {"documents": ["x"], "texts": ["x"], "passages": ["x"]}),
        ),
    ),
)
"""Prompts of another API, and the text of the error."""


@pytest.mark.parametrize(("kinds", "message", "prompts"), REFUSED)
def test_prompts_of_another_api_are_refused(
    kinds: tuple[str, ...], message: str, prompts: tuple[Prompt, ...]
) -> None:
    for kind in kinds:
        for prompt in prompts:
            with pytest.raises(ValueError, match=message):
                BY_NAME[kind].render(prompt, endpoint_options())


@EVERY
def test_extra_inputs_contradicting_settings_are_all_named(endpoint: Endpoint) -> None:
    extra = {"stream": True, endpoint.prompt_key: "x", "temperature": 0}
    problems = extra_input_problems(endpoint, endpoint_options(extra_inputs=extra))
    assert len(problems) == 2
    assert "endpoint.extra_inputs.stream" in problems[0]
    assert f"endpoint.extra_inputs.{endpoint.prompt_key}" in problems[1]


@EVERY
def test_harmless_extra_inputs_are_no_problem(endpoint: Endpoint) -> None:
    assert extra_input_problems(endpoint, endpoint_options(extra_inputs={"temperature": 0})) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"  Bad Gateway \n", "Bad Gateway"),
        (b'{"error":{"message":"no key"}}', "no key"),
        (b'[{"error":{"code":400,"message":"no key","details":[]}}]', "no key"),
        (b'{"detail":[{"msg":"x"}]}', '{"detail":[{"msg":"x"}]}'),
        (b'{"status":"bad"}', '{"status":"bad"}'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * 500),
        (
            b"<!DOCTYPE html><html><head><title>502</title><style>a {}</style></head>"
            b"<body><!-- x --><h1>Bad\n Gateway</h1> nginx &amp; co</body></html>",
            "502 Bad Gateway nginx & co",
        ),
        (b"<html>" + b"<script " * 1_000, ""),
    ],
)
def test_message_of_bad_response_is_found_and_bounded(body: bytes, message: str) -> None:
    assert error_message(body) == message


@EVERY
def test_error_object_in_successful_response_is_an_error(endpoint: Endpoint) -> None:
    for data, message in (
        (b'{"error":{"message":"overloaded","code":503}}', "overloaded"),
        (b'{"error":"overloaded","error_type":"overloaded"}', "overloaded"),
        (b'{"error":{"code":503}}', '{"code":503}'),
        (b'{"type":"error","error":{"type":"api_error","message":"no"}}', "no"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"object":"error","message":"no","type":"BadRequestError","code":400}', "no"),
        (b'{"detail":"Not Found"}', "Not Found"),
    ):
        assert endpoint.parse_body(data).error == message
        if endpoint.type not in NOT_STREAMED:
            assert endpoint.parse_event(data).error == message


OTHER_FORMS = {
    "chat": ('{"choices":5}', '{"choices":[5]}', '{"choices":[],"usage":{"prompt_tokens":[1]}}'),
    "completions": ('{"choices":5}', '{"choices":[5]}', '{"choices":[{"text":1}]}'),
    "embeddings": ('{"data":[{}]}', '{"data":5}'),
    "huggingface_generate": ('{"token":1}', '{"token":null}'),
    "messages": (
        '{"content":1}',
        '{"type":"message_start"}',
        '{"type":"content_block_delta"}',
        '{"type":"content_block_delta","delta":{"text":1}}',
        '{"type":"message_delta"}',
        '{"choices":[{"delta":{"content":"a"}}]}',
    ),
    "responses": (
        '{"output":1}',
        '{"type":"response.output_text.delta"}',
        '{"type":"response.output_text.delta","delta":1}',
        '{"type":"response.output_item.added"}',
        '{"type":"response.completed"}',
        '{"choices":[{"delta":{"content":"a"}}]}',
    ),
    "audio_transcription": ('{"text":5}', '{"type":"transcript.text.delta","logprobs":[]}'),
    "image_generation": ('{"data":5}', '{"type":"image_generation.completed","b64_json":""}'),
} | dict.fromkeys(RANKINGS, ("[{}]", "[1]", '{"results":5}'))
"""JSON that is neither an event nor a body of the API."""


@EVERY
def test_invalid_response_is_malformed(endpoint: Endpoint) -> None:
    anywhere = ("", "hello", "{", "null", "{}", '{"error":null}', '"\xff"')
    # A list is a TEI ranking, which can be empty.
    lists = () if endpoint.type in RANKINGS else ("[]",)
    for data in anywhere + lists + OTHER_FORMS[endpoint.type]:
        for parse in (endpoint.parse_event, endpoint.parse_body):
            with pytest.raises(UNREADABLE):
                parse(data.encode("latin-1"))


@EVERY
def test_only_apis_that_stream_have_events(endpoint: Endpoint) -> None:
    with pytest.raises(UNREADABLE) as raised:
        endpoint.parse_event(b"{}")
    assert ("does not stream" in str(raised.value)) == (endpoint.type in NOT_STREAMED)


@EVERY
def test_content_types_differ_between_stream_and_whole(endpoint: Endpoint) -> None:
    assert endpoint.content_types(streaming=True) == ("text/event-stream",)
    assert endpoint.content_types(streaming=False) == ("application/json",)
