"""Asks the target whether it takes the members that force an output length
(`core.endpoints.forced_length`).

These requests are no part of the run: they are sent while it is configured, by plain blocking
sockets, and their ids end in `-probe-0` and `-probe-1`. The results state how many there were.
"""

from typing import NamedTuple

from aiperf_svc.adapters.inference.plain_http import exchange
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.endpoints.base import error_message
from aiperf_svc.core.endpoints.forced_length import (
    PROBE_TIMEOUT_S,
    Finding,
    is_refusal,
    probe_bodies,
)
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.domain.foreign_text import one_line


class Probed(NamedTuple):
    """Result of a probe."""

    finding: Finding
    said: str
    """Message of the target, or why it could not be reached."""
    requests: int
    """Number of requests, 1 or 2."""


def probe(config: BenchmarkConfig, target: Target, run_id: str) -> Probed:
    """Return what the target does with such a request. Blocks, for twice `PROBE_TIMEOUT_S` at the
    most."""
    forced, plain = probe_bodies(config)
    asked = 1
    try:
        status, body = _ask(target, forced, f"{run_id}-probe-0")
        said = one_line(error_message(body) or f"status {status}")
        if not is_refusal(status):
            is_good = status < 300
            return Probed(Finding.ACCEPTED, "", 1) if is_good else Probed(Finding.UNKNOWN, said, 1)
        asked = 2
        status, _ = _ask(target, plain, f"{run_id}-probe-1")
    except (OSError, ProtocolViolation) as error:
        return Probed(Finding.UNKNOWN, str(error), asked)
    return Probed(Finding.REFUSED if status < 300 else Finding.UNKNOWN, said, asked)


def _ask(target: Target, body: bytes, request_id: str) -> tuple[int, bytes]:
    before, after = target.request(body)
    request = before + request_id.encode() + after
    return exchange(target, request, timeout_s=PROBE_TIMEOUT_S)
