"""Checks of the times within a stream: whether there are any, and how far merged reads moved them.
They report at most *degraded*: times to the first and the last token have a check of their own."""

from collections.abc import Callable

from aiperf_svc.core.verdict.check_result import MORE_WORKERS, Reason, graded
from aiperf_svc.core.verdict.inputs import Evidence

SINGLE_READ_SHARE = 0.05
"""Limit of streams that came in one read. A few short responses fit into one segment; a buffering
proxy does it to all of them."""
GAP_SHIFT = 0.20
"""Limit of how far merged reads may have moved a percentile of the times between chunks. These are
no headline numbers, and servers send most merged chunks at once; 20% changes which of two servers
wins."""


def _single_reads(e: Evidence) -> Reason | None:
    found = e.single_reads
    if not found.streams:
        return None
    return graded(
        "single_reads",
        found.share,
        SINGLE_READ_SHARE,
        text=f"{found.in_one_read:,} of {found.streams:,} streams of several tokens came in one "
        "read: there is no time between their tokens, and their first token is as late as their "
        "last",
        remedy="look for a proxy, gateway or compression that buffers the stream; till then read "
        "request_latency, not the times of single tokens",
    )


def _chunk_times(e: Evidence) -> Reason | None:
    if not e.gap_bounds:
        return None
    worst = max(e.gap_bounds, key=lambda bound: bound.uncertain_share)
    return graded(
        "chunk_times",
        worst.uncertain_share,
        GAP_SHIFT,
        text=f"the {worst.stat} of {worst.metric}, {worst.measured_ms:.3g} ms, may truly be "
        f"between {worst.lowest_ms:.3g} and {worst.highest_ms:.3g} ms: reads that returned several "
        "chunks leave that much open",
        remedy="read inter_token_latency, which merged reads within a stream do not move; "
        + MORE_WORKERS,
    )


STREAM_CHECKS: tuple[Callable[[Evidence], Reason | None], ...] = (_single_reads, _chunk_times)
