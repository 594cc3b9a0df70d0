"""Embeddings: bodies and responses."""

import json

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import MalformedResponse, Prompt
from aiperf_svc.core.endpoints.embeddings import EMBEDDINGS


def body(prompt: Prompt, **changes: object) -> dict[str, object]:
    given = {"url": "http://localhost:1", "model": "m", "type": "embeddings", **changes}
    return json.loads(EMBEDDINGS.render(prompt, Options.model_validate(given)).whole)


def test_one_text_is_a_string_and_several_a_list() -> None:
    assert body(Prompt(texts=("a",))) == {"model": "m", "input": "a"}
    assert body(Prompt(texts=("a", "b")))["input"] == ["a", "b"]


def test_output_lengths_mean_nothing_here() -> None:
    assert body(Prompt(texts=("a",), output_tokens=5)).keys() == {"model", "input"}


@pytest.mark.parametrize(
    "prompt", [Prompt(messages=({"role": "user", "content": "x"},)), Prompt(payload={"n": 1})]
)
def test_prompts_of_another_api_are_refused(prompt: Prompt) -> None:
    with pytest.raises(ValueError, match="embeddings API"):
        body(prompt)


def test_vectors_are_counted_in_both_encodings() -> None:
    data = b'{"data":[{"embedding":[0.1,-2]},{"embedding":"AAAA"}],"usage":{"prompt_tokens":4}}'
    delta = EMBEDDINGS.parse_body(data)
    assert (delta.items, delta.prompt_tokens, delta.has_output) == (2, 4, True)


@pytest.mark.parametrize("vector", ["[]", "null", '""'])
def test_an_empty_vector_is_none(vector: str) -> None:
    assert EMBEDDINGS.parse_body(b'{"data":[{"embedding":%b}]}' % vector.encode()).items == 0


def test_an_error_object_is_an_error() -> None:
    assert EMBEDDINGS.parse_body(b'{"error":{"message":"no"}}').error == "no"
    assert EMBEDDINGS.parse_body(b'{"object":"error","message":"no"}').error == "no"


@pytest.mark.parametrize("data", [b"{}", b"[]", b"x", b'{"data":[{}]}', b'{"data":5}'])
def test_what_is_no_response_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        EMBEDDINGS.parse_body(data)


def test_event_is_malformed_without_streaming() -> None:
    with pytest.raises(MalformedResponse, match="does not stream"):
        EMBEDDINGS.parse_event(b'{"data":[]}')
