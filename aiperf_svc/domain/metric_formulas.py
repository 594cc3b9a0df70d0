"""Formulas of all per-request metrics, as vectorised functions of the base columns.

A formula takes a mapping of column name to array, all of one length, and returns float64 of that
length in the metric's own unit, NaN where the metric is not defined for a request. Times are 0 and
token counts -1 where there is none. The formulas do not depend on where the columns are kept.

The metric catalog contains these formulas, and the runner imports it without numpy to print tables.
So they use the operators and methods of arrays and no function of numpy.
"""

from collections.abc import Callable, Mapping
from math import nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]
    Columns = Mapping[str, NDArray[Any]]
    """Field name of a metric record to an array of shape (n,)."""
else:
    Floats, Mask, Columns = Any, Any, Mapping[str, Any]

Formula = Callable[[Columns], Floats]
Condition = Callable[[Columns], Mask]

NS_PER_MS = 1e6
USAGE_DISCREPANCY_PCT = 10.0
"""Threshold for `usage_discrepancy_count`, as in AIPerf."""
OSL_MISMATCH_PCT = 5.0
OSL_MISMATCH_TOKENS = 50.0
"""Thresholds for `osl_mismatch_count`, as in AIPerf; the lower one counts."""
BYTES_PER_KB = 1024.0
"""AIPerf's KB is 1,024 bytes."""


def _either(is_first: Mask, first: "NDArray[Any]", second: "NDArray[Any]") -> "NDArray[Any]":
    """Return the values of the first array where the mask is set, and of the second elsewhere."""
    chosen = second.copy()
    chosen[is_first] = first[is_first]
    return chosen


def between(begin: str, end: str) -> Formula:
    """Milliseconds from one time column to another; undefined unless both are set."""
    return lambda columns: _gap_ms(columns[begin], columns[end])


def _gap_ms(first: "NDArray[np.int64]", last: "NDArray[np.int64]") -> Floats:
    gap: Floats = (last - first) / NS_PER_MS
    gap[(first == 0) | (last == 0)] = nan
    return gap


def last_content(columns: Columns) -> "NDArray[np.int64]":
    """Wall time of the last content, or of the last byte of a response without content events
    (embeddings)."""
    last, end = columns["last_token_wall_ns"], columns["end_wall_ns"]
    return _either(last == 0, end, last)


def _since(begin: str) -> Formula:
    return lambda columns: _gap_ms(columns[begin], last_content(columns))


def write_wall_ns(columns: Columns) -> "NDArray[np.int64]":
    """Wall time just before the first byte of the request was written; 0 if none was."""
    start, waited = columns["start_wall_ns"], columns["connect_ns"] + columns["tls_ns"]
    written: NDArray[np.int64] = (start + waited) * (start != 0)
    return written


def since_write(end: str) -> Formula:
    """Milliseconds from the write to the time in a column; undefined unless both are set."""
    return lambda columns: _gap_ms(write_wall_ns(columns), columns[end])


request_latency = _since("start_wall_ns")
intended_request_latency = _since("due_wall_ns")
_first_token = between("start_wall_ns", "first_token_wall_ns")
_intended_first_token = between("due_wall_ns", "first_token_wall_ns")


def _streamed(formula: Formula) -> Formula:
    def only_streams(columns: Columns) -> Floats:
        values = formula(columns)
        values[~columns["is_streamed"]] = nan
        return values

    return only_streams


time_to_first_token = _streamed(_first_token)
intended_time_to_first_token = _streamed(_intended_first_token)
time_to_first_output_token = _streamed(between("start_wall_ns", "first_output_wall_ns"))
time_to_second_token = _streamed(between("first_token_wall_ns", "second_token_wall_ns"))


def count_of(column: str) -> Formula:
    """A token count; undefined where it is unknown (negative)."""

    def formula(columns: Columns) -> Floats:
        values = columns[column].astype(float)
        values[values < 0] = nan
        return values

    return formula


def number_of(column: str) -> Formula:
    """A count that is always known."""
    return lambda columns: columns[column].astype(float)


def _above_zero(column: str) -> Formula:
    """A number; undefined where it is not above zero."""

    def formula(columns: Columns) -> Floats:
        values = columns[column].astype(float)
        values[values <= 0] = nan
        return values

    return formula


