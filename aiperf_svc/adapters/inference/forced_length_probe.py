"""Asks the target whether it takes the members that force an output length
(`core.endpoints.forced_length`).

These requests are no part of the run: they are sent while it is configured, by plain blocking
sockets, and their ids end in `-probe-0` and `-probe-1`.
"""

import socket
from time import monotonic
from typing import Final

from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.endpoints.base import error_message
from aiperf_svc.core.endpoints.forced_length import (
    PROBE_TIMEOUT_S,
    Finding,
    is_refusal,
    probe_bodies,
)
from aiperf_svc.core.responses.http1 import ChunkedBody, ProtocolViolation, parse_head
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.records import Framing

_MAX_BYTES: Final = 1 << 20
_READ_BYTES: Final = 65_536
_END_OF_HEAD: Final = b"\r\n\r\n"


def probe(config: BenchmarkConfig, target: Target, run_id: str) -> tuple[Finding, str]:
    """Return what the target does with such a request, and what it says of it. Blocks, for twice
    `PROBE_TIMEOUT_S` at the most."""
    forced, plain = probe_bodies(config)
    try:
        status, body = _exchange(config, target, forced, f"{run_id}-probe-0")
        said = one_line(error_message(body) or f"status {status}")
        if not is_refusal(status):
            return (Finding.ACCEPTED, "") if status < 300 else (Finding.UNKNOWN, said)
        status, _ = _exchange(config, target, plain, f"{run_id}-probe-1")
    except (OSError, ProtocolViolation) as error:
        return Finding.UNKNOWN, str(error)
    return Finding.REFUSED if status < 300 else Finding.UNKNOWN, said


def _exchange(
    config: BenchmarkConfig, target: Target, body: bytes, request_id: str
) -> tuple[int, bytes]:
    """Return status and body of one response. Raises OSError and ProtocolViolation."""
    deadline = monotonic() + PROBE_TIMEOUT_S
    host, port, _ = address_of(config.endpoint.url)
    before, after = target.request(body)
    with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as plain:
        context = target.tls_context
        sock = context.wrap_socket(plain, server_hostname=target.server_name) if context else plain
        with sock:
            sock.sendall(before + request_id.encode() + after)
            received = bytearray()
            while (found := _whole(bytes(received), is_closed=False)) is None:
                left_s = deadline - monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"no complete response within {PROBE_TIMEOUT_S:g} s")
                sock.settimeout(left_s)
                part = sock.recv(_READ_BYTES)
                received += part
                if not part or len(received) > _MAX_BYTES:
                    found = _whole(bytes(received), is_closed=True)
                    if found is None:
                        raise ProtocolViolation("closed before the response was whole")
                    break
    return found


def _whole(received: bytes, *, is_closed: bool) -> tuple[int, bytes] | None:
    """Return status and body; None while there is more to come."""
    at, status = 0, 0
    while status < 200:
        end = received.find(_END_OF_HEAD, at)
        if end < 0:
            return None
        head = parse_head(received[at : end + len(_END_OF_HEAD)])
        at, status = end + len(_END_OF_HEAD), head.status
    if head.framing == Framing.LENGTH:
        is_whole, body = len(received) >= at + head.length, received[at : at + head.length]
    elif head.framing == Framing.CHUNKED:
        chunks = ChunkedBody()
        pieces = chunks.feed(received, at, len(received))
        is_whole = chunks.is_complete
        body = b"".join(received[begin:end] for begin, end in pieces)
    else:
        is_whole, body = False, received[at:]
    return (status, body) if is_whole or is_closed else None
