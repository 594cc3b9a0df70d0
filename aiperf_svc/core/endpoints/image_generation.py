"""Image generation (`/v1/images/generations`), streamed or not.

Pictures are counted, not decoded. A stream is one picture, preceded by partial pictures, the first
of which counts for the time to first token. The tokens that a server reports for a picture are not
successive tokens of a text, so they are ignored.
"""

from typing import Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType


class _Usage(msgspec.Struct, gc=False):
    input_tokens: base.Count = None


class _Picture(msgspec.Struct, gc=False):
    b64_json: msgspec.Raw = msgspec.Raw(b"")
    url: msgspec.Raw = msgspec.Raw(b"")

    @property
    def is_there(self) -> bool:
        return any(bytes(each) not in _NO_PICTURE for each in (self.b64_json, self.url))


class _Event(_Picture, gc=False):
    type: str = ""
    usage: _Usage | None = None


class _Response(msgspec.Struct, gc=False):
    data: list[_Picture] | None = None
    usage: _Usage | None = None
    error: Any = None


_NO_PICTURE = (b"", b"null", b'""')
_PARTIAL, _COMPLETED = "image_generation.partial_image", "image_generation.completed"
_ONE = "a stream is one image; leave it out, or endpoint.streaming"
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Response).decode


def parse_event(data: bytes) -> Delta:
    """Parse one event of a stream. Types without a picture yield an empty Delta."""
    event = _decode_event(data)
    delta = Delta()
    if event.type in (_PARTIAL, _COMPLETED):
        if not event.is_there:
            raise base.malformed(ValueError(f"{event.type} without an image"), data)
        delta.items = 1
        if event.type == _COMPLETED:
            base.add_finish(delta, 0, "completed")
            _add_usage(delta, event.usage)
    elif event.type == "error" or not event.type:
        delta.error = base.error_instead_of("type", data)
    else:
        delta.error = base.find_error(data)
    return delta


def parse_body(body: bytes) -> Delta:
    """Count the pictures in a body."""
    response = _decode_body(body)
    delta = Delta()
    if response.error or response.data is None:
        delta.error = base.error_instead_of("data", body)
        return delta
    delta.items = sum(picture.is_there for picture in response.data)
    _add_usage(delta, response.usage)
    return delta


def _add_usage(delta: Delta, usage: _Usage | None) -> None:
    if usage is not None:
        delta.prompt_tokens = base.count_of(usage.input_tokens)


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body. `response_format` is `b64_json`, since the transfer of the picture is
    part of the response; null in `extra_inputs` omits it."""
    text = base.texts_of(prompt, prompt_key="prompt", api="image_generation")
    if not isinstance(text, str):
        raise ValueError("the image_generation API takes one text, not several")
    prompt = msgspec.structs.replace(prompt, output_tokens=None)
    defaults = {"response_format": "b64_json", "n": 1}
    body = base.finish_body(prompt, options, prompt_key="prompt", has_usage_option=False)
    kept = {key: value for key, value in defaults.items() if key not in options.extra_inputs}
    body = {"prompt": text} | kept | body
    if options.streaming and body.get("n", 1) != 1:
        raise ValueError(f"`n`: {_ONE}")
    return Rendered(body=msgspec.json.encode(body))


def extra_problems(options: config.Endpoint) -> list[str]:
    """Return the error for a stream of several pictures."""
    is_one = options.extra_inputs.get("n") in (None, 1)
    return [] if is_one or not options.streaming else [f"endpoint.extra_inputs.n: {_ONE}"]


IMAGE_GENERATION = Endpoint(
    type=EndpointType.IMAGE_GENERATION,
    path="/v1/images/generations",
    prompt_key="prompt",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
    extra_problems=extra_problems,
)
