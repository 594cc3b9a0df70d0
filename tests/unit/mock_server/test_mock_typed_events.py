"""The mock server's APIs with typed events, parsed by their endpoints."""

import json

import pytest

from aiperf_svc.core.endpoints.base import Delta
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.mock_server.replies import Drafts, draft_error
from aiperf_svc.mock_server.requests import GENERATE, GENERATE_STREAM, MESSAGES, RESPONSES
from tests.support.fake_params import params

BOTH = pytest.mark.parametrize(
    ("path", "kind"), [(RESPONSES, EndpointType.RESPONSES), (MESSAGES, EndpointType.MESSAGES)]
)


@BOTH
@pytest.mark.parametrize(("tokens", "reasoning"), [(5, 2), (3, 0), (2, 2)])
def test_stream_and_whole_response_are_equal(
    path: str, kind: EndpointType, tokens: int, reasoning: int
) -> None:
    drafts = Drafts(created_s=1, role_chunk=False, embedding_dimensions=4)
    request = params(path, tokens=tokens, reasoning=reasoning, is_cut_short=True)
    stream = drafts.draft(request)
    whole = ENDPOINTS[kind].parse_body(drafts.draft(request._replace(is_stream=False)).body)
    assert len(stream.events) == tokens
    raw = b"".join([*stream.opening, *stream.events, *stream.tail])
    data = [part.partition(b"\ndata: ")[2] for part in raw.split(b"\n\n")[:-1]]
    deltas: list[Delta] = [ENDPOINTS[kind].parse_event(each) for each in data]
    assert "".join(each.content for each in deltas) == whole.content
    assert "".join(each.reasoning for each in deltas) == whole.reasoning
    assert sum(each.has_output for each in deltas) == tokens
    assert max(each.completion_tokens for each in deltas) == whole.completion_tokens == tokens
    assert max(each.prompt_tokens for each in deltas) == whole.prompt_tokens == 7
    assert [each.finish_reason for each in deltas if each.finish_reason] == [whole.finish_reason]


def test_an_error_has_the_form_of_its_api() -> None:
    assert json.loads(draft_error(400, "no", path=MESSAGES).body)["type"] == "error"
    assert "type" not in json.loads(draft_error(400, "no", path=RESPONSES).body)


def test_generate_stream_equals_whole_response() -> None:
    drafts = Drafts(created_s=1, role_chunk=False, embedding_dimensions=4)
    request = params(GENERATE_STREAM, is_cut_short=True)
    endpoint = ENDPOINTS[EndpointType.HUGGINGFACE_GENERATE]
    whole = endpoint.parse_body(drafts.draft(request._replace(path=GENERATE, is_stream=False)).body)
    events = drafts.draft(request).events
    deltas = [endpoint.parse_event(each.removeprefix(b"data:")) for each in events]
    assert "".join(each.content for each in deltas) == whole.content
    assert deltas[-1].completion_tokens == whole.completion_tokens == 3
    assert deltas[-1].finish_reason == whole.finish_reason == "length"
    assert deltas[-1].prompt_tokens == 7
