"""Compares our own code with the libraries that could replace it.

    python -m benchmarks.libraries

It prints CPU times of an HTTP/2 response in each implementation, of parsing a metrics page, and of
importing aiohttp. Decisions 47 and 51 are based on them. Run it again when a library changes.
"""

import argparse
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from time import process_time

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived
from h2.settings import SettingCodes, Settings
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from aiperf_svc.adapters.inference.http2_stream import new_connection
from aiperf_svc.core.http2 import frames
from aiperf_svc.core.http2.frames import frame
from aiperf_svc.core.telemetry.page import PageReader

ROUNDS = 5
RESPONSES = 40
WINDOW = 2**30
HEADERS = (
    (":status", "200"),
    ("content-type", "text/event-stream; charset=utf-8"),
    ("date", "Wed, 25 Nov 2026 22:00:00 GMT"),
    ("server", "uvicorn"),
)
FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"h:1"),
    (b":path", b"/v1/chat/completions"),
    (b"content-type", b"application/json"),
    (b"accept", b"text/event-stream"),
    (b"authorization", b"Bearer key"),
    (b"x-request-id", b"0-aaaa"),
    (b"content-length", b"2000"),
)
BODY = b"x" * 2_000
REQUEST = b"\r\n".join(
    [b"POST /v1/chat/completions HTTP/1.1", b"Host: h:1"]
    + [name + b": " + value for name, value in FIELDS[4:]]
    + [b"", BODY]
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
SETTINGS = frames.settings({}) + frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW))
HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_latency_seconds", "prompt_tokens")
BUCKETS = 24

Responses = list[list[bytes]]
"""The reads of each response."""
Task = Callable[[], object]


def responses(events: int) -> Responses:
    """Return responses on streams 1, 3, …, each event in its own read."""
    encoder, found = Encoder(), []
    for stream in range(1, 2 * RESPONSES, 2):
        head = frame(frames.HEADERS, frames.END_HEADERS, stream, encoder.encode(HEADERS))
        parts = [frame(frames.DATA, 0, stream, EVENT) for _ in range(events - 1)]
        found.append([head, *parts, frame(frames.DATA, frames.END_STREAM, stream, EVENT)])
    return found


def with_own_frames(responses: Responses) -> None:
    """Send requests and read responses with the product's connection."""
    connection = new_connection("http")
    connection.receive(SETTINGS)
    for reads in responses:
        connection.send(REQUEST)
        connection.to_send()
        for read in reads:
            connection.receive(read)
    assert connection.problem is None


def with_h2(responses: Responses) -> None:
    """Do the same with h2, as fast as its settings allow."""
    config = H2Configuration(
        header_encoding=None,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
        validate_inbound_headers=False,
        normalize_inbound_headers=False,
    )
    connection = H2Connection(config)
    connection.local_settings = Settings(
        initial_values={SettingCodes.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
    )
    connection.initiate_connection()
    connection.increment_flow_control_window(frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
    connection.receive_data(SETTINGS)
    for number, reads in enumerate(responses):
        stream = 2 * number + 1
        connection.send_headers(stream, FIELDS)
        connection.send_data(stream, BODY, end_stream=True)
        connection.data_to_send()
        for read in reads:
            for event in connection.receive_data(read):
                if isinstance(event, DataReceived):
                    assert event.data == EVENT


def with_hyperframe(responses: Responses) -> None:
    """Only parse the frames of the responses."""
    for reads in responses:
        for read in reads:
            view = memoryview(read)
            found, length = Frame.parse_frame_header(view[:9])
            found.parse_body(view[9 : 9 + length])
            assert not isinstance(found, DataFrame) or found.data == EVENT


def page(engines: int) -> str:
    """Return a metrics page with histograms of this many engines."""
    lines = []
    for name in HISTOGRAMS:
        lines.append(f"# HELP vllm:{name} A histogram.\n# TYPE vllm:{name} histogram")
        for engine in range(engines):
            labels = f'engine="{engine}",model_name="meta-llama/Llama-3.1-8B-Instruct"'
            for bound in (*range(BUCKETS - 1), "+Inf"):
                lines.append(f'vllm:{name}_bucket{{le="{bound}",{labels}}} {1234.0 + engine}')
            lines.append(f"vllm:{name}_count{{{labels}}} {1234.0 + engine}")
            lines.append(f"vllm:{name}_sum{{{labels}}} {1234e3 + engine}")
    return "\n".join(lines) + "\n"


def read_first(text: str) -> None:
    """Parse a page whose lines are all new."""
    PageReader().read(text)


def read_all(parser: Callable[[str], Iterable[object]], text: str) -> None:
    """Parse a page with a parser that yields families."""
    for _ in parser(text):
        pass


def import_ms(module: str) -> float:
    """Return the CPU time to import a module after the services of a local run."""
    program = (
        "import time, aiperf_svc.services.records_manager, aiperf_svc.services.worker\n"
        f"began = time.process_time(); import {module}\n"
        "print(time.process_time() - began)"
    )
    found = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True).stdout)
        for _ in range(ROUNDS)
    ]
    return min(found) * 1e3


def min_s(tasks: dict[str, Task]) -> dict[str, float]:
    """Run the tasks alternately and return the minimum CPU time of each."""
    best_s = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            began = process_time()
            task()
            best_s[name] = min(best_s[name], process_time() - began)
    return best_s


def show(title: str, times_s: dict[str, float], scale: float) -> None:
    """Print one line."""
    print(f"{title}: " + ", ".join(f"{name} {s * scale:.3g}" for name, s in times_s.items()))


def main() -> None:
    """Print all comparisons."""
    argparse.ArgumentParser(prog="benchmarks.libraries", description=__doc__).parse_args()
    for events in (1, 100):
        reads = responses(events)
        tasks: dict[str, Task] = {
            "own": partial(with_own_frames, reads),
            "h2": partial(with_h2, reads),
            "hyperframe (parsing alone)": partial(with_hyperframe, reads),
        }
        show(f"HTTP/2, µs for a response of {events} events", min_s(tasks), 1e6 / RESPONSES)
    for engines in (8, 128, 400):
        text, known = page(engines), PageReader()
        samples = len(known.read(text).values)
        tasks = {
            "own, first read": partial(read_first, text),
            "own, later reads": partial(known.read, text),
            "prometheus_client": partial(read_all, prometheus, text),
            "its OpenMetrics parser": partial(read_all, openmetrics, f"{text}# EOF\n"),
        }
        size = f"{len(text) / 1e6:.2f} MB, {samples:,} samples"
        show(f"a page of metrics of {size}, ms", min_s(tasks), 1e3)
    for module in ("aiohttp", "aiohttp.web"):
        print(f"import of {module} after the services: {import_ms(module):.0f} ms")


if __name__ == "__main__":
    main()
