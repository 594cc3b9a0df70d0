"""Text Generation Inference's own API: `/generate`, and `/generate_stream` for streams.

All options are inside `parameters`. The last event of a stream has the counts and the finish
reason; there is no `[DONE]`.
"""

from typing import Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json


class _Token(msgspec.Struct, gc=False):
    text: str = ""
    special: bool = False
    """True for tokens that are not text, such as the end of the sequence."""


class _Details(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    generated_tokens: base.Count = None
    input_length: base.Count = None


class _Event(msgspec.Struct, gc=False):
    token: _Token | None = None
    details: _Details | None = None
    error: Any = None


class _Response(msgspec.Struct, gc=False):
    generated_text: str | None = None
    details: _Details | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Response).decode


def parse_event(data: bytes) -> Delta:
    """Parse one event of a stream: one token."""
    event = _decode_event(data)
    delta = Delta()
    if event.error or (event.token is None and event.details is None):
        delta.error = base.error_instead_of("token", data)
    if event.token is not None:
        delta.content = "" if event.token.special else event.token.text
        delta.is_blank = not delta.content and event.details is None
    _add_details(delta, event.details)
    return delta


def parse_body(body: bytes) -> Delta:
    response = _decode_body(body)
    delta = Delta()
    if response.error or response.generated_text is None:
        delta.error = base.error_instead_of("generated_text", body)
    delta.content = response.generated_text or ""
    _add_details(delta, response.details)
    return delta


def _add_details(delta: Delta, details: _Details | None) -> None:
    if details is not None:
        delta.prompt_tokens = base.count_of(details.input_length)
        delta.completion_tokens = base.count_of(details.generated_tokens)
        base.add_finish(delta, 0, details.finish_reason)


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body. `extra_inputs` go into `parameters`, where null removes a member."""
    text = base.texts_of(prompt, prompt_key="inputs", api="huggingface_generate")
    if not isinstance(text, str):
        raise ValueError("the huggingface_generate API takes one text, not several")
    others = {key: value for key, value in (prompt.payload or {}).items() if key != "stream"}
    custom = others.get("parameters") or {}
    if not isinstance(custom, dict):
        raise ValueError("a payload of the huggingface_generate API needs an object `parameters`")
    # Without details, a response does not report its number of tokens.
    parameters: Json = {"details": True, **custom}
    if prompt.output_tokens:
        parameters.setdefault("max_new_tokens", prompt.output_tokens)
    parameters |= options.extra_inputs
    parameters = {key: value for key, value in parameters.items() if value is not None}
    return Rendered(
        body=msgspec.json.encode({"inputs": text} | others | {"parameters": parameters}),
        requested_tokens=base.requested_tokens(prompt, parameters),
    )


HUGGINGFACE_GENERATE = Endpoint(
    type=EndpointType.HUGGINGFACE_GENERATE,
    path="/generate",
    stream_path="/generate_stream",
    prompt_key="inputs",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
)
