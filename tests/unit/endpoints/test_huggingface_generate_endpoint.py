"""TGI's native API: bodies, events and complete responses."""

import json
from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Delta, Prompt
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE
from tests.support.endpoint_requests import request_body

body = partial(request_body, HUGGINGFACE_GENERATE)


def test_body_has_the_documented_request_members() -> None:
    sent = body(Prompt(texts=("a",), output_tokens=5), streaming=True)
    assert sent == {"inputs": "a", "parameters": {"details": True, "max_new_tokens": 5}}


def test_extra_inputs_are_parameters() -> None:
    extra = {"temperature": 0.5, "details": None}
    assert body(Prompt(texts=("a",)), extra_inputs=extra)["parameters"] == {"temperature": 0.5}


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
