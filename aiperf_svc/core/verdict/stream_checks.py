"""Checks of the times within a stream: whether they exist, and how far merged reads moved them.
They report at most *degraded*: times to the first and the last token have their own check."""

from collections.abc import Callable

from aiperf_svc.core.verdict.check_result import MORE_WORKERS, Reason, graded, note
from aiperf_svc.core.verdict.effect_checks import LATENCY_SHIFT
from aiperf_svc.core.verdict.inputs import Evidence
from aiperf_svc.domain.number_text import significant

SINGLE_READ_SHARE = 0.05
"""Limit of streams received in one read. A few short responses fit into one segment; a buffering
proxy affects all of them."""
ODD_TOKENS_SHARE = 0.01
"""Limit of responses with fewer than half as many tokens as events, or too many for their events
and bytes. At 1%, they determine p99 of the times between tokens."""
GAP_SHIFT = 0.20
"""Limit of the effect of merged reads on a percentile of the times between chunks. These are not
headline numbers, and servers send most merged chunks at once; 20% changes which of two servers
wins."""


def _single_reads(e: Evidence) -> Reason | None:
    found = e.single_reads
    if not found.streams:
        return None
    return graded(
        "single_reads",
        found.share,
        SINGLE_READ_SHARE,
        text=f"{found.in_one_read:,} of {found.streams:,} streams of several tokens arrived in one "
        "read: the time between their tokens is unknown, and their first token is as late as the "
        "last",
        remedy="find the proxy, gateway or compression that buffers the stream; until then use "
        "request_latency, not the times of tokens",
    )


def _chunk_times(e: Evidence) -> Reason | None:
    if not e.gap_bounds:
        return None
    worst = max(e.gap_bounds, key=lambda bound: bound.uncertain_share)
    return graded(
        "chunk_times",
        worst.uncertain_share,
        GAP_SHIFT,
        text=f"the true {worst.stat} of {worst.metric} may be between "
        f"{significant(worst.lowest_ms, 3)} and {significant(worst.highest_ms, 3)} ms instead of "
        f"{significant(worst.measured_ms, 3)} ms, because of reads that returned several chunks",
        remedy="use inter_token_latency, which merged reads within a stream do not affect; "
        + MORE_WORKERS,
    )


def _token_events(e: Evidence) -> Reason | None:
    totals = e.totals
    if not totals.is_streaming:
        return None
    text = (
        f"{totals.scarce_tokens:,} of {totals.completed:,} responses have more than twice as "
        "many events as tokens: tokens are missing from the count, or the server splits "
        "them"
    )
    if totals.dense_tokens:
        text = (
            f"{totals.dense_tokens:,} of {totals.completed:,} responses have more than twice as "
            "many tokens as events, and under two bytes per token: the count includes tokens that "
            "were not streamed, such as summarised reasoning, and times between "
            "tokens are too short"
        ) + (f"; {text}" if totals.scarce_tokens else "")
    return graded(
        "token_events",
        e.share_of_completed(totals.scarce_tokens + totals.dense_tokens),
        ODD_TOKENS_SHARE,
        text=text,
        remedy="compare inter_chunk_latency with inter_token_latency; if the server's usage is "
        "wrong, set a tokenizer (tokenizer.name), so the client counts tokens",
    )


def _hidden_tokens(e: Evidence) -> Reason | None:
    count, completed = e.totals.with_hidden, e.totals.completed
    if not count:
        return None
    return note(
        "hidden_tokens",
        f"{count:,} of {completed:,} responses have reasoning that the server counts but does not "
        f"send, {e.totals.hidden_tokens / count:,.0f} tokens on average: the time to first token "
        "includes it; times between tokens and rates per user exclude it",
    )


def _blank_deltas(e: Evidence) -> Reason | None:
    if not e.blank_bounds:
        if not e.totals.with_blanks:
            return None
        return note(
            "blank_deltas",
            f"{e.totals.with_blanks:,} of {e.totals.completed:,} responses have deltas with empty "
            "text that the server's usage counts as tokens: the first of them may set the time to "
            "first token",
        )
    worst = max(e.blank_bounds, key=lambda bound: bound.uncertain_share)
    return graded(
        "blank_deltas",
        worst.uncertain_share,
        LATENCY_SHIFT[0],
        text=f"the {worst.stat} of {worst.metric}, {significant(worst.measured_ms, 3)} ms, may be "
        f"as low as {significant(worst.lowest_ms, 3)} ms: deltas with empty text come first, and "
        "the server's usage does not show whether they are tokens",
        remedy="inspect such a stream; if these deltas are tokens, make the server report usage "
        "and send one event per token",
    )


STREAM_CHECKS: tuple[Callable[[Evidence], Reason | None], ...] = (
    _single_reads,
    _chunk_times,
    _token_events,
    _hidden_tokens,
    _blank_deltas,
)
