"""Runs of the mock server on this machine: `bench`, and stack files with a mock server."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiperf_svc.cli.commands.local_runs import measure
from aiperf_svc.cli.flag_config import read_draft
from aiperf_svc.cli.main import load_parser
from aiperf_svc.cli.parsers.runs import BENCH_FLAGS
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.mock_server.config import MockServerConfig, MockServerConfigError, config_from_args
from aiperf_svc.mock_server.processes import MockServerError
from aiperf_svc.mock_server.running import running
from aiperf_svc.runner.fork_server import ForkServer

TTFT, ITL, TOKENS = "200ms", "20ms", 32
"""The pace of a small model on one GPU."""
RAMP = "820ms"
"""Duration of one response. The users start evenly spread over it and remain spread."""
PRESET = {
    "name": "bench",
    "endpoint.url": "http://127.0.0.1",
    "endpoint.model": "mock-model",
    "endpoint.streaming": True,
    "load.concurrency": 20,
    "load.ramp": RAMP,
    "load.requests": 200,
    "load.warmup.requests": 20,
    "dataset.entries": 200,
    "dataset.input_tokens.mean": 100,
}


def run_bench(args: argparse.Namespace, forks: ForkServer | None) -> int:
    """Measure the mock server; return the exit code."""
    server = MockServerConfig(ttft=TTFT, itl=ITL, tokens=TOKENS)
    draft = read_draft(args, flags=BENCH_FLAGS, preset=PRESET)
    draft.parse()
    with _mock_server(server, f"(ttft {TTFT}, itl {ITL})") as url:
        draft.data["endpoint"]["url"] = url
        return measure(draft, args, forks)


@contextmanager
def mock_server_of(arguments: Sequence[str]) -> Iterator[str]:
    """Run the mock server of a stack on this machine and yield its URL. Raises ConfigError."""
    try:
        server = config_from_args(load_parser("mock-server").parse(arguments))
    except (MockServerConfigError, ConfigError) as error:
        raise ConfigError(f"deployment.target.args: {error}") from error
    with _mock_server(server, shlex.join(arguments)) as url:
        yield url


@contextmanager
def _mock_server(server: MockServerConfig, shown: str) -> Iterator[str]:
    """Run a mock server on this machine and yield its URL. Raises EnvironmentProblem."""
    try:
        with running(server) as mock:
            print(f"mock server: {mock.url} {shown}", file=sys.stderr)
            yield mock.url
    except MockServerError as error:
        raise EnvironmentProblem(f"mock server: {error}") from error
