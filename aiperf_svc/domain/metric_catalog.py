"""The definition of every metric: name, unit, formula, and where it is shown.

Results, totals of several runs, tables, exports, the report and `docs/metrics.md` read this table,
so a new metric is one entry here and, if it is computed from requests, a formula in
`metric_formulas`. Tags, display names, units and formulas match AIPerf 0.13 wherever AIPerf has the
metric, so its users' tools and notebooks keep working; `is_ours` marks the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from enum import StrEnum
from math import prod
from typing import Any

from aiperf_svc.domain import metric_formulas as f


class Kind(StrEnum):
    """Kind of a metric: how it becomes one number or a distribution."""

    RECORD = "per request"
    """One value per request, then a distribution with exact percentiles."""
    POOLED = "pooled"
    """Many values per request, all in one histogram with a stated relative error."""
    TIMED = "over time"
    """A level that is held for a time; statistics are weighted by time."""
    SCALAR = "one number"


class Population(StrEnum):
    """Requests that a metric covers."""

    COMPLETED = "completed"
    """Successes only: AIPerf's meaning."""
    SENT = "sent"
    """All requests of which at least one byte was written, whatever their outcome."""
    DUE = "due"
    """All due requests; one without a timely response is right-censored."""
    CONNECTIONS = "connections"
    """Not requests but all connections of the run, those of the warmup included."""


@dataclass(frozen=True, slots=True)
class Count:
    """A scalar: the number of requests of the population for which a formula is true. It is never
    absent; a count that needs streams, tokens or usage is the `Sum` of a formula that is 1, 0 or
    undefined."""

    is_counted: f.Condition


@dataclass(frozen=True, slots=True)
class Sum:
    """A scalar: the sum of a formula over the requests of the population; absent if the formula is
    undefined for all of them."""

    formula: f.Formula


