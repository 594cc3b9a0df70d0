"""Embeddings (`/v1/embeddings`). They do not stream. Their vectors are counted, not decoded."""

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType


class _Item(msgspec.Struct, gc=False):
    embedding: msgspec.Raw
    """List of floats, or base64 of them."""


class _Response(base.CommonMembers, gc=False):
    data: list[_Item] | None = None


_decode = msgspec.json.Decoder(_Response).decode
_NO_VECTOR = (b"null", b"[]", b'""')


def parse_body(body: bytes) -> Delta:
    """Count the embeddings in a body, except empty vectors."""
    response = _decode(body)
    delta = Delta()
    if response.data is not None:
        delta.items = sum(bytes(item.embedding) not in _NO_VECTOR for item in response.data)
    elif not response.error:
        delta.error = base.error_instead_of("data", body)
    base.add_usage_and_error(delta, response)
    return delta


def parse_event(data: bytes) -> Delta:
    """Raise MalformedResponse: the embeddings API sends no events."""
    raise base.malformed(ValueError("the embeddings API does not stream"), data)


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the whole body; several texts are sent as a list of inputs."""
    value = base.texts_of(prompt, prompt_key="input", api="embeddings")
    rest = base.finish_body(prompt, options, prompt_key="input", streams=False)
    return Rendered(body=msgspec.json.encode({"input": value} | rest))


EMBEDDINGS = Endpoint(
    type=EndpointType.EMBEDDINGS,
    path="/v1/embeddings",
    prompt_key="input",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
)
