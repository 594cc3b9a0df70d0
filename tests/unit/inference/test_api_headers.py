"""The headers that an API needs in addition to the common ones, and where the key goes."""

import pytest

from aiperf_svc.adapters.inference import side_requests
from aiperf_svc.adapters.inference.proxy import Route
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.config.hooks import Hook
from tests.support.small_configs import small_config

VERSION = b"\r\nanthropic-version: "


def head_of(kind: str, **endpoint: object) -> bytes:
    keys = {"type": kind, "api_key_env": "KEY_OF_TEST"} | endpoint
    return resolve_target(small_config("http://127.0.0.1:1", endpoint=keys)).head


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "k")


def test_messages_api_has_own_version_and_key_headers() -> None:
    head = head_of("messages")
    assert VERSION + b"2023-06-01\r\n" in head
    assert b"\r\nx-api-key: k\r\n" in head
    assert b"Authorization" not in head


def test_configured_headers_override_api_headers() -> None:
    head = head_of("messages", headers={"Anthropic-Version": "x"}, api_key_header="Authorization")
    assert VERSION not in head
    assert b"\r\nAnthropic-Version: x\r\n" in head
    assert b"\r\nAuthorization: Bearer k\r\n" in head


def test_key_may_be_in_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "k&k")
    head = head_of("chat", path="/x?version=1", api_key_header="?key")
    assert head.startswith(b"POST /x?version=1&key=k%26k HTTP/1.1\r\n")
    assert b"Authorization" not in head
    assert head_of("embeddings", api_key_header="?key").startswith(
        b"POST /v1/embeddings?key=k%26k HTTP/1.1\r\n"
    )


async def test_hooks_have_the_key_in_their_query(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    async def exchange(_route: Route, request: bytes, **_more: object) -> tuple[int, bytes]:
        sent.append(request)
        return 200, b"{}"

    monkeypatch.setattr(side_requests, "exchange", exchange)
    url, keys = "http://127.0.0.1:1", {"api_key_env": "KEY_OF_TEST", "api_key_header": "?key"}
    hook = Hook(before="load", path="/reset?all=1")
    config = small_config(url, endpoint=keys)
    assert await side_requests.call_hook(hook, url, config, "id") == ""
    (request,) = sent
    assert request.startswith(b"POST /reset?all=1&key=k HTTP/1.1\r\n")


def test_tgi_streams_have_their_own_path() -> None:
    kind = "huggingface_generate"
    assert head_of(kind).startswith(b"POST /generate HTTP/1.1\r\n")
    assert head_of(kind, streaming=True).startswith(b"POST /generate_stream HTTP/1.1\r\n")
    assert head_of(kind, streaming=True, path="/x").startswith(b"POST /x HTTP/1.1\r\n")


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_other_apis_get_a_bearer_token(kind: str) -> None:
    head = head_of(kind)
    assert b"\r\nAuthorization: Bearer k\r\n" in head
    assert VERSION not in head