@dataclass(frozen=True, slots=True)
class Rate:
    """A scalar: the sum of other scalars, per second of `benchmark_duration`. A total over several
    runs counts only the time that all runs have in common."""

    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """A scalar computed from other scalars, of a run and of a total alike. It is absent if one of
    its inputs is absent or its divisor is zero."""

    formula: Callable[[Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A scalar that `core/results` takes from the accounts, the config or the times of the run."""

    is_additive: bool = False
    """True if the total over several runs is the sum; otherwise there is no total."""


Scalar = Count | Sum | Rate | Derived | Measured


@dataclass(frozen=True, slots=True)
class Metric:
    tag: str
    name: str
    unit: str
    kind: Kind
    formula: str
    """The formula in words, for the documentation."""
    source: str
    compute: f.Formula | None = None
    """Formula of one request; only for Kind.RECORD."""
    scalar: Scalar | None = None
    """How the number is computed; only for Kind.SCALAR."""
    _: KW_ONLY
    population: Population = Population.COMPLETED
    better: str = ""
    """`higher`, `lower`, or empty if neither is better."""
    needs: str = ""
    """Requirement: `streaming`, `tokens`, `usage` or empty; without it the metric is absent."""
    is_ours: bool = False
    is_integer: bool = False
    """True if the value of a request is a whole number."""
    in_table: bool = False
    """True if the terminal and the first tables of the report show the metric."""
    in_lines: bool = True
    """True if lines of profile_export.jsonl contain it; only for Kind.RECORD."""
    in_slices: bool = False
    """True if time slices contain it; only for Kind.SCALAR, as slices have all distributions."""
    side_by_side: tuple[str, ...] = ()
    """Statistics shown in short tables of several runs, targets or models."""
    other_unit: str = ""
    """Unit in tables and comparisons, if it differs from the files: AIPerf also writes `ratio` for
    numbers that are not shares."""

    @property
    def shown_unit(self) -> str:
        """Return the unit in tables and comparisons, where only shares have `ratio`."""
        return self.other_unit or self.unit

    @property
    def scale(self) -> tuple[float, str]:
        """Return divisor and unit for the tables of a run, which show shares in per cent."""
        return (0.01, "%") if self.shown_unit == "ratio" else (1.0, self.shown_unit)

    @property
    def header(self) -> str:
        """Return the display name, with the unit except for counts, as in AIPerf's CSV."""
        is_plain = self.unit in ("requests", "count")
        return self.name if is_plain else f"{self.name} ({self.unit})"

    @property
    def is_additive(self) -> bool:
        """Return True if the number of several runs together is the sum of the runs'."""
        made = self.scalar
        return isinstance(made, Count | Sum) or (isinstance(made, Measured) and made.is_additive)


STREAM, TOKENS, USAGE = "streaming", "tokens", "usage"
STREAM_TOKENS = f"{STREAM}, {TOKENS}"
HIGHER, LOWER = "higher", "lower"
KERNEL = "kernel receive stamps"
WRITE = "worker's clock at the write"
MEASURED, ADDED = Measured(), Measured(is_additive=True)


def _record(
    tag: str, name: str, unit: str, compute: f.Formula, formula: str, source: str, **more: Any
) -> Metric:
    return Metric(tag, name, unit, Kind.RECORD, formula, source, compute, **more)


def _pooled(tag: str, name: str, unit: str, formula: str, source: str, **more: Any) -> Metric:
    return Metric(tag, name, unit, Kind.POOLED, formula, source, **more)


def _scalar(
    tag: str,
    name: str,
    unit: str,
    scalar: Scalar,
    formula: str,
    source: str = "metric records",
    **more: Any,
) -> Metric:
    return Metric(tag, name, unit, Kind.SCALAR, formula, source, scalar=scalar, **more)


def _error_rate(numbers: Mapping[str, float]) -> float:
    return 100.0 * numbers["error_request_count"] / numbers["completed_request_count"]


def _cached_share(numbers: Mapping[str, float]) -> float:
    cached = numbers["total_usage_prompt_cache_read_tokens"]
    return cached / (cached + numbers["total_usage_prompt_cache_miss_tokens"])


def _cache_read_pct(numbers: Mapping[str, float]) -> float:
    cached = numbers["total_usage_prompt_cache_read_tokens"]
    return 100.0 * cached / numbers["total_usage_prompt_tokens"]


def _acceptance_length(numbers: Mapping[str, float]) -> float:
    return 1.0 + numbers["total_accepted_draft_tokens"] / numbers["total_spec_decode_steps"]


def _acceptance_rate(numbers: Mapping[str, float]) -> float:
    return 100.0 * numbers["total_accepted_draft_tokens"] / numbers["total_draft_tokens"]


def _divided(tag: str, *by: str) -> Callable[[Mapping[str, float]], float]:
    return lambda numbers: numbers[tag] / prod(numbers[each] for each in by)


def _cost(throughput: str) -> Callable[[Mapping[str, float]], float]:
    """Return US dollars per million tokens, from a throughput per GPU in tokens/s."""
    return lambda numbers: numbers["price_per_gpu_hour"] / (numbers[throughput] * 3600 / 1e6)


# fmt: off
# Latencies of successes, as in AIPerf, but measured from the write and by kernel stamps.
_LATENCIES = (
    _record("request_latency", "Request Latency", "ms", f.request_latency, "last content - start",
        KERNEL, better=LOWER, in_table=True, side_by_side=("p50", "p99")),
    _record("time_to_first_token", "Time to First Token", "ms", f.time_to_first_token,
        "first content or reasoning delta - start", KERNEL, better=LOWER, needs=STREAM,
        in_table=True, side_by_side=("p50", "p99")),
    _record("time_to_second_token", "Time to Second Token", "ms", f.time_to_second_token,
        "second delta - first delta", KERNEL, better=LOWER, needs=STREAM, in_table=True),
    _record("time_to_first_output_token", "Time to First Output Token", "ms",
        f.time_to_first_output_token, "first content delta that is not reasoning - start", KERNEL,
        better=LOWER, needs=STREAM),
    _record("inter_token_latency", "Inter Token Latency", "ms", f.inter_token_latency,
        "(request_latency - time_to_first_token) / (output_sequence_length - hidden_token_count - "
        "1); uses time_to_first_output_token if tokens are hidden; undefined below two tokens",
        KERNEL, better=LOWER, needs=STREAM_TOKENS, in_table=True, side_by_side=("p50", "p99")),
    _pooled("inter_chunk_latency", "Inter Chunk Latency", "ms",
        "gaps between content chunks of a request, pooled over all requests", KERNEL, better=LOWER,
        needs=STREAM, in_table=True),
    _record("decode_duration", "Decode Duration", "ms", f.decode_duration,
        "request_latency - time_to_first_token", KERNEL, better=LOWER, needs=STREAM),
    _record("credit_to_start_latency", "Credit-to-Start Latency", "ms", f.schedule_lag,
        "start - due, of successful requests", WRITE, better=LOWER, in_lines=False),
    _record("effective_latency", "Effective Latency (CO-aware)", "ms", f.intended_request_latency,
        "last content - due, of successful requests", KERNEL, better=LOWER, in_lines=False),
)

# Network round trip, by the kernel, to the host that terminates the TCP connection.
_NETWORK = (
    _pooled("network_rtt", "Network Round Trip", "ms",
        "shortest round trip of each connection (TCP_INFO: tcpi_min_rtt)", "kernel",
        population=Population.CONNECTIONS, better=LOWER, is_ours=True, in_table=True,
        side_by_side=("p50",)),
    _pooled("network_smoothed_rtt", "Network Smoothed Round Trip", "ms",
        "smoothed round trip of each connection when it ends (tcpi_rtt); includes up to 40 ms of "
        "delayed acknowledgement by the server's kernel", "kernel",
        population=Population.CONNECTIONS, better=LOWER, is_ours=True),
    _pooled("network_connect", "Network Connect", "ms",
        "TCP connect time of each connection, without DNS lookup and TLS handshake",
        "worker's clock",
        population=Population.CONNECTIONS, better=LOWER, is_ours=True),
)

# From the due time: the wait of a user who came at that time. Free of survivorship bias.
_INTENDED = (
    _record("intended_request_latency", "Intended Request Latency", "ms",
        f.intended_request_latency,
        "last content - due; cancelled, timed-out and unsent requests are right-censored", KERNEL,
        population=Population.DUE, better=LOWER, is_ours=True, in_table=True),
    _record("intended_time_to_first_token", "Intended Time to First Token", "ms",
        f.intended_time_to_first_token,
        "first content or reasoning delta - due; requests without one are right-censored", KERNEL,
        population=Population.DUE, better=LOWER, needs=STREAM, is_ours=True, in_table=True),
)

# Speed as one user sees it.
_PER_USER = (
    _record("output_token_throughput_per_user", "Output Token Throughput Per User",
        "tokens/sec/user", f.output_token_throughput_per_user, "1 / inter_token_latency", KERNEL,
        better=HIGHER, needs=STREAM_TOKENS, in_table=True),
    _record("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user",
        f.e2e_output_token_throughput,
        "(output_sequence_length - hidden_token_count) / request_latency", KERNEL,
        better=HIGHER, needs=TOKENS),
    _record("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user",
        f.prefill_throughput_per_user, "input_sequence_length / time_to_first_token", KERNEL,
        better=HIGHER, needs=STREAM_TOKENS),
)

# Tokens, counted here and as reported by the server.
_TOKEN_COUNTS = (
    _record("output_sequence_length", "Output Sequence Length", "tokens",
        f.count_of("output_tokens"),
        "all output tokens, including reasoning; counted by the tokenizer if one is set, otherwise "
        "taken from the server's usage",
        "tokenizer, else the server's usage", needs=TOKENS, in_table=True, side_by_side=("avg",),
        is_integer=True),
    _record("output_token_count", "Output Token Count", "tokens", f.output_token_count,
        "output tokens without reasoning; absent if the number of reasoning tokens is unknown",
        "tokenizer, else the server's usage", needs=TOKENS, is_integer=True),
    _record("reasoning_token_count", "Reasoning Token Count", "tokens", f.reasoning_token_count,
        "reasoning tokens, of requests that have any", "tokenizer, else the server's usage",
        needs=TOKENS, is_integer=True),
    _record("hidden_token_count", "Hidden Token Count", "tokens", f.hidden_token_count,
        "reasoning tokens that the server counts but does not send, of requests that have any",
        "server", needs=USAGE, is_ours=True, in_table=True, is_integer=True),
    _record("input_sequence_length", "Input Sequence Length", "tokens", f.count_of("input_tokens"),
        "input tokens; with a tokenizer, a later turn counts only the tokens that it adds",
        "dataset, else the server's usage", needs=TOKENS, in_table=True, is_integer=True),
    _record("usage_prompt_tokens", "Usage Prompt Tokens", "tokens",
        f.count_of("usage_prompt_tokens"), "prompt_tokens of the server's usage", "server",
        needs=USAGE, is_integer=True),
    _record("usage_completion_tokens", "Usage Completion Tokens", "tokens",
        f.count_of("usage_completion_tokens"),
        "completion_tokens of the server's usage, plus reasoning_tokens if it reports them "
        "separately",
        "server", needs=USAGE, is_integer=True),
    _record("usage_total_tokens", "Usage Total Tokens", "tokens", f.usage_total_tokens,
        "usage_prompt_tokens + usage_completion_tokens", "server", needs=USAGE, is_integer=True),
    _record("usage_prompt_cache_read_tokens", "Usage Prompt Cache Read Tokens", "tokens",
        f.read_from_cache, "prompt tokens read from a cache (cached_tokens or its equivalent), of "
        "requests whose usage reports them, and no more of them than prompt tokens", "server",
        better=HIGHER, needs=USAGE, is_integer=True),
    _record("usage_prompt_cache_write_tokens", "Usage Prompt Cache Write Tokens", "tokens",
        f.count_of("cache_write_tokens"), "prompt tokens written to a cache, of requests whose "
        "usage reports them", "server", needs=USAGE, is_integer=True),
    _record("usage_prompt_cache_miss_tokens", "Usage Prompt Cache Miss Tokens", "tokens",
        f.missed_by_cache, "usage_prompt_tokens - usage_prompt_cache_read_tokens", "server",
        needs=USAGE, is_integer=True),
    _record("usage_prompt_cache_read_pct", "Usage Prompt Cache Read %", "%", f.cache_read_share,
        "usage_prompt_cache_read_tokens / usage_prompt_tokens of each request; cached_token_share "
        "is the share over the run", "server", better=HIGHER, needs=USAGE),
    _record("spec_decode_steps", "Spec Decode Steps", "count", f.count_of("spec_steps"),
        "speculative decoding steps, of requests for which the server reports them", "server",
        needs=USAGE, is_integer=True),
    _record("spec_decode_draft_tokens", "Draft Tokens", "tokens",
        f.count_of("spec_drafted_tokens"), "draft tokens", "server", needs=USAGE, is_integer=True),
    _record("spec_decode_accepted_draft_tokens", "Accepted Draft Tokens", "tokens",
        f.count_of("spec_accepted_tokens"), "draft tokens that were accepted", "server",
        needs=USAGE, is_integer=True),
    _record("spec_decode_acceptance_length", "Acceptance Length", "ratio", f.acceptance_length,
        "1 + spec_decode_accepted_draft_tokens / spec_decode_steps of each request; "
        "spec_decode_token_weighted_acceptance_length is that of the run", "server", better=HIGHER,
        needs=USAGE, other_unit="tokens"),
    _record("spec_decode_draft_acceptance_rate", "Draft Acceptance Rate", "%", f.acceptance_rate,
        "spec_decode_accepted_draft_tokens / spec_decode_draft_tokens of each request", "server",
        better=HIGHER, needs=USAGE),
    _record("usage_prompt_tokens_diff_pct", "Usage Prompt Diff %", "%",
        f.difference_of("usage_prompt_tokens", "input_tokens"),
        "|input_sequence_length - usage_prompt_tokens| / input_sequence_length",
        "dataset and server", needs=USAGE),
    _record("usage_completion_tokens_diff_pct", "Usage Completion Diff %", "%",
        f.difference_of("usage_completion_tokens", "output_tokens"),
        "|output_sequence_length - usage_completion_tokens| / output_sequence_length",
        "tokenizer and server", needs=USAGE),
    _record("requested_osl", "Requested OSL", "tokens", f.requested_osl,
        "requested output tokens", "dataset", needs=TOKENS, is_integer=True),
    _record("osl_mismatch_diff_pct", "OSL Mismatch Diff %", "%", f.osl_mismatch,
        "(output_sequence_length - requested_osl) / requested_osl; negative if too short",
        "dataset and tokenizer, else the server's usage", needs=TOKENS),
)

# The client's own share of the latencies, which the verdict checks.
_CLIENT = (
    _record("schedule_lag", "Schedule Lag", "ms", f.schedule_lag, "start - due", WRITE,
        population=Population.SENT, better=LOWER, is_ours=True, in_table=True),
    _record("receive_lag", "Receive Lag", "ms", f.duration_of("receive_lag_ns"),
        "time at which the client handles a read - its kernel stamp, largest of the request",
        KERNEL,
        population=Population.SENT, better=LOWER, is_ours=True),
    _record("stamp_uncertainty", "Stamp Uncertainty", "ms", f.stamp_uncertainty,
        "kernel stamp - previous poll, of a merged read that contains the first token (without "
        "streaming, the last content)", KERNEL,
        population=Population.SENT, better=LOWER, is_ours=True),
)

# The parts of the exchange, with the names that AIPerf took from k6.
_HTTP = (
    _record("http_req_connecting", "HTTP Connecting", "ms", f.connecting,
        "TCP connect + TLS handshake, of all attempts; 0 on an existing connection",
        "worker's clock",
        better=LOWER),
    _record("http_req_connection_overhead", "HTTP Connection Overhead", "ms", f.connecting,
        "http_req_connecting", "worker's clock", better=LOWER),
    _record("http_req_connection_reused", "HTTP Connection Reused", "ratio",
        f.connection_reused, "1 on a reused connection, else 0", "worker", is_integer=True),
    _record("http_req_sending", "HTTP Sending", "ms", f.since_write("sent_wall_ns"),
        "last byte written - first byte written", "worker's clock", better=LOWER),
    _record("http_req_waiting", "HTTP Waiting (TTFB)", "ms", f.http_waiting,
        "end of the response's headers - last byte written; 0 if the headers arrived first",
        KERNEL, better=LOWER),
    _record("http_req_receiving", "HTTP Receiving", "ms", f.between("ack_wall_ns", "end_wall_ns"),
        "last byte - end of the response's headers", KERNEL, better=LOWER),
    _record("http_req_duration", "HTTP Duration (excl. conn)", "ms",
        f.since_write("end_wall_ns"), "last byte - first byte written", KERNEL, better=LOWER),
    _record("http_req_total", "HTTP Total Time", "ms", f.between("start_wall_ns", "end_wall_ns"),
        "http_req_connecting + http_req_duration", KERNEL, better=LOWER),
    _record("http_req_data_sent", "HTTP Data Sent", "KB", f.size_of("bytes_out"),
        "bytes written / 1024", "worker"),
    _record("http_req_data_received", "HTTP Data Received", "KB", f.size_of("bytes_in"),
        "bytes read / 1024", "worker"),
    _record("http_req_chunks_received", "HTTP Chunks Received", "count", f.number_of("reads"),
        "reads from the socket", "worker", is_integer=True),
    _record("content_chunk_count", "Content Chunks", "count", f.content_chunk_count,
        "events with content, each of any number of tokens", "record processor", needs=STREAM,
        is_ours=True, is_integer=True),
)

# One number each, over the whole phase.
_SCALARS = (
    _scalar("request_throughput", "Request Throughput", "requests/sec", Rate(("request_count",)),
        "request_count / benchmark_duration; failed requests take time but do not count",
        better=HIGHER, in_table=True, in_slices=True, side_by_side=("avg",)),
    _scalar("request_count", "Request Count", "requests", ADDED, "successful requests",
        in_table=True, in_slices=True, side_by_side=("avg",)),
    _scalar("error_request_count", "Error Request Count", "requests", ADDED,
        "requests that ended in an error", better=LOWER, in_table=True, in_slices=True,
        side_by_side=("avg",)),
    _scalar("completed_request_count", "Completed Requests (Success + Error)", "requests",
        Derived(lambda n: n["request_count"] + n["error_request_count"]),
        "request_count + error_request_count"),
    _scalar("request_error_rate", "Request Error Rate", "%", Derived(_error_rate),
        "error_request_count / completed_request_count", better=LOWER, in_slices=True,
        side_by_side=("avg",)),
    _scalar("quality_score", "Quality Score", "%", MEASURED,
        "correct answers / graded questions of the quality gate after the load, including repeats "
        "and unanswered questions", better=HIGHER, is_ours=True, in_table=True),
    _scalar("scale_decision_time", "Scaling Decision Time", "sec", MEASURED,
        "longest time from a planned load increase to the decision to add replicas",
        better=LOWER, is_ours=True, in_table=True),
    _scalar("scale_up_time", "Scale-up Time", "sec", MEASURED,
        "longest time from a decision to add replicas until all of them are ready; absent if one "
        "never became ready", better=LOWER, is_ours=True, in_table=True),
    _scalar("scale_use_time", "Time From Ready to First Token", "sec", MEASURED,
        "longest time from when all replicas of a scaling decision are ready until each has "
        "generated a token; absent if one never did", better=LOWER, is_ours=True, in_table=True),
    _scalar("scale_recovery_time", "Time Until SLO Holds Again", "sec", MEASURED,
        "longest time from a load increase that added replicas until 95% of the due requests in "
        "each 10 s window meet slo.goodput (without it, slo.objectives) and do so for 30 s; absent "
        "if that never happens",
        better=LOWER, is_ours=True, in_table=True),
    _scalar("idle_gpu_time", "Idle GPU Time", "sec", ADDED,
        "sum over replicas created during the load: GPUs x time from scheduling to first token",
        better=LOWER, is_ours=True, in_table=True),
    _scalar("event_lost_requests", "Requests Lost to Events", "requests", ADDED,
        "requests without a complete response that were due or in flight between an event and "
        "the next one", better=LOWER, is_ours=True, in_table=True),
    _scalar("event_token_gap", "Longest Gap After an Event", "sec", MEASURED,
        "longest time after an event in which no completed request received its first, second or "
        "last token", better=LOWER, is_ours=True, in_table=True),
    _scalar("event_recovery_time", "Recovery Time", "sec", MEASURED,
        "longest time from an event until, in each 10 s window and for 30 s, the completed share "
        "of requests is at least 95% of that before the event, and 95% of first tokens arrive "
        "within their limit; absent if that never happens", better=LOWER, is_ours=True,
        in_table=True),
    _scalar("event_slo_debt", "SLO Debt After Events", "sec", MEASURED,
        "requests that miss the SLO after an event, beyond the share that missed it before / rate "
        "of due requests before it", better=LOWER, is_ours=True, in_table=True),
    _scalar("benchmark_duration", "Benchmark Duration", "sec", MEASURED,
        "from the start of the load to the stop or to the end of the last attempt, failures "
        "included, whichever is later; by the timing manager's clock", in_table=True),
    _scalar("output_token_throughput", "Output Token Throughput", "tokens/sec",
        Rate(("total_osl",)),
        "total_osl / benchmark_duration", better=HIGHER, needs=TOKENS, in_table=True,
        in_slices=True, side_by_side=("avg",)),
    _scalar("input_token_throughput", "Input Token Throughput", "tokens/sec", Rate(("total_isl",)),
        "total_isl / benchmark_duration", better=HIGHER, needs=TOKENS, in_slices=True),
    _scalar("total_token_throughput", "Total Token Throughput", "tokens/sec", Rate(("total_isl",
        "total_osl")),
        "(total_isl + total_osl) / benchmark_duration", better=HIGHER, needs=TOKENS,
        in_slices=True),
    _scalar("total_isl", "Total Input Sequence Length", "tokens", Sum(f.count_of("input_tokens")),
        "sum of ISL", needs=TOKENS, in_slices=True),
    _scalar("total_osl", "Total Output Sequence Length", "tokens", Sum(f.count_of("output_tokens")),
        "sum of OSL", needs=TOKENS, in_slices=True),
    _scalar("total_output_tokens", "Total Output Tokens", "tokens", ADDED,
        "sum of output_token_count; absent if any request lacks it", needs=TOKENS),
    _scalar("total_reasoning_tokens", "Total Reasoning Tokens", "tokens",
        Sum(f.reasoning_token_count),
        "sum of reasoning_token_count", needs=TOKENS),
    _scalar("total_usage_prompt_tokens", "Total Usage Prompt Tokens", "tokens",
        Sum(f.count_of("usage_prompt_tokens")),
        "sum of usage_prompt_tokens", needs=USAGE),
    _scalar("total_usage_completion_tokens", "Total Usage Completion Tokens", "tokens",
        Sum(f.count_of("usage_completion_tokens")),
        "sum of usage_completion_tokens", needs=USAGE),
    _scalar("total_usage_total_tokens", "Total Usage Total Tokens", "tokens",
        Sum(f.usage_total_tokens),
        "sum of usage_total_tokens", needs=USAGE),
    _scalar("total_usage_prompt_cache_read_tokens", "Total Usage Prompt Cache Read Tokens",
        "tokens", Sum(f.read_from_cache), "sum of usage_prompt_cache_read_tokens", better=HIGHER,
        needs=USAGE),
    _scalar("total_usage_prompt_cache_write_tokens", "Total Usage Prompt Cache Write Tokens",
        "tokens", Sum(f.count_of("cache_write_tokens")), "sum of usage_prompt_cache_write_tokens",
        needs=USAGE),
    _scalar("total_usage_prompt_cache_miss_tokens", "Total Usage Prompt Cache Miss Tokens",
        "tokens", Sum(f.missed_by_cache), "sum of usage_prompt_cache_miss_tokens", needs=USAGE),
    _scalar("overall_usage_prompt_cache_read_pct", "Overall Usage Prompt Cache Read %", "%",
        Derived(_cache_read_pct),
        "100 x total_usage_prompt_cache_read_tokens / total_usage_prompt_tokens; requests that "
        "report no cached tokens count as 0", better=HIGHER, needs=USAGE),
    _scalar("cached_token_share", "Cached Token Share", "ratio", Derived(_cached_share),
        "total_usage_prompt_cache_read_tokens / sum of the prompt tokens of the same requests",
        better=HIGHER, needs=USAGE, is_ours=True, in_table=True, in_slices=True),
    _scalar("cached_token_request_count", "Requests Reporting Cached Tokens", "requests",
        Sum(f.states_cached), "requests with usage_prompt_cache_read_tokens", needs=USAGE,
        is_ours=True),
    _scalar("cached_token_coverage", "Cached Token Coverage", "ratio",
        Derived(_divided("cached_token_request_count", "request_count")),
        "cached_token_request_count / request_count: share of requests that cached_token_share "
        "covers", needs=USAGE, is_ours=True),
    _scalar("total_spec_decode_steps", "Total Spec Decode Steps", "count",
        Sum(f.count_of("spec_steps")), "sum of spec_decode_steps", needs=USAGE),
    _scalar("total_draft_tokens", "Total Draft Tokens", "tokens",
        Sum(f.count_of("spec_drafted_tokens")), "sum of spec_decode_draft_tokens", needs=USAGE),
    _scalar("total_accepted_draft_tokens", "Total Accepted Draft Tokens", "tokens",
        Sum(f.count_of("spec_accepted_tokens")), "sum of spec_decode_accepted_draft_tokens",
        needs=USAGE),
    _scalar("spec_decode_token_weighted_acceptance_length", "Token-Weighted Acceptance Length",
        "ratio", Derived(_acceptance_length),
        "1 + total_accepted_draft_tokens / total_spec_decode_steps", better=HIGHER, needs=USAGE,
        in_table=True, other_unit="tokens"),
    _scalar("spec_decode_overall_draft_acceptance_rate", "Overall Draft Acceptance Rate", "%",
        Derived(_acceptance_rate), "total_accepted_draft_tokens / total_draft_tokens",
        better=HIGHER, needs=USAGE, in_table=True),
    _scalar("usage_discrepancy_count", "Usage Discrepancy Count", "requests",
        Sum(f.usage_discrepancy),
        "requests whose input or output token count differs from the server's usage by over 10%",
        needs=USAGE),
    _scalar("osl_mismatch_count", "OSL Mismatch Count", "requests", Sum(f.has_osl_mismatch),
        "requests whose output length differs from requested_osl by more than 5% or 50 tokens, "
        "whichever is less", needs=TOKENS),
    _scalar("goodput", "Goodput", "requests/sec", Rate(("good_request_count",)),
        "good_request_count / benchmark_duration", better=HIGHER, in_table=True,
        side_by_side=("avg",)),
    _scalar("good_request_count", "Good Request Count", "requests", ADDED,
        "completed requests that meet every limit of slo.goodput; a request without one of its "
        "metrics does not",
        better=HIGHER),
    _scalar("steady_state_request_throughput", "Steady State Request Throughput", "requests/sec",
        MEASURED,
        "completed requests in [end of ramp, stop], each weighted by the share of its time in this "
        "interval, / length of the interval; the stop is the end of the duration or the start of "
        "the last request, whichever is earlier, or the start of the first cancelled request if "
        "that is in the second half; absent if no request ended in the interval",
        better=HIGHER, is_ours=True, in_table=True),
    _scalar("requested_rate", "Requested Rate", "requests/sec", ADDED,
        "load.request_rate; conversations per second if requests belong to conversations",
        source="config", is_ours=True),
    _scalar("achieved_rate", "Achieved Rate", "requests/sec", MEASURED,
        "requested_rate x rate_achievement; if the load ends by time, also x arrivals drawn / "
        "arrivals expected at this rate; for conversations, also x due requests / conversations, "
        "and at most due requests / time until the last one was due if no stop ends the load",
        better=HIGHER, is_ours=True, in_table=True),
    _scalar("rate_achievement", "Achieved / Due Rate", "ratio", MEASURED,
        "written / due requests x min(1, span of due times / span of starts); a request whose "
        "connection failed counts as not written; with load.user_centric at most written / (rate x "
        "time until the stop)", better=HIGHER, is_ours=True),
    _scalar("concurrency_achievement", "Achieved / Requested Concurrency", "ratio", MEASURED,
        "slot time in use / slot time requested, of each worker over [end of ramp, stop]",
        better=HIGHER, is_ours=True),
    _scalar("unsent_request_count", "Unsent Requests", "requests", ADDED,
        "requests that were due before the stop but not begun to be written by then",
        source="accounts", better=LOWER, is_ours=True, in_table=True),
    _scalar("cancelled_request_count", "Cancelled Requests", "requests", ADDED,
        "requests that were written, then cancelled by the end of the grace period or by the user",
        better=LOWER,
        is_ours=True, in_table=True),
    _scalar("abandoned_request_count", "Abandoned Requests", "requests", ADDED,
        "requests whose clients disconnected early, as load.cancellation specifies; absent "
        "without it",
        is_ours=True, in_table=True),
    _scalar("context_overflow_count", "Context Overflow Count", "requests", ADDED,
        "errors of kind ContextOverflow: prompts that the server refuses as too long",
        better=LOWER),
    _scalar("timed_out_request_count", "Timed Out Requests", "requests", ADDED,
        "errors of kind Timeout", better=LOWER, is_ours=True),
    _scalar("lost_request_count", "Lost Requests", "requests", ADDED,
        "credits or records lost with a process", source="accounts", better=LOWER,
        is_ours=True),
    _scalar("capped_request_count", "Capped Requests", "requests", ADDED,
        "requests that waited for the concurrency cap, a prefill slot or the connection limit",
        better=LOWER, is_ours=True),
    _scalar("blocked_request_count", "Blocked Requests", "requests", Sum(f.is_blocked),
        "turns of load.user_centric that were due before the previous response had ended, and "
        "waited for it; absent if there are none",
        better=LOWER, is_ours=True, in_table=True, population=Population.DUE),
    _scalar("retried_request_count", "Retried Requests", "requests", ADDED,
        "requests to be sent again because the server closed the reused connection before they "
        "arrived",
        source="accounts", is_ours=True),
    _scalar("connected_request_count", "Connected Requests", "requests", Count(f.has_connected),
        "requests that waited for a new connection; their latencies include this wait",
        is_ours=True, population=Population.SENT),
    _scalar("preconnected_request_count", "Preconnected Requests", "requests",
        Count(f.has_preconnected),
        "first requests on a connection opened in advance; their latencies include no connection "
        "time", is_ours=True, population=Population.SENT),
    _scalar("unstamped_request_share", "Unstamped Requests", "%", MEASURED,
        "share of requests with a read without a kernel stamp", better=LOWER, is_ours=True),
    _scalar("distinct_prompt_count", "Distinct Prompts", "count", MEASURED,
        "dataset entries that were sent, such as prompts or whole conversations", is_ours=True),
    _scalar("requests_per_prompt", "Requests per Prompt", "requests", MEASURED,
        "(request_count + error_request_count) / distinct prompts that were sent, where each turn "
        "of a conversation is a prompt; above 1, a cache may contain prompts of this run",
        is_ours=True),
    _scalar("max_concurrency", "Maximum Concurrency", "requests", MEASURED,
        "highest number of requests in flight", is_ours=True),
)

# Per GPU, per kW and per dollar: of the whole load, over all GPUs of the target.
_ECONOMICS = (
    _scalar("gpu_count", "GPUs", "count", ADDED,
        "economics.gpus, else the GPUs in telemetry, else those of the stack's own target",
        "config, telemetry", is_ours=True, in_table=True),
    _scalar("price_per_gpu_hour", "Price per GPU Hour", "USD", MEASURED,
        "economics.price_per_gpu_hour", "config", is_ours=True),
    _scalar("kw_per_gpu", "Power per GPU, All-In", "kW", MEASURED, "economics.kw_per_gpu",
        "config", is_ours=True),
    _scalar("gpu_joules", "GPU Energy", "J", ADDED,
        "energy of all GPUs during the load, from their counters, else the integral of their power",
        "telemetry", is_ours=True),
    *(
        _scalar(f"{kind}_token_throughput_per_{tag}", f"{name} Tokens per {word}",
            "tokens/sec", Derived(_divided(f"{kind}_token_throughput", *by)),
            f"{kind}_token_throughput / {formula}", better=HIGHER, needs=TOKENS, is_ours=True,
            in_table=True)
        for kind, name in (("output", "Output"), ("total", "Total"))
        for tag, word, by, formula in (
            ("gpu", "GPU", ("gpu_count",), "gpu_count"),
            ("kw", "kW", ("gpu_count", "kw_per_gpu"), "(gpu_count x kw_per_gpu)"),
        )
    ),
    _scalar("joules_per_output_token", "Energy per Output Token", "J",
        Derived(_divided("gpu_joules", "total_osl")), "gpu_joules / total_osl", better=LOWER,
        needs=TOKENS, is_ours=True, in_table=True),
    _scalar("joules_per_total_token", "Energy per Token", "J",
        Derived(lambda numbers: numbers["gpu_joules"]
            / (numbers["total_isl"] + numbers["total_osl"])),
        "gpu_joules / (total_isl + total_osl); cached input counts as input", better=LOWER,
        needs=TOKENS, is_ours=True),
    _scalar("joules_per_request", "Energy per Request", "J",
        Derived(_divided("gpu_joules", "request_count")), "gpu_joules / request_count",
        better=LOWER, is_ours=True),
    *(
        _scalar(f"cost_per_million_{kind}_tokens", f"Cost per M {name} Tokens", "USD",
            Derived(_cost(f"{kind}_token_throughput_per_gpu")),
            f"price_per_gpu_hour / ({kind}_token_throughput_per_gpu x 3600 / 1e6){more}",
            better=LOWER, needs=TOKENS, is_ours=True, in_table=kind == "output")
        for kind, name, more in (
            ("output", "Output", ""),
            ("total", "Total", "; input and output, cached input counts as input"),
        )
    ),
)

_TIMED = (
    Metric("effective_concurrency", "Effective Concurrency", "requests", Kind.TIMED,
        "requests in flight, from start to last byte, over [phase start, stop]; until the last "
        "request ends if the credits run out first", KERNEL,
        in_table=True),
)
# fmt: on

METRICS: tuple[Metric, ...] = (
    *_LATENCIES,
    *_NETWORK,
    *_INTENDED,
    *_PER_USER,
    *_TOKEN_COUNTS,
    *_TIMED,
    *_SCALARS,
    *_ECONOMICS,
    *_CLIENT,
    *_HTTP,
)
CATALOG: dict[str, Metric] = {metric.tag: metric for metric in METRICS}


def nearest_tags(word: str) -> list[str]:
    """Return up to three tags that resemble `word` or have it as their initials (`ttft`), best
    first."""
    word = word.lower().replace("-", "_").replace(" ", "_")
    by_initials = [tag for tag in CATALOG if "".join(part[0] for part in tag.split("_")) == word]
    return by_initials[:3] or get_close_matches(word, CATALOG, n=3)
