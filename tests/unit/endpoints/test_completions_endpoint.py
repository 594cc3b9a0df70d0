"""Completions: bodies, events and whole responses."""

import json

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import MalformedResponse, Prompt
from aiperf_svc.core.endpoints.completions import COMPLETIONS


def body(prompt: Prompt, **changes: object) -> dict[str, object]:
    given = {"url": "http://localhost:1", "model": "m", "type": "completions", **changes}
    return json.loads(COMPLETIONS.render(prompt, Options.model_validate(given)).whole)


def test_one_text_is_a_string_and_several_a_list() -> None:
    assert body(Prompt(texts=("a",))) == {"model": "m", "prompt": "a"}
    assert body(Prompt(texts=("a", "b")))["prompt"] == ["a", "b"]


def test_streaming_and_length_are_asked_for_like_in_chat() -> None:
    assert body(Prompt(texts=("a",), output_tokens=2), streaming=True) == {
        "model": "m",
        "prompt": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 2,
        "min_tokens": 2,
        "ignore_eos": True,
    }


def test_payload_of_token_ids_is_sent_unchanged() -> None:
    assert body(Prompt(payload={"prompt": [1, 2], "n": 1})) == {
        "model": "m",
        "prompt": [1, 2],
        "n": 1,
    }


@pytest.mark.parametrize(
    ("prompt", "extra", "expected"),
    [
        (Prompt(texts=("a",), output_tokens=8), {}, 8),
        (Prompt(texts=("a",), output_tokens=8), {"n": 3}, 24),
        (Prompt(texts=("a", "b"), output_tokens=8), {"n": 3}, 48),
        (Prompt(payload={"prompt": [1, 2], "max_tokens": 8}, output_tokens=8), {}, 8),
        (Prompt(payload={"prompt": [[1, 2], [3]], "n": 2}, output_tokens=8), {}, 32),
        (Prompt(texts=("a",)), {"n": 3}, -1),
    ],
)
def test_requested_length_covers_all_texts_and_choices(
    prompt: Prompt, extra: dict[str, object], expected: int
) -> None:
    given = {"url": "http://localhost:1", "model": "m", "type": "completions"}
    options = Options.model_validate({**given, "extra_inputs": extra})
    assert COMPLETIONS.render(prompt, options).requested_tokens == expected


@pytest.mark.parametrize(
    "prompt", [Prompt(messages=({"role": "user", "content": "x"},)), Prompt(payload={"n": 1})]
)
def test_prompts_of_another_api_are_refused(prompt: Prompt) -> None:
    with pytest.raises(ValueError, match="completions API"):
        body(prompt)


def test_events_and_whole_responses_have_one_shape() -> None:
    data = b'{"choices":[{"text":"Hi","finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
    for parse in (COMPLETIONS.parse_event, COMPLETIONS.parse_body):
        delta = parse(data)
        assert (delta.content, delta.finish_reason, delta.completion_tokens) == ("Hi", "stop", 1)


def test_empty_text_is_no_output() -> None:
    assert not COMPLETIONS.parse_event(b'{"choices":[{"text":""}]}').has_output


def test_an_error_object_is_an_error() -> None:
    assert COMPLETIONS.parse_event(b'{"error":{"message":"no"}}').error == "no"
    assert COMPLETIONS.parse_event(b'{"object":"error","message":"no"}').error == "no"


@pytest.mark.parametrize("data", [b"{}", b"[]", b"x", b'{"choices":[{"text":1}]}', b'"\xff"'])
def test_what_is_no_response_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        COMPLETIONS.parse_event(data)
