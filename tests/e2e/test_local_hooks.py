"""Hooks call the server once before and once after a phase, around all requests of the phase."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED, WAIT_S, Command
from tests.support.threaded_server import in_thread

CHAT = "/v1/chat/completions"
MODEL_RESPONSE = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "word"}, "finish_reason": "stop"}]}
).encode()


class Server(ThreadingHTTPServer):
    """Logs in one sequence when each request arrived and when its response was written."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.log: list[str] = []
        self.headers: dict[str, str] = {}
        self.bodies: dict[str, tuple[str | None, bytes]] = {}
        """Content type and body of each hook call."""
        self.statuses: dict[str, int] = {}
        """Response status by path, instead of 200."""
        self.goes_on = threading.Event()
        """When cleared, hooks get no response."""
        self.goes_on.set()
        self.was_called = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.log.append(self.path)
        if self.path != CHAT:
            self.server.headers = dict(self.headers)
            self.server.bodies[self.path] = (self.headers["Content-Type"], body)
            self.server.was_called.set()
            assert self.server.goes_on.wait(WAIT_S)
        response = MODEL_RESPONSE if self.path == CHAT else b""
        self.server.log.append(f"end {self.path}")
        self.send_response(self.server.statuses.get(self.path, 200))
        self.send_header("Content-Length", str(len(response)))
        with suppress(BrokenPipeError):  # the client did not wait
            self.end_headers()
            self.wfile.write(response)

    def log_message(self, *_: object) -> None:
        """Suppress log output."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with in_thread(found):
        yield found
        found.goes_on.set()


def launch(folder: Path, server: Server, *flags: str, **endpoint: Any) -> Command:
    content = {
        "endpoint": {"url": f"{server.url}/v1", "model": "m", **endpoint},
        "load": {"concurrency": 4, "requests": 40},
        "dataset": {"input_tokens": {"mean": 5}, "entries": 5},
    }
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return Command(folder, None, "--config", str(path), "--no-server-metrics", *flags)


def test_hooks_enclose_the_load(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_HOOKS", "sesame")
    command = launch(
        tmp_path,
        server,
        *("--warmup-request-count", "8", "--reset-kv-cache", "--server-profiler"),
        headers={"X-Tenant": "me"},
        api_key_env="KEY_OF_HOOKS",
        hooks=[{"before": "profiling", "path": "/flush_cache?all=1", "body": {"hard": True}}],
    )
    summary = command.finish()["results"]
    assert command.code in FINISHED, command.errors
    log = [path for path in server.log if path != f"end {CHAT}"]
    warmup, profiling = [CHAT] * 8, [CHAT] * 40
    assert log == [
        *("/reset_prefix_cache", "end /reset_prefix_cache", *warmup),
        *("/start_profile", "end /start_profile"),
        *("/flush_cache?all=1", "end /flush_cache?all=1", *profiling),
        *("/stop_profile", "end /stop_profile"),
    ]
    first, last = server.log.index("/start_profile"), server.log.index("/stop_profile")
    assert server.log[:first].count(f"end {CHAT}") == 8, "the warmup was over"
    assert server.log[:last].count(f"end {CHAT}") == 48, "profiling was over"
    assert server.headers["X-Tenant"] == "me"
    assert server.headers["Authorization"] == "Bearer sesame"
    assert server.bodies["/flush_cache?all=1"] == ("application/json", b'{"hard":true}')
    assert server.bodies["/stop_profile"] == (None, b"")
    calls = summary["aiperf_svc"]["hooks"]
    assert [call["problem"] for call in calls] == [""] * 4
    assert summary["request_count"]["avg"] == 40


def test_failing_hook_ends_run_and_calls_counterpart(server: Server, tmp_path: Path) -> None:
    hook = {"before": "profiling", "path": "/reset_prefix_cache"}
    server.statuses["/reset_prefix_cache"] = 404
    command = launch(tmp_path, server, "--server-profiler", hooks=[hook])
    printed = command.finish()
    assert command.code is ExitCode.BENCHMARK_FAILED
    assert server.log[::2] == ["/start_profile", "/reset_prefix_cache", "/stop_profile"]
    assert (
        f"the hook POST {server.url}/reset_prefix_cache before profiling: status 404 (vLLM has it"
        in printed["reason"]
    )


def test_hook_that_fails_after_the_load_is_noted(server: Server, tmp_path: Path) -> None:
    server.statuses["/stop_profile"] = 500
    command = launch(tmp_path, server, "--server-profiler")
    summary = command.finish()["results"]
    assert command.code in FINISHED, command.errors
    problems = [call["problem"] for call in summary["aiperf_svc"]["hooks"]]
    assert problems == ["", "status 500"]


def test_ctrl_c_does_not_wait_for_hooks(server: Server, tmp_path: Path) -> None:
    server.goes_on.clear()
    command = launch(tmp_path, server, "--reset-kv-cache")
    assert server.was_called.wait(WAIT_S)
    command.process.send_signal(signal.SIGINT)
    command.finish()
    assert command.code is ExitCode.INTERRUPTED
    assert server.log == ["/reset_prefix_cache"]
    command.assert_nothing_is_left()
