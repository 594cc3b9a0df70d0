"""Computes every count, sum and extreme of a phase, in one pass over its rows."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows, padded
from aiperf_svc.domain import metric_formulas as f
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import CONTRADICTORY_TOKENS, UNKNOWN_TOKENS

OSL_ROUNDING_TOKENS = 1.0
"""Difference in output length that is ignored, since splitting a text into tokens again does not
always yield the original tokens."""
UNREACHABLE = (ErrorKind.DNS, ErrorKind.CONNECT, ErrorKind.TLS, ErrorKind.SEND)
SHORT_TOKEN_BYTES = 2
"""Bytes per token below which a text does not contain the counted tokens, unless there is an event
for each of them."""
TEXTLESS_TOKENS = 16
"""Maximum textless tokens of an output: its end, and the markers of channels and tool calls."""
_NEVER = 2**62
_TURN_BITS = 16
"""Bits of a record's `turn`."""


class Totals(msgspec.Struct):
    """Sums over the requests of one phase. Times are by the timing manager's clock."""

    requests: int = 0
    sent: int = 0
    """Requests that had a connection, so writing began."""
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    abandoned: int = 0
    to_abandon: int = 0
    """Requests whose clients were to disconnect after a set time."""
    unsent: int = 0
    context_overflows: int = 0
    """Requests whose prompt exceeded the server's context."""
    timed_out: int = 0
    no_resources: int = 0
    capped: int = 0
    unstamped: int = 0
    clock_jumps: int = 0
    impossible: int = 0
    """Requests whose times are in an impossible order."""
    is_streaming: bool = False
    is_multi_turn: bool = False
    content_tokens: float = 0.0
    has_input_tokens: bool = False
    has_output_tokens: bool = False
    without_input_tokens: int = 0
    without_output_tokens: int = 0
    """Completed requests with unknown input or output tokens."""
    without_content_tokens: int = 0
    """Completed requests with other output tokens but an unknown number of reasoning tokens."""
    impossible_tokens: int = 0
    """Completed requests whose output has no token, or more tokens than bytes."""
    scarce_tokens: int = 0
    """Completed requests with more than twice as many events as tokens."""
    dense_tokens: int = 0
    """Completed requests with fewer than half as many events as tokens, and under two bytes per
    token."""
    with_hidden: int = 0
    """Completed requests with hidden tokens."""
    hidden_tokens: float = 0.0
    with_blanks: int = 0
    """Completed requests with textless tokens."""
    with_blank_leads: int = 0
    """Completed requests that may have begun with such tokens."""
    with_prompt: int = 0
    """Completed requests whose prompt tokens the server reports."""
    with_cached: int = 0
    """Those of them whose cached tokens the server reports."""
    cached_above_prompt: int = 0
    """Completed requests for which the server reports more cached tokens than prompt tokens."""
    usage_contradictions: int = 0
    """Completed requests with two usages that contradict each other about the prompt."""
    osl_known: int = 0
    """Completed requests with a known output length and a known requested one."""
    osl_off: int = 0
    """Those of them with an OSL mismatch beyond a tokenizer's rounding."""
    osl_requested: float = 0.0
    osl_generated: float = 0.0
    """Requested and generated output tokens of these requests."""
    finish_reasons: NDArray[np.int64] = msgspec.field(
        default_factory=lambda: np.zeros(len(FinishReason), dtype=np.int64)
    )
    """Number of requests that ended with each `FinishReason`."""
    first_due: int = _NEVER
    last_due: int = 0
    first_start: int = _NEVER
    last_start: int = 0
    last_tried: int = 0
    """Time of the last start; for a request without a connection, its due time."""
    last_end: int = 0
    """End of the last attempted request, whatever its outcome, connected or not."""
    distinct_entries: int = 0
    distinct_prompts: int = 0
    """Distinct prompts that were sent: each turn of a conversation is one."""
    errors: NDArray[np.int64] = msgspec.field(
        default_factory=lambda: np.zeros(len(ErrorKind), dtype=np.int64)
    )
    """Number of errors by `ErrorKind`."""
    sent_by_worker: NDArray[np.int64] = msgspec.field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )
    last_begin_by_worker: NDArray[np.int64] = msgspec.field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )
    """Last start of a first turn; 0 without any."""

    @property
    def unreachable(self) -> int:
        """Number of requests that the target did not accept: no connection could be made, or it
        broke while the request was written."""
        return int(sum(self.errors[kind] for kind in UNREACHABLE))

    @property
    def without_tokens(self) -> int:
        """Number of completed requests that are missing from sums of tokens, if the run has any."""
        return max(
            self.without_input_tokens if self.has_input_tokens else 0,
            self.without_output_tokens if self.has_output_tokens else 0,
        )

    @property
    def written(self) -> int:
        """Number of requests that were written completely."""
        return self.sent - int(self.errors[ErrorKind.SEND])


