"""The three rankings APIs: bodies, and responses like those of real servers."""

import pytest

from aiperf_svc.core.endpoints.base import Endpoint, Prompt
from aiperf_svc.core.endpoints.rankings import COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS
from tests.support.endpoint_requests import request_body

PROMPT = Prompt(texts=("q",), passages=("a", "b"))
EVERY = pytest.mark.parametrize("endpoint", [COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS])


def test_each_api_has_its_own_body() -> None:
    assert request_body(COHERE_RANKINGS, PROMPT) == {
        "model": "m",
        "query": "q",
        "documents": ["a", "b"],
    }
    assert request_body(HF_TEI_RANKINGS, PROMPT) == {"query": "q", "texts": ["a", "b"]}
    assert request_body(NIM_RANKINGS, PROMPT) == {
        "model": "m",
        "query": {"text": "q"},
        "passages": [{"text": "a"}, {"text": "b"}],
    }


def test_extra_inputs_come_last_and_null_removes() -> None:
    sent = request_body(COHERE_RANKINGS, PROMPT, extra_inputs={"top_n": 1, "model": None})
    assert sent == {"query": "q", "documents": ["a", "b"], "top_n": 1}


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
def test_a_ranking_of_nothing_has_no_output(endpoint: Endpoint) -> None:
    assert not endpoint.parse_body(b'{"results":[]}').has_output
