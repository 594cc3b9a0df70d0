"""Image generation: bodies, and responses like those of real servers."""

from functools import partial

import pytest

from aiperf_svc.core.endpoints.base import Prompt, extra_input_problems
from aiperf_svc.core.endpoints.image_generation import IMAGE_GENERATION
from tests.support.endpoint_requests import endpoint_options, request_body

body = partial(request_body, IMAGE_GENERATION)
CAT = Prompt(texts=("a cat",))


def test_picture_is_requested_as_base64() -> None:
    plain = {"prompt": "a cat", "response_format": "b64_json", "n": 1, "model": "m"}
    assert body(CAT) == plain
    assert body(CAT, streaming=True) == plain | {"stream": True}


def test_output_length_is_not_sent() -> None:
    assert body(Prompt(texts=("a cat",), output_tokens=5)) == body(CAT)


def test_extra_inputs_come_last_and_null_removes() -> None:
    extra = {"response_format": None, "size": "1024x1024", "n": 2}
    assert body(CAT, extra_inputs=extra) == {
        "prompt": "a cat",
        "model": "m",
        "size": "1024x1024",
        "n": 2,
    }


def test_a_stream_of_several_pictures_is_refused() -> None:
    with pytest.raises(ValueError, match="a stream is one image"):
        body(Prompt(payload={"prompt": "x", "n": 2}), streaming=True)
    options = endpoint_options(type="image_generation", streaming=True, extra_inputs={"n": 2})
    (problem,) = extra_input_problems(IMAGE_GENERATION, options)
    assert problem.startswith("endpoint.extra_inputs.n: a stream is one image")


@pytest.mark.parametrize(
    ("response", "pictures", "tokens"),
    [
        (
            b'{"created":1713833628,"data":[{"b64_json":"iVBO"}],"background":"opaque",'
            b'"output_format":"png","size":"1024x1024","quality":"high","usage":{"total_tokens":'
            b'100,"input_tokens":50,"output_tokens":50,"input_tokens_details":{"text_tokens":10,'
            b'"image_tokens":40}}}',
            1,
            50,
        ),
        (
            b'{"created":1,"data":[{"url":"https://x/1.png","revised_prompt":"a"},'
            b'{"url":"https://x/2.png"}]}',
            2,
            -1,
        ),
        (b'{"id":"r","created":1,"data":[{"b64_json":"iVBO","url":null}]}', 1, -1),
        (b'{"created":1,"data":[{"b64_json":null,"url":""}]}', 0, -1),
    ],
    ids=["gpt-image", "dall-e", "sglang", "none"],
)
def test_pictures_are_counted(response: bytes, pictures: int, tokens: int) -> None:
    delta = IMAGE_GENERATION.parse_body(response)
    assert (delta.items, delta.prompt_tokens, delta.error) == (pictures, tokens, "")
    assert delta.completion_tokens == -1


def test_the_events_of_a_stream() -> None:
    parse = IMAGE_GENERATION.parse_event
    partial = parse(
        b'{"type":"image_generation.partial_image","b64_json":"iVBO","created_at":1620000000,'
        b'"size":"1024x1024","quality":"high","background":"transparent","output_format":"png",'
        b'"partial_image_index":0}'
    )
    assert (partial.items, partial.finish_reason) == (1, "")
    completed = parse(
        b'{"type":"image_generation.completed","b64_json":"iVBO","created_at":1,"usage":'
        b'{"total_tokens":100,"input_tokens":50,"output_tokens":50}}'
    )
    assert (completed.items, completed.finish_reason) == (1, "completed")
    assert completed.prompt_tokens == 50
    error = b'{"type":"error","error":{"type":"image_generation_user_error","message":"no"}}'
    assert parse(error).error == "no"