content_chunk_count = _streamed(number_of("chunks"))
connection_reused = number_of("is_reused")
is_blocked = _above_zero("is_blocked")
"""1 where a turn waited for the previous response; undefined elsewhere."""
reasoning_token_count = _above_zero("reasoning_tokens")
requested_osl = _above_zero("requested_tokens")
"""Output tokens that the request asked for; undefined where it set no number."""


def duration_of(column: str) -> Formula:
    """A duration column in milliseconds."""
    return lambda columns: columns[column] / NS_PER_MS


def size_of(column: str) -> Formula:
    """A byte column in KB."""
    return lambda columns: columns[column] / BYTES_PER_KB


_NONE_STATED = -1
_output_tokens = count_of("output_tokens")
_input_tokens = count_of("input_tokens")


def output_token_count(columns: Columns) -> Floats:
    """Output tokens without reasoning; undefined if reasoning tokens came but were not counted."""
    reasoning = columns["reasoning_tokens"].clip(min=0)
    values: Floats = (_output_tokens(columns) - reasoning).clip(min=0.0)
    values[columns["reasoning_tokens"] < _NONE_STATED] = nan
    return values


def hidden_token_count(columns: Columns) -> Floats:
    """Reasoning tokens that were not streamed, defined only where there are some."""
    values = columns["hidden_tokens"].astype(float)
    values[values == 0] = nan
    return values


def streamed_tokens(columns: Columns) -> Floats:
    """Output tokens without the hidden ones."""
    streamed: Floats = _output_tokens(columns) - columns["hidden_tokens"]
    return streamed


def decode_duration(columns: Columns) -> Floats:
    """Time from the first token to the last."""
    return request_latency(columns) - time_to_first_token(columns)


def inter_token_latency(columns: Columns) -> Floats:
    """(request latency - TTFT) / (streamed tokens - 1); undefined under two tokens.

    Where reasoning is hidden, a summary of it may come before the first output token. It contains
    none of the tokens, so the time begins with the first output token.
    """
    tokens = streamed_tokens(columns)
    tokens[tokens < 2] = nan
    is_hidden = columns["hidden_tokens"] > 0
    first = time_to_first_token(columns)
    if is_hidden.any():
        first = _either(is_hidden, time_to_first_output_token(columns), first)
    return (request_latency(columns) - first) / (tokens - 1)


def _inverted(values: Floats, *, numerator: Floats | float) -> Floats:
    values[values <= 0] = nan
    rate: Floats = numerator / values
    return rate


def output_token_throughput_per_user(columns: Columns) -> Floats:
    """Tokens per second as one user sees them: 1 / inter-token latency."""
    return _inverted(inter_token_latency(columns), numerator=1e3)


def e2e_output_token_throughput(columns: Columns) -> Floats:
    """Streamed tokens over the whole request latency."""
    return _inverted(request_latency(columns), numerator=streamed_tokens(columns) * 1e3)


def prefill_throughput_per_user(columns: Columns) -> Floats:
    """Input tokens over TTFT."""
    return _inverted(time_to_first_token(columns), numerator=_input_tokens(columns) * 1e3)


def usage_total_tokens(columns: Columns) -> Floats:
    """The server's prompt plus completion tokens."""
    return count_of("usage_prompt_tokens")(columns) + count_of("usage_completion_tokens")(columns)


def read_from_cache(columns: Columns) -> Floats:
    """Prompt tokens that the server read from a cache. Undefined if the server does not report them
    or its prompt tokens, or reports more cached tokens than prompt tokens."""
    values = count_of("cached_tokens")(columns)
    prompt = columns["usage_prompt_tokens"]
    values[(prompt < 0) | (values > prompt)] = nan
    return values


def states_cached(columns: Columns) -> Floats:
    """1 for a request whose cached tokens are known; undefined otherwise."""
    known: Floats = read_from_cache(columns) * 0.0 + 1.0
    return known


def missed_by_cache(columns: Columns) -> Floats:
    """Prompt tokens that the server computed."""
    missed: Floats = columns["usage_prompt_tokens"] - read_from_cache(columns)
    return missed


def cache_read_share(columns: Columns) -> Floats:
    """Per cent of a request's prompt tokens that the server read from a cache."""
    prompt = count_of("usage_prompt_tokens")(columns)
    prompt[prompt == 0] = nan
    share: Floats = read_from_cache(columns) / prompt * 100.0
    return share


