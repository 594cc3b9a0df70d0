"""The three rankings APIs: bodies, and responses in the form of real servers."""

import json
from typing import Any

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Endpoint, MalformedResponse, Prompt
from aiperf_svc.core.endpoints.rankings import COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS

PROMPT = Prompt(texts=("q",), passages=("a", "b"))
EVERY = pytest.mark.parametrize("endpoint", [COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS])


def body(endpoint: Endpoint, prompt: Prompt = PROMPT, **changes: object) -> dict[str, Any]:
    given = {"url": "http://localhost:1", "model": "m", "type": endpoint.type, **changes}
    return json.loads(endpoint.render(prompt, Options.model_validate(given)).whole)


def test_each_api_has_its_own_body() -> None:
    assert body(COHERE_RANKINGS) == {"model": "m", "query": "q", "documents": ["a", "b"]}
    assert body(HF_TEI_RANKINGS) == {"query": "q", "texts": ["a", "b"]}
    assert body(NIM_RANKINGS) == {
        "model": "m",
        "query": {"text": "q"},
        "passages": [{"text": "a"}, {"text": "b"}],
    }


def test_extra_inputs_come_last_and_null_removes() -> None:
    assert body(COHERE_RANKINGS, extra_inputs={"top_n": 1, "model": None}) == {
        "query": "q",
        "documents": ["a", "b"],
        "top_n": 1,
    }


def test_a_payload_keeps_its_members_and_its_model() -> None:
    payload = {"query": "x", "texts": ["y"], "model": "other", "truncate": True}
    assert body(HF_TEI_RANKINGS, Prompt(payload=payload)) == payload


@EVERY
@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(texts=("q",)),
        Prompt(texts=("q", "r"), passages=("a",)),
        Prompt(messages=({"role": "user", "content": "x"},), passages=("a",)),
        Prompt(payload={"query": "x"}),
        Prompt(payload={"documents": ["x"], "texts": ["x"], "passages": ["x"]}),
    ],
)
def test_prompts_without_query_or_passages_are_refused(endpoint: Endpoint, prompt: Prompt) -> None:
    with pytest.raises(ValueError, match=r"query|documents|texts|passages"):
        body(endpoint, prompt)


@EVERY
@pytest.mark.parametrize(
    ("response", "scores", "tokens"),
    [
        (
            b'{"id":"rerank-1","model":"m","usage":{"total_tokens":56},"results":[{"index":1,'
            b'"document":{"text":"b","multi_modal":null},"relevance_score":0.99},{"index":0,'
            b'"document":{"text":"a","multi_modal":null},"relevance_score":0.0003}]}',
            2,
            56,
        ),
        (
            b'{"results":[{"index":0,"relevance_score":0.5}],"id":"x","meta":{"api_version":'
            b'{"version":"2"},"billed_units":{"search_units":1}}}',
            1,
            -1,
        ),
        (b'[{"index":1,"score":0.99},{"index":0,"score":0.1,"text":"a"}]', 2, -1),
        (
            b'{"rankings":[{"index":0,"logit":7.5}],"usage":{"prompt_tokens":9,"total_tokens":9}}',
            1,
            9,
        ),
    ],
    ids=["vllm", "cohere", "tei", "nim"],
)
def test_scores_are_counted(endpoint: Endpoint, response: bytes, scores: int, tokens: int) -> None:
    delta = endpoint.parse_body(response)
    assert (delta.items, delta.prompt_tokens, delta.error) == (scores, tokens, "")
    assert delta.has_output


@EVERY
def test_an_error_under_a_good_status_is_an_error(endpoint: Endpoint) -> None:
    assert endpoint.parse_body(b'{"error":"too long","error_type":"Validation"}').error
    assert endpoint.parse_body(b'{"detail":"no"}').error


@EVERY
@pytest.mark.parametrize("data", [b"{}", b"[{}]", b"x", b'{"results":5}', b"[1]"])
def test_what_is_no_ranking_is_malformed(endpoint: Endpoint, data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        endpoint.parse_body(data)


@EVERY
def test_a_ranking_of_nothing_has_no_output(endpoint: Endpoint) -> None:
    assert not endpoint.parse_body(b'{"results":[]}').has_output


@EVERY
def test_an_event_is_malformed_because_rankings_do_not_stream(endpoint: Endpoint) -> None:
    with pytest.raises(MalformedResponse, match="does not stream"):
        endpoint.parse_event(b"{}")
