"""Servers that validate against OpenAI's schema get requests without rejected fields."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.adapters.inference.side_requests import Probed, probe_forced_length, whole_response
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.endpoints.forced_length import Finding
from tests.support.in_one_loop import config, results_of
from tests.support.threaded_server import in_thread

KNOWN = {"model", "messages", "stream", "stream_options", "max_tokens"}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%b}]}\n\n'
WHOLE = b'{"choices":[{"message":{"content":"a"},"finish_reason":"length"}]}'


class Strict:
    """Records every request and rejects bodies with a field that is not in `known`."""

    def __init__(self, known: set[str], *, refusal: int = 422) -> None:
        self.known, self.refusal = known, refusal
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.url = ""

    def response(self, request_id: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        self.seen.append((request_id, body))
        extra = sorted(body.keys() - self.known)
        if extra:
            detail = [{"type": "extra_forbidden", "loc": ["body", key]} for key in extra]
            return self.refusal, "application/json", json.dumps({"detail": detail}).encode()
        if body.get("stream"):
            return 200, "text/event-stream", EVENT % b"null" + EVENT % b'"length"'
        return 200, "application/json", WHOLE

    @property
    def probes(self) -> list[dict[str, Any]]:
        return [body for request_id, body in self.seen if "-probe-" in request_id]


@contextmanager
def serving(strict: Strict) -> Iterator[Strict]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, kind, response = strict.response(self.headers["X-Request-Id"], body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as strict.url:
        yield strict


def benchmark(url: str, tokens: int = 2, **endpoint: Any) -> dict[str, Any]:
    dataset = {"entries": 5, "input_tokens": {"mean": 5}, "output_tokens": {"mean": tokens}}
    made = config(url, dataset=dataset, concurrency=2, requests=20)
    made["endpoint"] |= endpoint
    return made


async def test_strict_server_gets_requests_without_forced_lengths(tmp_path: Path) -> None:
    with serving(Strict(KNOWN)) as strict:
        summary = await results_of(benchmark(strict.url), tmp_path, workers=2)
    assert summary["request_count"]["avg"] == 20
    assert "error_request_count" not in summary or not summary["error_request_count"]["avg"]
    forced, plain = strict.probes
    assert forced == plain | {"ignore_eos": True, "min_tokens": 1}
    assert len(strict.seen) == 22, "one probe for all workers, which is not part of the run"
    probe = summary["aiperf_svc"]["topology"]["dataset"]["forced_output_length"]
    assert (probe["finding"], probe["requests"]) == ("refused", 2)
    assert "ignore_eos" in probe["said"]


async def test_accepting_server_gets_forced_lengths(tmp_path: Path) -> None:
    with serving(Strict(KNOWN | {"ignore_eos", "min_tokens"})) as strict:
        summary = await results_of(benchmark(strict.url), tmp_path)
    assert len(strict.probes) == 1
    probe = summary["aiperf_svc"]["topology"]["dataset"]["forced_output_length"]
    assert probe == {"finding": "accepted", "said": "", "requests": 1}
    sent = [body for request_id, body in strict.seen if "-probe-" not in request_id]
    assert len(sent) == summary["request_count"]["avg"] == 20
    assert all(body["ignore_eos"] is True and body["min_tokens"] == 2 for body in sent)


@pytest.mark.parametrize("settings", [{"force_output_length": False}, {}])
async def test_unforced_lengths_are_not_probed(settings: dict[str, Any], tmp_path: Path) -> None:
    with serving(Strict(KNOWN)) as strict:
        made = benchmark(strict.url, **settings)
        if not settings:
            del made["dataset"]["output_tokens"]
        await results_of(made, tmp_path)
    assert not strict.probes
    assert len(strict.seen) == 20


async def found(url: str) -> Probed:
    checked = BenchmarkConfig.model_validate(benchmark(url))
    return await probe_forced_length(checked, resolve_target(checked), "run")


async def test_probe_distinguishes_refusal_from_other_errors() -> None:
    with serving(Strict(KNOWN, refusal=400)) as strict:
        assert (await found(strict.url))[0] is Finding.REFUSED
    with serving(Strict(set())) as strict:
        assert (await found(strict.url))[0] is Finding.UNKNOWN
    with serving(Strict(KNOWN, refusal=503)) as strict:
        assert (await found(strict.url))[0] is Finding.UNKNOWN
        url = strict.url
    finding, reply, _ = await found(url)
    assert finding is Finding.UNKNOWN
    assert "refused" in reply.lower()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n02;a=b\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_response_is_complete_only_at_its_end(raw: bytes) -> None:
    until_close = b"Content-Length" not in raw and b"chunked" not in raw
    for cut in range(len(raw)):
        assert whole_response(raw[:cut], is_closed=False) is None
    assert whole_response(raw, is_closed=until_close) == (200, b"{}")
