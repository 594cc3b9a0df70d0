"""`aiperf-svc bench`: a first measurement, of the built-in mock server."""

import argparse
import sys
from typing import TYPE_CHECKING

from aiperf_svc.cli.flags import FLAGS, GROUPS
from aiperf_svc.cli.options import add_flags, add_run_flags
from aiperf_svc.cli.runs import run_here
from aiperf_svc.domain.errors import EnvironmentProblem

if TYPE_CHECKING:
    from aiperf_svc.runner.fork_server import ForkServer

DESCRIPTION = """Start the built-in mock server and measure it: twelve seconds of streaming chat.

The server sends the first token after 200 ms and 31 further tokens at intervals of 20 ms, so the
results can be checked by eye. The flags of `profile` change the load."""

TTFT, ITL, TOKENS = "200ms", "20ms", 32
"""The pace of a small model on one GPU."""
RAMP = "820ms"
"""The time of one response: the users start evenly spread over it and stay so."""
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
_FLAGS = tuple(flag for flag in FLAGS if flag.key != "endpoint.url")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `profile`, without the server's URL."""
    parser.usage = "aiperf-svc bench [flag ...]"
    parser.set_defaults(config=None)
    for title, flags in GROUPS.items():
        add_flags(parser, title, tuple(flag for flag in flags if flag in _FLAGS))
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the mock server, which runs during this call only."""
    from aiperf_svc.runner import fork_server

    with fork_server.starting() as forks:
        return _run(args, forks)


def _run(args: argparse.Namespace, forks: "ForkServer | None") -> int:
    from aiperf_svc.cli.flag_config import read_draft
    from aiperf_svc.mock_server.config import MockServerConfig
    from aiperf_svc.mock_server.processes import MockServerError
    from aiperf_svc.mock_server.running import running

    server = MockServerConfig(ttft=TTFT, itl=ITL, tokens=TOKENS)
    draft = read_draft(args, flags=_FLAGS, preset=PRESET)
    draft.parse()
    try:
        with running(server) as mock:
            print(f"mock server: {mock.url} (ttft {TTFT}, itl {ITL})", file=sys.stderr)
            draft.data["endpoint"]["url"] = mock.url
            return run_here(draft, args, forks)
    except MockServerError as error:
        raise EnvironmentProblem(f"mock server: {error}") from error