def acceptance_length(columns: Columns) -> Floats:
    """Tokens per speculation step: the accepted drafts, and the one that the model adds."""
    steps = count_of("spec_steps")(columns)
    steps[steps == 0] = nan
    length: Floats = 1.0 + count_of("spec_accepted_tokens")(columns) / steps
    return length


def acceptance_rate(columns: Columns) -> Floats:
    """Accepted drafts in per cent of all; undefined where the server reports more of them."""
    drafted = count_of("spec_drafted_tokens")(columns)
    accepted = count_of("spec_accepted_tokens")(columns)
    drafted[(drafted == 0) | (accepted > drafted)] = nan
    rate: Floats = accepted / drafted * 100.0
    return rate


def difference_of(reported: str, counted: str) -> Formula:
    """|counted - reported by the server| in per cent of counted."""

    def formula(columns: Columns) -> Floats:
        ours = count_of(counted)(columns)
        ours[ours == 0] = nan
        off: Floats = abs(ours - count_of(reported)(columns)) / ours * 100.0
        return off

    return formula


def usage_discrepancy(columns: Columns) -> Floats:
    """Return 1 where a token count deviates too far from the server's usage, else 0; undefined
    where the server reported none."""
    prompt, completion = columns["usage_prompt_tokens"], columns["usage_completion_tokens"]
    off = difference_of("usage_prompt_tokens", "input_tokens")(columns) > USAGE_DISCREPANCY_PCT
    off |= (
        difference_of("usage_completion_tokens", "output_tokens")(columns) > USAGE_DISCREPANCY_PCT
    )
    values: Floats = off.astype(float)
    values[(prompt < 0) & (completion < 0)] = nan
    return values


def osl_mismatch(columns: Columns) -> Floats:
    """Difference of output tokens from the requested ones, in per cent: negative for too few."""
    target = requested_osl(columns)
    return (_output_tokens(columns) - target) / target * 100.0


def has_osl_mismatch(columns: Columns) -> Floats:
    """Return 1 where the output length deviates too far from the requested one, else 0; undefined
    where either is."""
    target = requested_osl(columns)
    off = abs(_output_tokens(columns) - target)
    values = (off > (target * OSL_MISMATCH_PCT / 100.0).clip(max=OSL_MISMATCH_TOKENS)).astype(float)
    values[off != off] = nan
    return values


def connecting(columns: Columns) -> Floats:
    """TCP connect and TLS handshake; 0 on an existing connection."""
    values: Floats = (columns["connect_ns"] + columns["tls_ns"]) / NS_PER_MS
    return values


_http_waiting = between("sent_wall_ns", "ack_wall_ns")


def http_waiting(columns: Columns) -> Floats:
    """From the last byte written to the end of the response's headers; 0 if the headers came first:
    the server responded before it had read the request, or before the write returned."""
    waited: Floats = _http_waiting(columns).clip(min=0.0)
    return waited


def has_connected(columns: Columns) -> Mask:
    """Return which requests waited for a new connection."""
    waited: Mask = ~columns["is_reused"] & (connecting(columns) > 0)
    return waited


def has_preconnected(columns: Columns) -> Mask:
    """Return which requests were the first on a connection that was made in advance."""
    ahead: Mask = ~columns["is_reused"] & (connecting(columns) == 0)
    return ahead


schedule_lag = between("due_wall_ns", "start_wall_ns")


def client_lag(columns: Columns) -> Floats:
    """The part of the schedule lag that only the client can have caused. Waiting for the
    concurrency cap, which the config requests, is excluded."""
    lag: Floats = schedule_lag(columns).clip(min=0.0)
    lag[columns["is_capped"] | (lag != lag)] = 0.0
    return lag


def write_time(columns: Columns) -> Floats:
    """Time between the timestamps just before and just after the write. The true departure lies
    between the two if the request fits into the socket's send buffer. Larger requests may wait for
    the network and count as 0."""
    values = since_write("sent_wall_ns")(columns)
    values[(columns["bytes_out"] > SEND_BUFFER_BYTES) | (values != values)] = 0.0
    return values


SEND_BUFFER_BYTES = 16_384
"""Linux' initial send buffer (net.ipv4.tcp_wmem): up to here a write never waits for the peer."""


def stamp_uncertainty(columns: Columns) -> Floats:
    """Uncertainty of the event that sets the headline latency: the first token of a stream,
    otherwise the last content."""
    first, last = duration_of("ttft_uncertainty_ns"), duration_of("last_uncertainty_ns")
    return _either(columns["is_streamed"], first(columns), last(columns))
