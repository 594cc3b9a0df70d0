"""Rankings of passages for a query: Cohere's `/v2/rerank`, `/rerank` of Text Embeddings Inference,
and NVIDIA NIM's `/v1/ranking`.

None of them streams. A response has a score for each passage; scores are counted, not parsed.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: base.Count = None
    total_tokens: base.Count = None
    """All tokens of a ranking belong to its prompt."""


class _Score(msgspec.Struct, gc=False):
    index: int
    """Index of the passage in the request."""


class _Response(msgspec.Struct, gc=False):
    results: list[_Score] | None = None
    """Scores of Cohere's API."""
    rankings: list[_Score] | None = None
    """Scores of NIM's API."""
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Response).decode
_decode_list = msgspec.json.Decoder(list[_Score]).decode


def parse_body(body: bytes) -> Delta:
    """Count the ranked passages in a body."""
    is_list = body.lstrip()[:1] == b"["
    response = _Response(results=_decode_list(body)) if is_list else _decode(body)
    delta = Delta()
    found = response.results if response.results is not None else response.rankings
    if found is not None:
        delta.items = len(found)
    if response.error or found is None:
        delta.error = base.error_instead_of("scores", body)
    if response.usage is not None:
        stated = response.usage.prompt_tokens
        delta.prompt_tokens = base.count_of(
            response.usage.total_tokens if stated is None else stated
        )
    return delta


def parse_event(data: bytes) -> Delta:
    """Raise MalformedResponse: a ranking sends no events."""
    raise base.malformed(ValueError("a rankings API does not stream"), data)


def _endpoint(
    kind: EndpointType,
    path: str,
    passages_key: str,
    *,
    of_text: Callable[[str], Any] = str,
    has_model: bool = True,
) -> Endpoint:
    """Return one API. `of_text` builds the JSON of a query or a passage."""

    def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
        body: Json = {"model": options.model} if has_model else {}
        if prompt.payload is not None:
            missing = [key for key in ("query", passages_key) if not prompt.payload.get(key)]
            if missing:
                raise ValueError(f"a payload of the {kind} API needs `{missing[0]}`")
            body |= prompt.payload
        else:
            if prompt.messages or len(prompt.texts) != 1 or not prompt.passages:
                raise ValueError("a ranking needs `query`, a text, and `passages`, a list of texts")
            body["query"] = of_text(prompt.texts[0])
            body[passages_key] = [of_text(passage) for passage in prompt.passages]
        body |= options.extra_inputs
        present = {key: value for key, value in body.items() if value is not None}
        return Rendered(body=msgspec.json.encode(present))

    return Endpoint(
        type=kind,
        path=path,
        prompt_key="query",
        passages_key=passages_key,
        render=render,
        parse_event=parse_event,
        parse_body=parse_body,
    )


COHERE_RANKINGS = _endpoint(EndpointType.COHERE_RANKINGS, "/v2/rerank", "documents")
HF_TEI_RANKINGS = _endpoint(EndpointType.HF_TEI_RANKINGS, "/rerank", "texts", has_model=False)
NIM_RANKINGS = _endpoint(
    EndpointType.NIM_RANKINGS, "/v1/ranking", "passages", of_text=lambda text: {"text": text}
)
