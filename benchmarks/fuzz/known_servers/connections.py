"""Servers with unusual connections, handshakes and metrics pages."""

import asyncio
import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.fuzz.known_servers import streams
from benchmarks.fuzz.known_servers.known_server import KnownServer, stream
from benchmarks.fuzz.reply import Reply
from benchmarks.truth.client_runs import ClientRun

HANDSHAKE_S = 0.3
TTFT_MS, LATENCY_MS = 400.0, 490.0
"""What the user waits: the handshake, then 100 ms to the first of ten tokens, 10 ms apart."""
TOLERANCE_MS = 60.0
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
)


@contextlib.contextmanager
def slow_handshakes() -> Iterator[str]:
    """Serve over TLS through a relay that holds the first bytes of each connection back."""
    with tempfile.TemporaryDirectory() as folder:
        key, cert = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = [*CERTIFICATE.split(), "-keyout", str(key), "-out", str(cert)]
        subprocess.run(command, check=True, capture_output=True)
        config = MockServerConfig(
            ttft="100ms", itl="10ms", tokens=10, tls_cert=str(cert), tls_key=str(key)
        )
        with running(config) as server, _relay(server.port) as port:
            yield f"https://127.0.0.1:{port}"


@contextlib.contextmanager
def _relay(target_port: int) -> Iterator[int]:
    """Relay connections to a port of this machine in a thread; yields the port of the relay."""
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()
    ports: list[int] = []
    is_ready = threading.Event()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HANDSHAKE_S)
        backend = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(copy(reader, backend[1]), copy(backend[0], writer))

    async def serve() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        is_ready.set()
        await ended.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    is_ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def handshakes_are_waited_for(run: ClientRun) -> list[str]:
    """The handshake is part of both latencies, no lateness of the client, and misses the SLO."""
    problems = []
    for tag, truth in (("time_to_first_token", TTFT_MS), ("request_latency", LATENCY_MS)):
        measured = run.results[tag]["p50"]
        if abs(measured - truth) > TOLERANCE_MS:
            problems.append(f"{tag} is {measured:.0f} ms, a user waits {truth:.0f}")
    lag = run.results["schedule_lag"]["p50"]
    if lag > TOLERANCE_MS:
        problems.append(f"{lag:.0f} ms of the handshake count as the client's lateness")
    good = run.results["goodput"]["avg"]
    if good:
        problems.append(f"goodput of {good:.1f}/s with a limit of 300 ms for the first token")
    if run.verdict["slo"][0]["ok"]:
        problems.append("an SLO of 300 ms for the first token holds")
    return problems


_elsewhere: list[str] = []
"""What was asked of the server that nobody has named."""


class _Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _elsewhere.append(self.path)
        self.send_error(404)

    def log_message(self, *_arguments: object) -> None:
        pass


class _Redirecting(BaseHTTPRequestHandler):
    """Streams five tokens for each POST, and has its page of metrics on another server."""

    protocol_version = "HTTP/1.1"
    other = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", f"{self.other}/metrics")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.05)
        self.wfile.write(stream([*[streams.TOKEN] * streams.TOKENS, *streams.ENDING]).data)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextlib.contextmanager
def redirecting_metrics() -> Iterator[str]:
    """Serve an API whose page of metrics redirects to another port."""
    _elsewhere.clear()
    with _serving(_Elsewhere) as other:
        handler = type("Handler", (_Redirecting,), {"other": other})
        with _serving(handler) as url:
            yield url


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _asks_nobody_else(run: ClientRun) -> list[str]:
    asked = [f"asked another server for {', '.join(_elsewhere)}"] if _elsewhere else []
    return asked + streams.good(run)


_UNASKED = stream([streams.TOKEN, streams.FINISH, streams.DONE]).data


def _with_unasked(_index: int) -> Reply:
    """A good response, and another of one token that no request has asked for."""
    whole = stream([*[streams.TOKEN] * streams.TOKENS, *streams.ENDING], first_s=0.005)
    return replace(whole, parts=(*whole.parts, (0.0, _UNASKED)))


@contextlib.contextmanager
def changing_labels() -> Iterator[str]:
    """Serve chat and a page of metrics like vLLM's, with another label on each read. The server has
    served 1,000 requests before."""
    lock = threading.Lock()
    served, reads = [1_000], [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with lock:
                reads[0] += 1
                label, count = f'{{pod="{reads[0]}"}}', served[0]
            name = "vllm:time_to_first_token_seconds"
            page = (
                f"# TYPE {name} histogram\n"
                f"{name}_sum{label} {count * 0.1}\n{name}_count{label} {count}\n"
            )
            is_page = self.path == "/metrics"
            self._send(page.encode() if is_page else b"", status=200 if is_page else 404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.3)
            with lock:
                served[0] += 1
            event = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}\n\n'
            self._send(event + b"data: [DONE]\n\n", kind="text/event-stream")

        def _send(self, body: bytes, *, status: int = 200, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def served_once(run: ClientRun) -> list[str]:
    """The server's count of requests is the client's."""
    texts = [check["text"] for check in run.results["aiperf_svc"]["system"]["checks"]]
    if any(" 100 ms of 20 requests" in text for text in texts):
        return []
    return [f"the server's page counts other requests than 20: {texts}"]


SERVERS: tuple[KnownServer, ...] = (
    KnownServer("redirecting-metrics", _asks_nobody_else, serve=redirecting_metrics),
    KnownServer(
        "unasked-response",
        streams.good,
        _with_unasked,
        flags=("--streaming", "--request-rate", "10", "--request-count", "20"),
    ),
    KnownServer(
        "slow-handshake",
        handshakes_are_waited_for,
        serve=slow_handshakes,
        flags=(
            *("--concurrency", "2", "--request-count", "20", "--osl", "10"),
            *("--connections", "per-request", "--no-tls-verify"),
            *("--goodput", "time_to_first_token:300", "--slo", "time_to_first_token:p50<300ms"),
        ),
    ),
    KnownServer("changing-labels", served_once, serve=changing_labels),
)
