"""A server with known behaviour, and the results that a run against it must report."""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler

from benchmarks.fuzz.reply import Ending, Reply, Truth
from benchmarks.fuzz.server import serving
from benchmarks.truth.client_runs import ClientRun, run_client

TIMEOUT_S = 30.0
"""Time limit for the load of one run."""


@dataclass(frozen=True)
class KnownServer:
    """A behaviour and the expected result."""

    name: str
    """In kebab case: the row in the table, and the name for `--only`."""
    problems: Callable[[ClientRun], list[str]]
    """Compare a run's results with the truth and return one sentence for each difference."""
    reply: Callable[[int], Reply] | None = None
    """The response to request `index`. Unused if `serve` is set."""
    serve: Callable[[], AbstractContextManager[str]] | None = None
    """Start a server that `Reply` cannot express and yield its URL."""
    flags: tuple[str, ...] = ("--streaming", "--concurrency", "2", "--request-count", "20")
    """Flags of `profile` besides the URL and the model."""


def measure(server: KnownServer, *, longest_s: float = TIMEOUT_S) -> list[str]:
    """Run the product against the server and return what is wrong with the results. `longest_s` is
    the time limit for the load.

    Raises RunFailedError if the run ends without results.
    """
    with tempfile.TemporaryDirectory() as folder, _served(server) as url:
        run = run_client(url, server.flags, folder=Path(folder), longest_s=longest_s)
        return server.problems(run)


@contextlib.contextmanager
def _served(server: KnownServer) -> Iterator[str]:
    if server.serve is not None:
        with server.serve() as url:
            yield url
        return
    assert server.reply is not None
    with serving(server.reply) as fuzz_server:
        yield f"http://127.0.0.1:{fuzz_server.port}"


class Quiet(BaseHTTPRequestHandler):
    """An HTTP/1.1 handler without a log and without pages."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def handling(handler: type[BaseRequestHandler]) -> Iterator[str]:
    """Serve with one thread per connection and yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def stream(events: list[bytes], *, gap_s: float = 0.0, first_s: float = 0.0) -> Reply:
    """Return a good event stream of chunked events, one every `gap_s` after `first_s`."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    parts = [(first_s, head + chunks[0]), *((gap_s, chunk) for chunk in chunks[1:])]
    return Reply("known", Truth.GOOD, (*parts, (0.0, b"0\r\n\r\n")), Ending.KEEP)
