"""Request heads and bodies, as the mock server reads them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    BadRequest,
    RequestParams,
    parse_head,
    parse_params,
    split_request_id,
)

DEFAULTS = MockServerConfig(model="m", tokens=10)


def _params(
    path: str = CHAT, defaults: MockServerConfig = DEFAULTS, **body: object
) -> RequestParams:
    content: dict[str, Any] = {"messages": []} if path == CHAT else {}
    return parse_params(path, json.dumps(content | body).encode(), defaults)


def test_head_has_all_fields_for_the_response() -> None:
    head = parse_head(
        b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: h\r\ncontent-LENGTH: 12\r\n"
        b"Connection: keep-alive, Close\r\nExpect: 100-continue\r\nX-Mock-Fault: cut"
    )
    assert (head.method, head.path, head.query, head.length) == ("POST", CHAT, "x=1", 12)
    assert head.is_last
    assert head.expects_continue
    assert head.fault == "cut"


@pytest.mark.parametrize(
    ("url", "path"), [("http://h:1/v1/models", "/v1/models"), ("http://h", "/")]
)
def test_proxied_request_may_have_the_whole_url(url: str, path: str) -> None:
    assert parse_head(f"GET {url} HTTP/1.1".encode()).path == path


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense", 400),
        (b"GET / HTTP/1.0", 505),
        (b"GET relative HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nno colon", 400),
        (b"GET / HTTP/1.1\r\n folded: line", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: \xb2", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 99999999999", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked", 411),
    ],
)
def test_invalid_head_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(head)
    assert caught.value.status == status


@pytest.mark.parametrize("name", [b"X-Request-Id", b"x-request-id", b"X-REQUEST-ID"])
@pytest.mark.parametrize("after", [b"", b"\r\nAccept: */*"])
def test_request_id_leaves_no_trace_in_the_head(name: bytes, after: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\n" + name + b":  abc-1 " + after
    assert split_request_id(head) == (b"GET / HTTP/1.1\r\nHost: h" + after, b"abc-1")


def test_similar_header_is_not_the_request_id() -> None:
    head = b"GET / HTTP/1.1\r\nMy-X-Request-Id: abc"
    assert split_request_id(head) == (head, None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (10, False)),
        ({"max_tokens": 4}, (4, True)),
        ({"max_tokens": 10}, (10, False)),
        ({"max_tokens": 40}, (10, False)),
        ({"max_completion_tokens": 3, "max_tokens": 7}, (3, True)),
        ({"max_tokens": 40, "ignore_eos": True}, (40, True)),
        ({"max_tokens": 40, "min_tokens": 40}, (40, False)),
        ({"min_tokens": 25}, (25, False)),
    ],
)
def test_response_is_as_long_as_the_request_allows(
    body: dict[str, Any], expected: tuple[int, bool]
) -> None:
    params = _params(**body)
    assert (params.tokens, params.is_cut_short) == expected


def test_forced_tokens_ignore_the_request() -> None:
    forced = replace(DEFAULTS, force_tokens=True, reasoning_tokens=2)
    params = _params(defaults=forced, max_tokens=3, ignore_eos=True)
    assert (params.tokens, params.reasoning, params.is_cut_short) == (12, 2, False)


def test_refused_members_are_named() -> None:
    strict = replace(DEFAULTS, refuse="min_tokens,ignore_eos")
    assert _params(defaults=strict, max_tokens=3).tokens == 3
    with pytest.raises(BadRequest, match="not permitted: ignore_eos, min_tokens") as refusal:
        _params(defaults=strict, max_tokens=3, min_tokens=3, ignore_eos=True)
    assert refusal.value.status == 400


def test_prompt_tokens_are_the_words_of_all_messages() -> None:
    parts = [{"type": "text", "text": "three more words"}, {"type": "image_url"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert _params(messages=messages).prompt_tokens == 5
    assert _params(COMPLETIONS, prompt=[1, 2, 3]).prompt_tokens == 3


@pytest.mark.parametrize(
    ("usage", "body", "expected"),
    [
        ("requested", {"stream": True}, False),
        ("requested", {"stream": True, "stream_options": {"include_usage": True}}, True),
        ("requested", {}, True),
        ("never", {}, False),
        ("always", {"stream": True}, True),
    ],
)
def test_usage_is_returned_as_configured(usage: str, body: dict[str, Any], expected: bool) -> None:
    defaults = replace(DEFAULTS, usage=usage)
    assert _params(defaults=defaults, **body).has_usage is expected


def test_an_embeddings_request_is_counted_by_its_inputs() -> None:
    assert _params(EMBEDDINGS, input="two words").inputs == 1
    assert _params(EMBEDDINGS, input=[1, 2, 3]).inputs == 1
    many = _params(EMBEDDINGS, input=["a", "b c"], encoding_format="base64")
    assert (many.inputs, many.prompt_tokens, many.is_base64) == (2, 3, True)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"messages":[],"model":1}', b'{"messages":[],"max_tokens":"5"}', b"{}"],
)
def test_malformed_body_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_params(CHAT, body, DEFAULTS)
    assert caught.value.status == 400
