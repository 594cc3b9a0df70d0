"""The `X-Request-Id` of each request, by which our records and the server's logs are joined.

It is a UUID, since some servers refuse anything else: version 8 of RFC 9562, whose content the
sender defines. It contains run, phase, turn and credit index in decimal, so a server's
log identifies the request: `89abcdef0123` warmup or profiling, turn 2 of credit 51 is
`89abcdef-0123-8100-8002-800000000051`. The last two groups are sums instead of padded text, since
printing a number is cheap. From turn 2,000 on, the end of the third group counts each 2,000 turns:
turn 4,002 is `89abcdef-0123-8102-8002-800000000051`.

The id of a conversation, by which routers keep its requests on one server, is that of its first
request.
"""

import hashlib
import re

from aiperf_svc.domain.outcomes import Phase

TURN_BASE = 8_000
"""Added to the turn; its first digit is the UUID's variant."""
TURNS = 2_000
"""Number of turns for which the digits of that group suffice: 8000 to 9999."""
TARGET_SHIFT = 48
"""Bit above which a worker's own number of a request contains the number of the target."""
INDEX_BASE = 800_000_000_000
"""Added to the credit's index; makes it 12 digits."""


def id_prefix(run_id: str, phase: Phase) -> str:
    is_hex = re.fullmatch("[0-9a-f]{12}", run_id)
    run = run_id if is_hex else hashlib.sha256(run_id.encode()).hexdigest()[:12]
    return f"{run[:8]}-{run[8:]}-8{int(phase)}00-"


def turn_prefix(prefix: bytes, turn: int) -> bytes:
    """Return the beginning of the ids of a turn, up to the credit's index, from that of a phase."""
    if turn < TURNS:
        return b"%b%d-" % (prefix, TURN_BASE + turn)
    return b"%b%02d-%d-" % (prefix[:-3], turn // TURNS, TURN_BASE + turn % TURNS)


def request_id(run_id: str, phase: Phase, index: int, turn: int) -> str:
    prefix = turn_prefix(id_prefix(run_id, phase).encode(), turn).decode()
    return f"{prefix}{INDEX_BASE + index}"
