"""The path of a request is that of the API, whichever part of it the URL already contains."""

import pytest

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.endpoints.paths import base_path, other_api, request_path
from aiperf_svc.core.endpoints.registry import endpoint_of


def options_of(**fields: object) -> Endpoint:
    return Endpoint.model_validate({"url": "http://h", "model": "m", **fields})


@pytest.mark.parametrize(
    ("url_path", "options", "path", "base"),
    [
        ("", {}, "/v1/chat/completions", ""),
        ("/", {}, "/v1/chat/completions", ""),
        ("/v1", {}, "/v1/chat/completions", ""),
        ("/v1/", {}, "/v1/chat/completions", ""),
        ("/v1/chat/completions", {}, "/v1/chat/completions", ""),
        ("/gate/v1/chat/completions/", {}, "/gate/v1/chat/completions", "/gate"),
        ("/gate", {}, "/gate/v1/chat/completions", "/gate"),
        ("/chat/completions", {}, "/chat/completions", ""),
        ("/api/v3/chat/completions/", {}, "/api/v3/chat/completions", "/api/v3"),
        (
            "/v1beta/openai/embeddings",
            {"type": "embeddings"},
            "/v1beta/openai/embeddings",
            "/v1beta/openai",
        ),
        ("/rechat/completions", {"path": "/x"}, "/rechat/completions/x", "/rechat/completions"),
        ("/otherv1", {}, "/otherv1/v1/chat/completions", "/otherv1"),
        ("/v1/embeddings", {"type": "embeddings"}, "/v1/embeddings", ""),
        ("/v2/rerank", {"type": "cohere_rankings"}, "/v2/rerank", ""),
        ("/v1/rerank", {"type": "cohere_rankings"}, "/v1/rerank", "/v1"),
        ("/generate", {"type": "huggingface_generate", "streaming": True}, "/generate_stream", ""),
        ("/generate_stream", {"type": "huggingface_generate"}, "/generate", ""),
        ("/a", {"path": "/x/y?z=/a"}, "/a/x/y?z=/a", "/a"),
        ("/x/y", {"path": "/x/y?z=1"}, "/x/y?z=1", ""),
        ("", {"path": "/"}, "/", ""),
        ("/api", {"type": "raw"}, "/api", "/api"),
        ("", {"type": "raw"}, "/", ""),
    ],
)
def test_shared_path_prefix_is_not_repeated(
    url_path: str, options: dict[str, object], path: str, base: str
) -> None:
    made = options_of(**options)
    assert request_path(url_path, made, endpoint_of(made)) == path
    assert base_path(url_path, made, endpoint_of(made)) == base


@pytest.mark.parametrize(
    ("url_path", "options", "other"),
    [
        ("/v1/completions", {}, "completions"),
        ("/v1/chat/completions", {"type": "completions"}, "chat"),
        ("/api/v3/chat/completions", {"type": "completions"}, "chat"),
        ("/api/v3/chat/completions", {}, ""),
        ("/api/v3/completions", {"type": "completions"}, ""),
        ("/v1/rerank", {"type": "cohere_rankings"}, ""),
        ("/v2/rerank", {"type": "hf_tei_rankings"}, ""),
        ("/rerank", {}, "hf_tei_rankings"),
        ("/v1/chat/completions", {}, ""),
        ("/v1/completions", {"path": "/own"}, ""),
        ("/v1/completions", {"type": "raw"}, ""),
        ("/gate", {}, ""),
    ],
)
def test_path_of_another_api_is_detected(
    url_path: str, options: dict[str, object], other: str
) -> None:
    assert other_api(url_path, options_of(**options)) == other
