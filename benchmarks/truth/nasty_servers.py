"""Runs against servers that fail requests and count them.

- `refusing`: a share of the requests gets a 503 at once.
- `hanging`: a share never gets a response.
- `dropping`: a share is dropped after 100 ms without a byte, like by a proxy without its backend.
- `dying`: the server ends in the middle of the load.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.fuzz.reply import Ending, Reply, Truth
from benchmarks.fuzz.server import FuzzServer, serving
from benchmarks.truth import fault_injection
from benchmarks.truth.client_runs import ClientRun, run_client
from benchmarks.truth.trials import Trial

DROPPED_AFTER_S = 0.1
REQUEST_TIMEOUT = "1s"
OBJECTIVE = "time_to_first_token:p99<10s"
"""An objective that all good responses meet, so that only failures can miss it."""
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
_TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
_BAD = {
    "refusing": Reply("refused", Truth.BAD, ((0.0, _REFUSED),)),
    "hanging": Reply("hanging", Truth.BAD, (), Ending.HANG),
    "dropping": Reply("dropped", Truth.BAD, ((DROPPED_AFTER_S, b""),), Ending.CLOSE),
}


class NastyRun(NamedTuple):
    """A run, and the share of its requests that the server failed."""

    run: ClientRun
    failed_share: float
    """Share of the issued credits whose requests got no good response or never arrived."""


def run_nasty(trial: Trial, folder: Path) -> NastyRun:
    """Run the trial against its server. Raises RunFailedError without results."""
    good = _good(trial)

    def reply_to(index: int) -> Reply:
        is_bad = random.Random(f"{trial.number}/{index}").random() < trial.severity
        return _BAD[trial.kind] if is_bad and trial.kind in _BAD else good

    with serving(reply_to) as server:
        run = run_client(
            f"http://127.0.0.1:{server.port}",
            [*trial.flags, "--request-timeout", REQUEST_TIMEOUT, "--slo", OBJECTIVE],
            folder=folder,
            longest_s=trial.duration_s + 10,
            during=_ends_after(trial, server) if trial.kind == "dying" else None,
        )
    issued = int(run.results["aiperf_svc"]["accounts"]["issued"])
    served = sum(server.served[index] > 0 for index in range(issued))
    return NastyRun(run, 1.0 - served / max(1, issued))


def _good(trial: Trial) -> Reply:
    """Return a stream at the trial's pace."""
    body = _TOKEN * trial.tokens + _END
    tokens = [(trial.itl_ms / 1e3, _TOKEN)] * (trial.tokens - 1)
    first = (trial.ttft_ms / 1e3, _HEAD % len(body) + _TOKEN)
    return Reply("good", Truth.GOOD, (first, *tokens, (0.0, _END)))


def _ends_after(trial: Trial, server: FuzzServer) -> Callable[[fault_injection.Client], None]:
    def end(client: fault_injection.Client) -> None:
        fault_injection.wait_for_load(client, lambda: len(server.arrivals))
        fault_injection.rest(client, trial.severity)
        server.close()

    return end
