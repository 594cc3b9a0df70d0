"""Rankings of the mock server, parsed by their endpoints."""

import json
from typing import Any

import pytest

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.domain.endpoint_types import EndpointType, Feature, types_with
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.replies import Drafts, draft_error
from aiperf_svc.mock_server.requests import TEI_RERANK, BadRequest, parse_params

DEFAULTS = MockServerConfig(model="m", tokens=3)
EVERY = pytest.mark.parametrize("kind", types_with(Feature.RANKING))


def ranked(kind: EndpointType, **payload: Any) -> tuple[int, int]:
    """Return the number of ranked passages, and the stated prompt tokens."""
    endpoint = ENDPOINTS[kind]
    prompt = Prompt(payload=payload) if payload else Prompt(texts=("a b",), passages=("c", "d e"))
    options = Endpoint(url="http://localhost:1", model="m", type=kind)
    params = parse_params(endpoint.path, endpoint.render(prompt, options).whole, DEFAULTS)
    reply = Drafts(created_s=1, role_chunk=False, embedding_dimensions=4).draft(params)
    delta = endpoint.parse_body(reply.body)
    return delta.items, delta.prompt_tokens


@EVERY
def test_each_passage_gets_a_score(kind: EndpointType) -> None:
    # Text Embeddings Inference reports no usage.
    stated = -1 if kind is EndpointType.HF_TEI_RANKINGS else 5
    assert ranked(kind) == (2, stated)


@EVERY
@pytest.mark.parametrize("missing", ["query", "passages"])
def test_a_request_without_query_or_passages_is_refused(kind: EndpointType, missing: str) -> None:
    endpoint = ENDPOINTS[kind]
    body = {"query": "q", endpoint.passages_key: ["p"]}
    del body["query" if missing == "query" else endpoint.passages_key]
    with pytest.raises(BadRequest, match="is missing"):
        parse_params(endpoint.path, json.dumps(body).encode(), DEFAULTS)


def test_error_has_the_form_of_text_embeddings_inference() -> None:
    assert json.loads(draft_error(400, "no", path=TEI_RERANK).body)["error"] == "no"
