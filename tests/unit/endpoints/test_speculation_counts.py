"""Speculative decoding per request, as servers report it, and the acceptance rate of the run."""

import json
from typing import Any

import pytest

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Drafts
from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.domain.endpoint_types import EndpointType
from tests.support.fake_run import make_rows, results

USAGE = {"usage": {"prompt_tokens": 9, "completion_tokens": 40}}
VLLM = {"num_spec_steps": 10, "num_draft_tokens": 30, "num_accepted_draft_tokens": 20}
RAW = custom_endpoint(Options(url="http://h", model="m", type=EndpointType.RAW))
LLAMA_CPP = {"prompt_n": 9, "cache_n": 0, "draft_n": 30, "draft_n_accepted": 20}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"metrics": {"speculative_decoding": None}}, None),
        ({"metrics": {"speculative_decoding": VLLM}}, Drafts(10, 30, 20)),
        ({"timings": {"prompt_n": 9}}, None),
        ({"timings": LLAMA_CPP}, Drafts(-1, 30, 20)),
    ],
)
def test_counts_are_those_that_the_server_states(
    endpoint: Any, members: dict[str, Any], expected: Drafts | None
) -> None:
    delta = endpoint.parse_event(json.dumps({"choices": []} | USAGE | members).encode())
    assert delta.drafts == expected


def test_meta_info_of_sglang_has_counts() -> None:
    meta = {"spec_verify_ct": 10, "spec_draft_token_num": 30, "spec_accept_token_num": 20}
    for members, expected in ((meta, Drafts(10, 30, 20)), ({"prompt_tokens": 9}, None)):
        event = json.dumps({"text": "a", "meta_info": members}).encode()
        assert RAW.parse_event(event).drafts == expected


def test_timings_in_other_apis_have_counts() -> None:
    event = json.dumps({"content": "a", "timings": LLAMA_CPP}).encode()
    assert RAW.parse_event(event).drafts == Drafts(-1, 30, 20)


def test_acceptance_of_the_run_is_of_sums() -> None:
    stated = {
        "spec_steps": [10, 90, -1],
        "spec_drafted_tokens": [30, 270, -1],
        "spec_accepted_tokens": [30, 90, -1],
    }
    found = results(make_rows(3, **stated))
    assert found.scalars["spec_decode_token_weighted_acceptance_length"] == 1 + 120 / 100
    assert found.scalars["spec_decode_overall_draft_acceptance_rate"] == pytest.approx(40)
    assert found.metrics["spec_decode_acceptance_length"].stats.avg == pytest.approx((4 + 2) / 2)
    assert found.metrics["spec_decode_draft_acceptance_rate"].distribution.count == 2


def test_run_without_speculation_has_no_acceptance() -> None:
    found = results(make_rows(3))
    assert not [tag for tag in (*found.scalars, *found.metrics) if "draft" in tag or "spec" in tag]


def test_more_accepted_than_drafted_has_no_rate() -> None:
    found = results(make_rows(2, spec_drafted_tokens=[10, 10], spec_accepted_tokens=[20, 5]))
    assert found.metrics["spec_decode_draft_acceptance_rate"].stats.avg == 50