def add_up(rows: PhaseRows, clocks: ClockMap) -> Totals:
    """Sum up all requests of a phase in one pass."""
    totals = Totals()
    entries = first_turns = np.zeros(0, dtype=np.bool_)
    later_turns: list[NDArray[np.uint64]] = []
    for chunk in rows.chunks():
        _add_outcomes(totals, chunk)
        _add_times(totals, chunk, clocks)
        sent = chunk.where(chunk["start_wall_ns"] != 0)
        entry, turn = sent["entry"], sent["turn"]
        entries = _mark(entries, entry)
        first_turns = _mark(first_turns, entry[turn == 0])
        if turn.any():
            keys = (entry.astype(np.uint64) << np.uint64(_TURN_BITS)) | turn
            later_turns.append(np.unique(keys[turn > 0]))
        _add_tokens(totals, chunk.where(chunk["outcome"] == Outcome.COMPLETED))
    totals.distinct_entries = _count(entries)
    totals.distinct_prompts = _count(first_turns)
    if later_turns:
        totals.distinct_prompts += len(np.unique(np.concatenate(later_turns)))
    return totals


def _add_outcomes(totals: Totals, chunk: Chunk) -> None:
    by_outcome = np.bincount(chunk["outcome"], minlength=len(Outcome))
    by_error = np.bincount(chunk["error"], minlength=len(ErrorKind))
    totals.requests += chunk.rows
    totals.finish_reasons += np.bincount(chunk["finish_reason"], minlength=len(FinishReason))
    totals.completed += int(by_outcome[Outcome.COMPLETED])
    totals.errored += int(by_outcome[Outcome.ERRORED])
    totals.cancelled += int(by_outcome[Outcome.CANCELLED])
    totals.abandoned += int(by_outcome[Outcome.ABANDONED])
    totals.to_abandon += _count(chunk["is_abandoning"])
    totals.unsent += int(by_outcome[Outcome.UNSENT])
    totals.errors += by_error
    totals.context_overflows += int(by_error[ErrorKind.CONTEXT_OVERFLOW])
    totals.timed_out += int(by_error[ErrorKind.TIMEOUT])
    totals.no_resources += int(by_error[ErrorKind.NO_RESOURCES])
    totals.capped += _count(chunk["is_capped"])
    totals.unstamped += _count(chunk["is_unstamped"])
    totals.clock_jumps += _count(chunk["is_clock_jump"])
    totals.is_streaming |= bool(chunk["is_streamed"].any())
    totals.is_multi_turn |= bool(chunk["turn"].any())


def _add_times(totals: Totals, chunk: Chunk, clocks: ClockMap) -> None:
    tried = chunk.where(chunk["outcome"] != Outcome.UNSENT)
    if tried.rows:
        ends = clocks.to_timing(tried["end_wall_ns"], tried["worker"])
        totals.last_end = max(totals.last_end, int(ends.max()))
        begun = np.where(tried["start_wall_ns"] != 0, tried["start_wall_ns"], tried["due_wall_ns"])
        last_tried = int(clocks.to_timing(begun, tried["worker"]).max())
        totals.last_tried = max(totals.last_tried, last_tried)
    sent = chunk.where(chunk["start_wall_ns"] != 0)
    if not sent.rows:
        return
    worker = sent["worker"]
    start = clocks.to_timing(sent["start_wall_ns"], worker)
    due = clocks.to_timing(sent["due_wall_ns"], worker)
    totals.sent += sent.rows
    totals.first_due = min(totals.first_due, int(due.min()))
    totals.last_due = max(totals.last_due, int(due.max()))
    totals.first_start = min(totals.first_start, int(start.min()))
    totals.last_start = max(totals.last_start, int(start.max()))
    totals.impossible += _impossible(sent)
    size = int(worker.max()) + 1
    totals.sent_by_worker = padded(totals.sent_by_worker, size)
    totals.sent_by_worker += np.bincount(worker, minlength=len(totals.sent_by_worker))
    totals.last_begin_by_worker = padded(totals.last_begin_by_worker, size)
    begins = sent["turn"] == 0
    np.maximum.at(totals.last_begin_by_worker, worker[begins], start[begins])


