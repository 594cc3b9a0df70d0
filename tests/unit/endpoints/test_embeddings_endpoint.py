"""Embeddings: bodies and responses."""

from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.embeddings import EMBEDDINGS
from tests.support.endpoint_requests import request_body

body = partial(request_body, EMBEDDINGS)


def test_one_text_is_string_and_several_are_list() -> None:
    assert body(Prompt(texts=("a",))) == {"model": "m", "input": "a"}
    assert body(Prompt(texts=("a", "b")))["input"] == ["a", "b"]


def test_output_length_is_not_sent() -> None:
    assert body(Prompt(texts=("a",), output_tokens=5)).keys() == {"model", "input"}


def test_vectors_are_counted_in_both_encodings() -> None:
    data = b'{"data":[{"embedding":[0.1,-2]},{"embedding":"AAAA"}],"usage":{"prompt_tokens":4}}'
    delta = EMBEDDINGS.parse_body(data)
    assert (delta.items, delta.prompt_tokens, delta.has_output) == (2, 4, True)


@pytest.mark.parametrize("vector", ["[]", "null", '""'])
def test_an_empty_vector_is_none(vector: str) -> None:
    assert EMBEDDINGS.parse_body(b'{"data":[{"embedding":%b}]}' % vector.encode()).items == 0
