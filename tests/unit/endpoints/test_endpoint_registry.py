"""What holds for every endpoint."""

import base64

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import (
    Endpoint,
    Media,
    Prompt,
    error_message,
    extra_input_problems,
)
from aiperf_svc.core.endpoints.registry import ENDPOINTS, endpoint_of
from aiperf_svc.domain.endpoint_types import EndpointType, Feature, types_with

EVERY = pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda found: found.type.value)


def options(**changes: object) -> Options:
    return Options.model_validate({"url": "http://localhost:1", "model": "m", **changes})


def test_every_type_of_the_config_has_an_endpoint() -> None:
    assert ENDPOINTS.keys() | set(types_with(Feature.CUSTOM)) == set(EndpointType)
    for kind in EndpointType:
        given = (
            {"type": kind, "template": "{}"} if kind is EndpointType.TEMPLATE else {"type": kind}
        )
        assert endpoint_of(options(**given)).type is kind


@EVERY
def test_the_body_holds_the_prompt_under_the_prompt_key(endpoint: Endpoint) -> None:
    passages = ("needle",) if endpoint.passages_key else ()
    is_sound = endpoint.type is EndpointType.AUDIO_TRANSCRIPTION
    prompt = Prompt(texts=("needle",), passages=passages)
    if is_sound:
        prompt = Prompt(media=(Media("audio/wav", base64.b64encode(b"needle").decode()),))
    whole = endpoint.render(prompt, options()).whole
    assert whole.index(b'"%b"' % endpoint.prompt_key.encode()) < whole.index(b"needle")


@EVERY
def test_extra_inputs_that_another_setting_decides_are_all_named(endpoint: Endpoint) -> None:
    extra = {"stream": True, endpoint.prompt_key: "x", "temperature": 0}
    problems = extra_input_problems(endpoint, options(extra_inputs=extra))
    assert len(problems) == 2
    assert "endpoint.extra_inputs.stream" in problems[0]
    assert f"endpoint.extra_inputs.{endpoint.prompt_key}" in problems[1]


@EVERY
def test_harmless_extra_inputs_are_no_problem(endpoint: Endpoint) -> None:
    assert extra_input_problems(endpoint, options(extra_inputs={"temperature": 0})) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"  Bad Gateway \n", "Bad Gateway"),
        (b'{"error":{"message":"no key"}}', "no key"),
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
def test_message_of_a_bad_response_is_found_and_short(body: bytes, message: str) -> None:
    assert error_message(body) == message
