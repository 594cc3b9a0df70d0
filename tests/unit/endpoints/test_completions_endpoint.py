"""Completions: bodies, events and complete responses."""

from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from tests.support.endpoint_requests import endpoint_options, request_body

body = partial(request_body, COMPLETIONS)


def test_one_text_is_string_and_several_are_list() -> None:
    assert body(Prompt(texts=("a",))) == {"model": "m", "prompt": "a"}
    assert body(Prompt(texts=("a", "b")))["prompt"] == ["a", "b"]


def test_streaming_and_length_are_requested_like_chat() -> None:
    assert body(Prompt(texts=("a",), output_tokens=2), streaming=True) == {
        "model": "m",
        "prompt": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 2,
        "min_tokens": 2,
        "ignore_eos": True,
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
    options = endpoint_options(type="completions", extra_inputs=extra)
    assert COMPLETIONS.render(prompt, options).requested_tokens == expected


def test_events_and_whole_responses_have_one_shape() -> None:
    data = b'{"choices":[{"text":"Hi","finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
    for parse in (COMPLETIONS.parse_event, COMPLETIONS.parse_body):
        delta = parse(data)
        assert (delta.content, delta.finish_reason, delta.completion_tokens) == ("Hi", "stop", 1)


def test_empty_text_is_no_output() -> None:
    assert not COMPLETIONS.parse_event(b'{"choices":[{"text":""}]}').has_output
