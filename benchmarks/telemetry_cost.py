"""Measures the cost of telemetry: CPU for reading pages, and its effect on measured times.

    python -m benchmarks.telemetry_cost [--pages 16] [--rate 1000] [--rounds 3] [--json]

The pages are vLLM's, with counters that change on each read, and are read every second. Reading
without load gives the share of a core. Then runs without and with the pages alternate against the
mock server, and their errors of the time to first token are compared. A busy machine affects both.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from aiperf_svc.services.telemetry_reader import TelemetryReader
from benchmarks.machine import describe
from benchmarks.truth.client_runs import run_client
from benchmarks.truth.comparison import compare

PAGE = Path(__file__).parents[1] / "tests/data/telemetry/vllm.txt"
TOKENS = 50
SECONDS = 10


def serve_pages(port: Connection) -> None:
    """Serve the page at every path until the process is killed."""
    text, reads = PAGE.read_text(), count()

    class Pages(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            # Change every token counter and the first digit of each bucket, as under load.
            number = next(reads)
            body = text.replace('"} 1', f'"}} {number}1').encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def pages(number: int) -> Iterator[list[str]]:
    """Yield the URLs of this many pages, which a separate process serves."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_pages, args=(theirs,))
    process.start()
    try:
        port = ours.recv()
        yield [f"http://127.0.0.1:{port}/{place}" for place in range(number)]
    finally:
        process.terminate()
        process.join()


async def reading_alone(urls: list[str]) -> dict[str, float]:
    """Read the pages without load. Return the share of a core and the number of reads."""
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1:9", "model": "m"},
            "load": {"concurrency": 1, "requests": 1},
            "telemetry": {"target": False, "server_metrics": urls},
        }
    )
    reader = TelemetryReader(config)
    reading = asyncio.create_task(reader.run())
    # The first reads parse lines that later reads find in a cache.
    await asyncio.sleep(2)
    began_s, used_s = monotonic(), process_time()
    await asyncio.sleep(SECONDS)
    share = (process_time() - used_s) / (monotonic() - began_s)
    await reader.stop()
    await reading
    return {
        "core_share": share,
        "pages_read": float(sum(len(log.wall_ns) for log in reader.logs)),
        "failed_reads": float(sum(log.failures for log in reader.logs)),
    }


def measured(rate: int, urls: list[str]) -> dict[str, float]:
    """Return the errors of the time to first token in one run, relative to the server's record."""
    flags = ["--request-rate", str(rate), "--arrival-pattern", "constant", "--isl", "100"]
    flags += ["--benchmark-duration", str(SECONDS), "--no-server-metrics"]
    for url in urls:
        flags += ["--server-metrics", url]
    config = MockServerConfig(ttft="20ms", itl="5ms", tokens=TOKENS, truth=True)
    with tempfile.TemporaryDirectory() as folder, running(config) as server:
        run = run_client(server.url, flags, folder=Path(folder), longest_s=SECONDS + 30)
        rows = server.truth(rows=True)["rows"]
    errors: Any = compare(run, rows, tokens=TOKENS, ttft_ms=20).as_json()["ttft_error_ms"]
    return {name: errors[name] for name in ("mean", "p50", "p99")}


def main() -> int:
    """Measure and print. Return 0 if reading takes less than 5% of a core."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--rate", type=int, default=1_000, help="requests/s")
    parser.add_argument("--rounds", type=int, default=3, help="runs without and with the pages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with pages(options.pages) as urls:
        alone = asyncio.run(reading_alone(urls))
        for _ in range(options.rounds):
            for name, used in (("without", []), ("with", urls)):
                runs[name].append(measured(options.rate, used))
                print(f"{name}: {runs[name][-1]}", file=sys.stderr)
    errors = {
        name: {stat: median(run[stat] for run in found) for stat in found[0]}
        for name, found in runs.items()
        if found
    }
    if options.json:
        content = {"machine": describe(), "alone": alone, "ttft_error_ms": errors, "runs": runs}
        print(json.dumps(content, indent=1))
    else:
        print(f"reading {options.pages} pages: {alone['core_share']:.1%} of a core")
        for name, stats in errors.items():
            line = ", ".join(f"{stat} {value:.3f}" for stat, value in stats.items())
            print(f"error of the time to first token {name} telemetry, ms: {line}")
    return 0 if alone["core_share"] < 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
