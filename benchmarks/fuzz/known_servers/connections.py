"""Servers with unusual connections, handshakes and metrics pages."""

import asyncio
import contextlib
import functools
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.fuzz.known_servers import streams
from benchmarks.fuzz.known_servers.known_server import KnownServer, Quiet, handling, stream
from benchmarks.fuzz.reply import Reply
from benchmarks.stream_server import server_in_thread
from benchmarks.truth.client_runs import ClientRun

HANDSHAKE_S = 0.3
TTFT_MS, LATENCY_MS = 400.0, 490.0
"""The user waits for the handshake, then 100 ms for the first of ten tokens, 10 ms apart."""
TOLERANCE_MS = 60.0
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
)


@contextlib.contextmanager
def slow_handshakes() -> Iterator[str]:
    """Serve over TLS through a relay that delays the first bytes of each connection."""
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
    """Relay connections to a local port in a thread and yield the relay's port."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HANDSHAKE_S)
        from_there, to_there = await asyncio.open_connection("127.0.0.1", target_port)
        with contextlib.closing(to_there):
            await asyncio.gather(copy(reader, to_there), copy(from_there, writer))

    with server_in_thread(connection) as port:
        yield port


def handshakes_are_waited_for(run: ClientRun) -> list[str]:
    """Check that both latencies include the handshake, the client is not late, and the SLO
    fails."""
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
"""Requests to a server that is not configured."""


class _Elsewhere(Quiet):
    def do_GET(self) -> None:
        _elsewhere.append(self.path)
        super().do_GET()


class _Redirecting(Quiet):
    """Streams five tokens for each POST and redirects its metrics page to another server."""

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


@contextlib.contextmanager
def redirecting_metrics() -> Iterator[str]:
    """Serve an API whose metrics page redirects to another port."""
    _elsewhere.clear()
    with (
        handling(_Elsewhere) as other,
        handling(type("Handler", (_Redirecting,), {"other": other})) as url,
    ):
        yield url


def _only_configured_requests(run: ClientRun) -> list[str]:
    wrong = [f"asked another server for {', '.join(_elsewhere)}"] if _elsewhere else []
    return wrong + streams.good(run)


_UNASKED = stream([streams.TOKEN, streams.FINISH, streams.DONE]).data


def _with_extra_response(_index: int) -> Reply:
    """Return a good response followed by an unrequested response of one token."""
    whole = stream([*[streams.TOKEN] * streams.TOKENS, *streams.ENDING], first_s=0.005)
    return replace(whole, parts=(*whole.parts, (0.0, _UNASKED)))


def _is_invalid(run: ClientRun) -> list[str]:
    """The next request receives the unrequested response, so no record is reliable."""
    severity = next(
        (each["severity"] for each in run.verdict["checks"] if each["check"] == "unasked_bytes"), ""
    )
    if run.verdict["verdict"] == severity == "invalid":
        return []
    return [f"the run is {run.verdict['verdict']}, and its unasked bytes are {severity}"]


class _Http2WithoutEnd(socketserver.BaseRequestHandler):
    """Streams over HTTP/2 without the END_STREAM flag on the last frame."""

    request: socket.socket

    def handle(self) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        h2.initiate_connection()
        self.request.sendall(h2.data_to_send())
        is_get: dict[int, bool] = {}
        with contextlib.suppress(ProtocolError, OSError):  # metrics lookups use HTTP/1.1
            while data := self.request.recv(65_536):
                for event in h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        is_get[event.stream_id] = (b":method", b"GET") in event.headers
                    elif isinstance(event, DataReceived):
                        size = event.flow_controlled_length
                        h2.acknowledge_received_data(size, event.stream_id)
                    elif isinstance(event, StreamEnded):
                        self._respond(h2, event.stream_id, is_get=is_get.pop(event.stream_id))
                self.request.sendall(h2.data_to_send())

    def _respond(self, h2: H2Connection, stream_id: int, *, is_get: bool) -> None:
        if is_get:
            h2.send_headers(stream_id, [(":status", "404")], end_stream=True)
            return
        kind = ("content-type", "text/event-stream")
        h2.send_headers(stream_id, [(":status", "200"), kind])
        time.sleep(10 * streams.GAP_S)
        for event in (*[streams.TOKEN] * streams.TOKENS, *streams.ENDING):
            h2.send_data(stream_id, event)
            self.request.sendall(h2.data_to_send())
            time.sleep(streams.GAP_S)


@contextlib.contextmanager
def changing_labels() -> Iterator[str]:
    """Serve chat and a metrics page like vLLM's whose label changes on each read. The server has
    already served 1,000 requests."""
    lock = threading.Lock()
    served, reads = [1_000], [0]

    class Handler(Quiet):
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

    with handling(Handler) as url:
        yield url


def served_once(run: ClientRun) -> list[str]:
    """Check that the server's request count equals the client's."""
    texts = [check["text"] for check in run.results["aiperf_svc"]["system"]["checks"]]
    if any(" 100 ms of 20 requests" in text for text in texts):
        return []
    return [f"the server's page counts other requests than 20: {texts}"]


SERVERS: tuple[KnownServer, ...] = (
    KnownServer("redirecting-metrics", _only_configured_requests, serve=redirecting_metrics),
    KnownServer(
        "unasked-response",
        streams.good,
        _with_extra_response,
        flags=("--streaming", "--request-rate", "10", "--request-count", "20"),
    ),
    KnownServer("unasked-response-to-busy-users", _is_invalid, _with_extra_response),
    KnownServer(
        "http2-done-without-end",
        streams.good_and_ended_at_once,
        serve=functools.partial(handling, _Http2WithoutEnd),
        flags=("--streaming", "--http2", "--concurrency", "2", "--request-count", "20"),
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
