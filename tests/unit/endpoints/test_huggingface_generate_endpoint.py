"""TGI's own API: bodies, events and whole responses."""

import json

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Delta, MalformedResponse, Prompt
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE


def options(**changes: object) -> Options:
    given = {"url": "http://localhost:1", "model": "m", "type": "huggingface_generate"}
    return Options.model_validate(given | changes)


def body(prompt: Prompt, **changes: object) -> dict[str, object]:
    return json.loads(HUGGINGFACE_GENERATE.render(prompt, options(**changes)).whole)


def test_a_body_has_the_members_of_the_published_request() -> None:
    sent = body(Prompt(texts=("a",), output_tokens=5), streaming=True)
    assert sent == {"inputs": "a", "parameters": {"details": True, "max_new_tokens": 5}}


def test_the_requested_length_is_known() -> None:
    rendered = HUGGINGFACE_GENERATE.render(Prompt(texts=("a",), output_tokens=5), options())
    assert rendered.requested_tokens == 5


def test_extra_inputs_are_parameters() -> None:
    extra = {"temperature": 0.5, "details": None}
    assert body(Prompt(texts=("a",)), extra_inputs=extra)["parameters"] == {"temperature": 0.5}


def test_a_payload_keeps_its_parameters() -> None:
    payload = {"inputs": "a", "parameters": {"max_new_tokens": 3}}
    sent = body(Prompt(payload=payload, output_tokens=9))
    assert sent == {"inputs": "a", "parameters": {"details": True, "max_new_tokens": 3}}


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(texts=("a", "b")),
        Prompt(messages=({"role": "user", "content": "x"},)),
        Prompt(payload={"parameters": {}}),
        Prompt(payload={"inputs": "a", "parameters": [1]}),
    ],
)
def test_prompts_of_another_api_are_refused(prompt: Prompt) -> None:
    with pytest.raises(ValueError, match="huggingface_generate API"):
        body(prompt)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"token": {"text": " x", "special": False}, "details": None}, Delta(content=" x")),
        ({"token": {"text": "</s>", "special": True}}, Delta(is_blank=True)),
        (
            {
                "token": {"text": "x", "special": False},
                "generated_text": "a x",
                "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 7},
            },
            Delta(
                content="x",
                prompt_tokens=7,
                completion_tokens=2,
                finish_reason="length",
                finished=1,
            ),
        ),
        ({"error": "overloaded", "error_type": "overloaded"}, Delta(error="overloaded")),
    ],
)
def test_each_event_adds_its_token(event: dict[str, object], expected: Delta) -> None:
    assert HUGGINGFACE_GENERATE.parse_event(json.dumps(event).encode()) == expected


def test_a_whole_response_has_its_text_and_count() -> None:
    data = (
        b'{"generated_text":"Hi","details":{"finish_reason":"eos_token","generated_tokens":2,'
        b'"seed":null,"prefill":[],"tokens":[]}}'
    )
    assert HUGGINGFACE_GENERATE.parse_body(data) == Delta(
        content="Hi", completion_tokens=2, finish_reason="eos_token", finished=1
    )
    assert HUGGINGFACE_GENERATE.parse_body(b'{"error":"no","error_type":"x"}').error == "no"


@pytest.mark.parametrize("data", [b"x", b"{}", b"[]", b'{"token":1}', b'{"token":null}'])
def test_what_is_no_response_of_this_api_is_malformed(data: bytes) -> None:
    for parse in (HUGGINGFACE_GENERATE.parse_event, HUGGINGFACE_GENERATE.parse_body):
        with pytest.raises(MalformedResponse):
            parse(data)