def _impossible(sent: Chunk) -> int:
    """Return the number of requests whose response preceded the request, or ended before its
    beginning."""
    write, ack, end = f.write_wall_ns(sent), sent["ack_wall_ns"], sent["end_wall_ns"]
    first, last = sent["first_token_wall_ns"], sent["last_token_wall_ns"]
    wrong = (end != 0) & (end < write)
    wrong |= (ack != 0) & (ack < write)
    wrong |= (first != 0) & ((first < write) | (last < first))
    return _count(wrong)


def _add_tokens(totals: Totals, done: Chunk) -> None:
    """Add sums over completed requests only, like AIPerf."""
    if not done.rows:
        return
    inputs, outputs = done["input_tokens"], done["output_tokens"]
    totals.has_input_tokens |= bool((inputs >= 0).any())
    totals.has_output_tokens |= bool((outputs >= 0).any())
    totals.without_input_tokens += _count(inputs < 0)
    has_content = done["finish_reason"] != FinishReason.NO_CONTENT
    totals.without_output_tokens += _count((outputs < 0) & has_content)
    content = f.output_token_count(done)
    totals.content_tokens += float(np.nansum(content))
    totals.without_content_tokens += _count(np.isnan(content) & (outputs >= 0))
    _add_lengths(totals, done)
    _add_streamed(totals, done)
    _add_cached(totals, done)


def _add_cached(totals: Totals, done: Chunk) -> None:
    """Count usages with cached tokens, and impossible ones."""
    stated, prompt = done["cached_tokens"], done["usage_prompt_tokens"]
    totals.with_prompt += _count(prompt >= 0)
    if (stated == UNKNOWN_TOKENS).all():
        return
    totals.with_cached += _count((prompt >= 0) & (stated >= 0))
    totals.cached_above_prompt += _count((prompt >= 0) & (stated > prompt))
    totals.usage_contradictions += _count(stated == CONTRADICTORY_TOKENS)


def _add_lengths(totals: Totals, done: Chunk) -> None:
    """Compare output lengths with the requested ones. A response for which the server reports the
    exact requested number of tokens counts as matching, whatever the client's tokenizer counts:
    random tokens, for example after a forced end, do not survive detokenizing."""
    requested, generated = done["requested_tokens"], done["output_tokens"]
    is_known = (requested > 0) & (generated >= 0)
    if not is_known.any():
        return
    is_off = (f.has_osl_mismatch(done) > 0) & (done["usage_completion_tokens"] != requested)
    is_off = is_off[is_known]
    requested, generated = (
        requested[is_known].astype(np.float64),
        generated[is_known].astype(np.float64),
    )
    totals.osl_known += len(requested)
    totals.osl_off += _count(is_off & (np.abs(generated - requested) > OSL_ROUNDING_TOKENS))
    totals.osl_requested += float(requested.sum())
    totals.osl_generated += float(generated.sum())


def _add_streamed(totals: Totals, done: Chunk) -> None:
    """Compare output tokens with the received events and bytes."""
    hidden, blank = done["hidden_tokens"], done["blank_tokens"]
    totals.with_hidden += _count(hidden > 0)
    totals.hidden_tokens += float(hidden.sum(dtype=np.int64))
    totals.with_blanks += _count(blank > 0)
    totals.with_blank_leads += _count(done["blank_lead_us"] > 0)
    streamed, size = f.streamed_tokens(done), done["text_bytes"]
    is_known = (streamed >= 0) & (size > 0)
    is_impossible = is_known & ((streamed == 0) | (streamed - blank > size + TEXTLESS_TOKENS))
    totals.impossible_tokens += _count(is_impossible)
    # Events with a summary of hidden reasoning, which precede the output, are not tokens.
    has_summary = (hidden > 0) & (done["first_output_wall_ns"] != done["first_token_wall_ns"])
    is_known &= ~is_impossible & ~has_summary
    chunks = done["chunks"]
    is_short = size < SHORT_TOKEN_BYTES * (streamed - blank - TEXTLESS_TOKENS)
    totals.scarce_tokens += _count(is_known & (2 * streamed < chunks))
    totals.dense_tokens += _count(is_known & is_short & (chunks > 0) & (2 * chunks < streamed))


def _mark(seen: NDArray[np.bool_], numbers: NDArray[Any]) -> NDArray[np.bool_]:
    if len(numbers):
        seen = padded(seen, int(numbers.max()) + 1)
        seen[numbers] = True
    return seen


def _count(mask: NDArray[Any]) -> int:
    return int(np.count_nonzero(mask))
