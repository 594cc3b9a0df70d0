"""When a target counts as ready, according to its response at each path."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aiperf_svc.adapters.inference import side_requests
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.adapters.inference.side_requests import readiness_problem
from tests.support.small_configs import small_config
from tests.support.threaded_server import in_thread

CHAT = "/v1/chat/completions"


@contextmanager
def responding(statuses: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Serve these statuses by path, else 404. Yield the address and the requested paths."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(statuses.get(self.path, 404))
            body = b'{"error": {"message": "loading"}}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, paths


async def reason(url: str, **endpoint: object) -> str:
    config = small_config(url, endpoint=endpoint)
    return await readiness_problem(config, resolve_target(config), "run")


@pytest.mark.parametrize(
    ("statuses", "asked", "expected"),
    [
        ({"/health": 200}, ["/health"], ""),
        ({"/health": 503, "/v1/models": 200}, ["/health"], "/health: status 503: loading"),
        ({"/v1/models": 200}, ["/health", "/v1/models"], ""),
        ({"/health": 401, "/v1/models": 200}, ["/health", "/v1/models"], ""),
        ({"/v1/models": 500}, ["/health", "/v1/models"], "/v1/models: status 500: loading"),
        ({CHAT: 200}, ["/health", "/v1/models", CHAT], ""),
        ({CHAT: 503}, ["/health", "/v1/models", CHAT], "a request: status 503: loading"),
        ({}, ["/health", "/v1/models", CHAT], "a request: status 404: loading"),
    ],
)
async def test_missing_path_leads_to_the_next(
    statuses: dict[str, int], asked: list[str], expected: str
) -> None:
    with responding(statuses) as (url, found):
        assert await reason(url) == expected
    assert found == asked


async def test_paths_follow_the_base_of_the_url() -> None:
    with responding({"/base/v1/models": 200}) as (url, found):
        assert await reason(f"{url}/base/v1") == ""
    assert found == ["/base/health", "/base/v1/models"]


@pytest.mark.parametrize("kind", ["messages", "cohere_rankings", "embeddings"])
async def test_each_api_is_probed_at_its_own_path(kind: str) -> None:
    with responding({}) as (url, found):
        assert await reason(url, type=kind) == "a request: status 404: loading"
    assert found[-1] in ("/v1/messages", "/v2/rerank", "/v1/embeddings")


async def test_missing_server_is_not_ready() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert "Connection refused" in await reason(url)


async def test_silent_server_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_requests, "PAGE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert await reason(url) == f"{url}: no complete response within 0.1 s"
