"""Checks of effects on the numbers: was the load offered, are the times those of the server, is
anything omitted? These can make a run invalid."""

from collections.abc import Callable

from aiperf_svc.core.verdict.check_result import (
    MORE_WORKERS,
    Reason,
    expect_none,
    graded,
    note,
    run_ended,
)
from aiperf_svc.core.verdict.inputs import Check, Evidence
from aiperf_svc.core.verdict.token_agreement import TEMPLATE_TOKENS
from aiperf_svc.domain.number_text import count, counted, significant

# Each pair contains two limits: beyond the first the run is degraded, beyond the second invalid.
LOAD_SHORTFALL = (0.01, 0.10)
"""Limits of the share of the load that was not offered. A load that falls 1% short moves latencies
by less than runs differ; 10% is another benchmark."""
RATE_SHORTFALL = (0.01, 0.05)
"""Limits of a rate below the due one. They are stricter, since near saturation a queue grows much
faster than its rate."""
LATENCY_SHIFT = (0.05, 0.20)
"""Limits of the client's effect on a percentile: readers regard 5% as noise, and 20% changes which
of two servers wins."""
UNSENT_SHARE = (0.01, 0.05)
FASTER_CONNECTIONS = (
    "keep connections open (endpoint.connections: keep-alive), or open them in a warmup; check the "
    "network, the server's listen backlog and its TLS"
)
RECORDS_LOST_SHARE = (0.0, 0.01)
"""Limits of lost records. Any loss gives a warning; over 1%, p99 may be among the lost ones."""
HELD_BACK_SHARE = (0.0, 0.01)
"""Limits of the time in which load was paused. Any pause gives a warning; over 1%, p99 may be that
of responses that were not read in time."""
IMPOSSIBLE_SHARE = (0.001, 0.01)
"""Limits of responses that precede their requests, which means that the clock was set."""
ERROR_SHARE = (0.01, 0.10)
"""Limits of failed requests. At 1%, the remaining successes may be the fast ones, and failures
determine p99. At 10%, the server did not carry the requested load (as in `LOAD_SHORTFALL`),
and a failed request costs it less than a completed one, so the latencies are those of another
benchmark. A larger error budget in the config raises the second limit, since failures are then part
of the measurement."""
UNCOUNTED_SHARE = 0.01
"""Limit of completed requests with unknown tokens, which are missing from sums and rates of
tokens."""
IMPOSSIBLE_TOKENS_SHARE = (0.01, 0.50)
"""Limits of responses with an impossible token count. At 1%, they determine p99 of the times
between tokens; if most are of this kind, no token metric was measured."""
TOKENS_APART = 0.10
"""Limit of the difference between the token counts of client and server. All token rates differ by
as much. If the server cut the prompts, another load was measured, and the run is invalid."""
WORDS_APART = 0.50
"""The same limit for synthetic prompts without a client-side tokenizer. They consist of that many
common words, and a word has at least one token."""
LONGER_PROMPTS = (
    "raise the server's limit for prompts (its context length, or a truncation setting), or send "
    "shorter prompts (dataset.input_tokens)"
)
OTHER_TOKENIZER = (
    "set the model's tokenizer (tokenizer.name), or use the server's counts "
    "(endpoint.use_server_token_count: true, --use-server-token-count)"
)
ADDED_PROMPT = (
    "check whether the server, or a gateway in front of it, adds its own prompt; with the model's "
    "tokenizer (tokenizer.name), prompts have the requested lengths"
)
CENSORED_SHARE = 0.01
"""Limit of requests that were cut before their responses ended. The `intended_*` metrics include
them."""
TARGET_AWAY = (
    "most of the failed requests did not reach the target: check its address, and whether it ran "
    "during the whole load (log, restarts, memory)"
)
WRONG_KEY = "set the server's API key (--api-key), or check its permissions"
WRONG_PATH = "the server has no such path or model: check --url, --endpoint and --model"
STATUS_REMEDIES = {
    401: WRONG_KEY,
    403: WRONG_KEY,
    404: WRONG_PATH,
    405: WRONG_PATH,
    429: "the server limits the rate: lower the load, or raise its limit",
}
"""Remedy if most errors have this HTTP status."""
EARLY_END = "early_end"
"""Name of the check that fails if the load ended early."""


def _successes(e: Evidence) -> Reason:
    due = e.due
    text = f"{e.totals.completed:,} of {due:,} requests succeeded"
    remedy = STATUS_REMEDIES.get(
        e.error_status, "check the errors, the server, its URL, the model and the key"
    )
    if e.failure and not e.totals.completed:
        text = "no request succeeded before the run failed"
    elif not due:
        text = "no request was due before the end: nothing was measured"
        remedy = "run for longer (load.duration, load.requests), or raise the load"
    elif e.totals.abandoned and not e.totals.errored:
        text += f": {e.totals.abandoned:,} clients disconnected before their responses ended"
        remedy = "lower load.cancellation.rate, or raise load.cancellation.delay"
    elif not e.requests:
        text = f"none of the {due:,} due requests was sent"
        remedy = FASTER_CONNECTIONS if e.connecting else MORE_WORKERS
        if e.connecting:
            text += f"; {e.connecting:,} still waited for a connection at the stop"
    elif not e.totals.errored:
        remedy = (
            "the server accepted requests but did not respond in time: check its log and its load, "
            "or run for longer"
        )
    return expect_none(
        "successes",
        0.0 if e.totals.completed else float(max(1, due)),
        unit="without success" if due else "",
        text=text,
        remedy=remedy,
    )


def _concurrency(e: Evidence) -> Reason | None:
    if e.held_ratio is None:
        return None
    text = f"{e.held_ratio:.1%} of the {e.concurrency or 0:,} requested users were active"
    if e.prefill_concurrency is not None:
        text = (
            f"the {e.prefill_concurrency:,} prefill slots were unused for {1.0 - e.held_ratio:.1%} "
            "of the time while users waited for one"
        )
    return graded(
        "concurrency",
        1.0 - e.held_ratio,
        LOAD_SHORTFALL,
        text=f"{text} between the end of the ramp and the stop",
        remedy=MORE_WORKERS,
    )


def caps_below_rate(e: Evidence, least: float) -> str:
    """Return the keys of the caps that explain a shortfall of the rate above `least`: at least half
    as many requests waited for them as are missing. Empty if none do."""
    shortfall = 1.0 - (1.0 if e.rate_ratio is None else e.rate_ratio)
    if shortfall <= least or e.share(e.capped) < shortfall / 2:
        return ""
    caps = {"concurrency": e.concurrency, "prefill_concurrency": e.prefill_concurrency}
    return " or ".join(f"load.{name}" for name, cap in caps.items() if cap is not None)


def _rate(e: Evidence) -> Reason | None:
    if e.rate_ratio is None:
        return None
    text = f"sent or tried to send {e.rate_ratio:.1%} of the scheduled rate"
    caps = caps_below_rate(e, RATE_SHORTFALL[0])
    return graded(
        "rate",
        1.0 - e.rate_ratio,
        RATE_SHORTFALL,
        text=f"{text}: {caps} held requests back" if caps else text,
        remedy=f"raise {caps}, or lower the rate" if caps else MORE_WORKERS,
    )


def _arrivals(e: Evidence) -> Reason | None:
    if e.arrivals_ratio is None:
        return None
    tolerance = e.arrivals_tolerance
    return graded(
        "arrivals",
        abs(1.0 - e.arrivals_ratio),
        (RATE_SHORTFALL[0] + tolerance, RATE_SHORTFALL[1] + tolerance),
        text=f"the schedule had {e.arrivals_ratio:.1%} of the arrivals expected at the requested "
        f"rate (chance explains a difference of {tolerance:.1%})",
        remedy="the timing manager could not keep up: give its process its own core",
    )


def _connecting(e: Evidence) -> Reason | None:
    if not e.is_open_loop:
        return None
    took = f"a connection takes {significant(e.connect_ms, 3)} ms to open (median)"
    return graded(
        "connecting",
        e.share(e.connecting),
        UNSENT_SHARE[0],
        text=f"{counted(e.connecting, 'request', 'was')} not sent but still waiting for a "
        f"connection at the stop: {took if e.connect_ms else 'none was opened'}",
        remedy=FASTER_CONNECTIONS,
    )


def _stamp_uncertainty(e: Evidence) -> Reason | None:
    if not e.bounds:
        return None
    worst = max(e.bounds, key=lambda bound: bound.uncertain_share)
    return graded(
        "stamp_uncertainty",
        worst.uncertain_share,
        LATENCY_SHIFT,
        text=f"the true {worst.stat} of {worst.metric} may be as low as "
        f"{significant(worst.lowest_ms, 3)} ms instead of {significant(worst.measured_ms, 3)} ms, "
        "because of merged reads and slow writes",
        remedy=MORE_WORKERS,
    )


def _schedule_lag(e: Evidence) -> Reason | None:
    headline = e.headline_bounds
    if not headline:
        return None
    worst = max(headline, key=lambda bound: bound.lag_share)
    return graded(
        "schedule_lag",
        worst.lag_share,
        LATENCY_SHIFT,
        text=f"the client's lateness moves the {worst.stat} of {worst.metric} from "
        f"{significant(worst.measured_ms, 3)} to {significant(worst.with_lag_ms, 3)} ms when "
        "measured from the due time",
        remedy=MORE_WORKERS,
    )


def _events(e: Evidence) -> Reason | None:
    if not e.events:
        return None
    problems = [
        f"number {number} ({do}): {problem}"
        for number, (do, problem) in enumerate(e.events, start=1)
        if problem
    ]
    return expect_none(
        "events",
        len(problems),
        unit="events",
        text=f"not verified: {'; '.join(problems)}" if problems else "every event was verified",
        remedy="the run does not show the effect of the event: fix the named problem and run again",
    )


def _errors(e: Evidence) -> Reason:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in e.errors[:3])
    return graded(
        "errors",
        e.share(e.totals.errored),
        (ERROR_SHARE[0], max(ERROR_SHARE[1], e.error_budget)),
        text=f"{e.totals.errored:,} of {e.requests:,} requests failed"
        + (f" ({kinds})" if kinds else "")
        + ("; latencies cover only the others" if e.totals.completed else ""),
        remedy=TARGET_AWAY
        if 2 * e.totals.unreachable > e.totals.errored
        else STATUS_REMEDIES.get(
            e.error_status,
            "check the errors; lower the load if the server refuses requests or times out",
        ),
    )


def _token_counts(e: Evidence) -> Reason:
    if e.uncounted:
        return note(
            "token_counts",
            f"not measured: {e.uncounted}. No response reports usage, and no tokenizer is set: set "
            "one (tokenizer.name, --tokenizer), or make the server report usage",
        )
    return graded(
        "token_counts",
        e.share_of_completed(e.totals.without_tokens),
        UNCOUNTED_SHARE,
        text=f"{e.totals.without_tokens:,} of {e.totals.completed:,} completed requests have no "
        "token count: token throughputs and sums of tokens exclude them",
        remedy="set a tokenizer (tokenizer.name), so the client counts them, or make the server "
        "report usage in every response",
    )


def _token_bytes(e: Evidence) -> Reason:
    # Without a stream no time depends on the number of tokens.
    limits = IMPOSSIBLE_TOKENS_SHARE if e.totals.is_streaming else IMPOSSIBLE_TOKENS_SHARE[0]
    return graded(
        "token_bytes",
        e.share_of_completed(e.totals.impossible_tokens),
        limits,
        text=f"{e.totals.impossible_tokens:,} of {e.totals.completed:,} responses have no token "
        "for their text, or more tokens than bytes: output lengths, token rates and times between "
        "tokens are wrong",
        remedy="the server's usage is wrong: set a tokenizer (tokenizer.name), so the client "
        "counts tokens, or use only the time to first token and the request latency",
    )


def _output_tokens(e: Evidence) -> Reason | None:
    found = e.tokens.output
    if not found.requests:
        return None
    return graded(
        "output_tokens",
        found.difference,
        TOKENS_APART,
        text=f"the tokenizer {e.tokenizer} and the server disagree on the output tokens of "
        f"{found.apart:,} of {found.requests:,} responses: {found.client:,.0f} by the tokenizer, "
        f"{found.server:,.0f} by the server. Output lengths, token rates and times between tokens "
        "use the tokenizer's counts",
        remedy=OTHER_TOKENIZER,
    )


def _asked_input_tokens(e: Evidence) -> Reason | None:
    """Judge the server's counts of prompts that were not counted by a client-side tokenizer."""
    usual, stated = e.requested_input_tokens, e.stated_input_tokens
    if not usual or not stated:
        return None
    apart, is_longer = 0.0, 0 < e.longest_input_tokens < stated - e.requested_tolerance
    if is_longer:
        apart = 1.0 - e.longest_input_tokens / stated
    elif stated < usual - e.requested_tolerance:
        apart = 1.0 - stated / usual
    why = "it uses another tokenizer, or adds its own prompt" if is_longer else "it truncated them"
    return graded(
        "input_tokens",
        apart,
        WORDS_APART,
        text=f"the server counts {stated:,.0f} input tokens on average in prompts of about "
        f"{usual:,.0f}" + (f": {why}" if apart > WORDS_APART else ""),
        remedy=ADDED_PROMPT if is_longer else LONGER_PROMPTS,
    )


def _input_tokens(e: Evidence) -> Reason | None:
    found, longer = e.tokens.input, e.tokens.longer
    if not found.requests:
        return _asked_input_tokens(e)
    if longer.difference > max(TOKENS_APART, found.difference):
        return graded(
            "input_tokens",
            longer.difference,
            TOKENS_APART,
            text=f"the server counts {longer.server:,.0f} input tokens in {longer.apart:,} of "
            f"{longer.requests:,} prompts that have {longer.client:,.0f} by the tokenizer "
            f"{e.tokenizer}: it uses another tokenizer, or adds its own prompt, since a chat "
            f"template adds at most {TEMPLATE_TOKENS} tokens. Input lengths use the tokenizer's "
            "counts",
            remedy=OTHER_TOKENIZER,
        )
    counts = (
        f"it counts {found.server:,.0f} input tokens in {found.apart:,} of {found.requests:,} "
        f"prompts that have {found.client:,.0f} by the tokenizer {e.tokenizer}"
    )
    limit = f"{e.tokens.input_limit:,} tokens"
    if e.tokens.has_common_limit:
        counts += f", and {limit} in {e.tokens.at_limit:,} of these"
    if e.tokens.is_cut:
        return graded(
            "input_tokens",
            found.difference,
            (TOKENS_APART, TOKENS_APART),
            text=f"the server truncated the prompts: {counts}",
            remedy=LONGER_PROMPTS,
        )
    maybe_cut = f", or truncated the prompts at {limit}" if e.tokens.has_common_limit else ""
    return graded(
        "input_tokens",
        found.difference,
        TOKENS_APART,
        text=f"the server uses another tokenizer{maybe_cut}: {counts}"
        if found.apart
        else "the server counts no fewer input tokens than the client",
        remedy=f"{OTHER_TOKENIZER}; check whether the server truncates prompts",
    )


def _cached_counts(e: Evidence) -> Reason | None:
    known, prompts = e.totals.with_cached, e.totals.with_prompt
    if not 0 < known < prompts:
        return None
    return note(
        "cached_counts",
        f"{prompts - known:,} of {prompts:,} responses report no cached tokens, so Cached Token "
        "Share covers only the others. If the server reports only counts above 0, like older "
        "versions of vLLM, Overall Usage Prompt Cache Read % is the share of all",
    )


EFFECT_CHECKS: tuple[Callable[[Evidence], Reason | None], ...] = (
    lambda e: run_ended(e.failure),
    Check(
        EARLY_END,
        lambda e: 1.0 if e.early_end else None,
        (0.0, 0.0),
        unit="runs",
        text=lambda e: f"ended early: {e.early_end}",
        remedy="this is not a measurement of the load: run it without a search",
    ),
    _events,
    _successes,
    Check(
        "accounts",
        lambda e: float(len(e.accounts.violations)),
        (0.0, 0.0),
        unit="violations",
        text=lambda e: (
            "; ".join(e.accounts.violations[:3])
            or "every credit and every request is accounted for"
        ),
        remedy="this is a defect of the tool or a lost process: keep the logs and report it",
    ),
    Check(
        "lost_processes",
        lambda e: float(len(e.lost_services)),
        0.0,
        unit="processes",
        text=lambda e: (
            f"lost during the run: {', '.join(e.lost_services)}"
            if e.lost_services
            else "no process was lost"
        ),
        remedy="check for the out-of-memory killer and evictions, and read the log of the lost "
        "process",
    ),
    Check(
        "records",
        lambda e: e.share(e.accounts.records_lost),
        RECORDS_LOST_SHARE,
        text=lambda e: (
            f"{e.accounts.records_lost:,} of {e.requests:,} metric records never arrived"
        ),
        remedy="use more record processors (workers.record_processors), or find out why one was "
        "lost",
    ),
    Check(
        "held_back",
        lambda e: e.held_back_share,
        HELD_BACK_SHARE,
        text=lambda e: (
            f"a worker neither sent requests nor read responses for {e.held_back_share:.2%} of the "
            "time, because too many records waited for its record processor"
        ),
        remedy="use more record processors (workers.record_processors), shorter responses or less "
        "load; a server that never ends a response has the same effect",
    ),
    _concurrency,
    _rate,
    _arrivals,
    Check(
        "unsent",
        lambda e: e.share(e.accounts.unsent - e.connecting) if e.is_open_loop else None,
        UNSENT_SHARE,
        text=lambda e: (
            f"{counted(e.accounts.unsent - e.connecting, 'request', 'was')} due but not sent "
            "before the stop"
        ),
        remedy=MORE_WORKERS,
    ),
    _connecting,
    _stamp_uncertainty,
    _schedule_lag,
    _errors,
    Check(
        "censored",
        lambda e: e.share(e.totals.cancelled + e.totals.timed_out + e.accounts.unsent),
        CENSORED_SHARE,
        text=lambda e: (
            f"{e.totals.cancelled:,} cancelled, {e.totals.timed_out:,} timed out, "
            f"{e.accounts.unsent:,} unsent: plain latencies exclude them, intended_* metrics "
            "include them"
        ),
        remedy="set a longer grace_period or request_timeout, or use only the intended_* metrics",
    ),
    _token_counts,
    _token_bytes,
    _output_tokens,
    _input_tokens,
    Check(
        "cached_tokens",
        lambda e: e.share(e.totals.cached_above_prompt) if e.totals.cached_above_prompt else None,
        0.0,
        text=lambda e: (
            "the server reports more cached tokens than prompt tokens in "
            f"{e.totals.cached_above_prompt:,} responses, which shares of cached tokens exclude"
        ),
        remedy="inspect `usage` in a response: in all known APIs, cached tokens are part of the "
        "prompt tokens",
    ),
    _cached_counts,
    Check(
        "usage_twice",
        lambda e: e.share(e.totals.usage_contradictions) if e.totals.usage_contradictions else None,
        0.0,
        text=lambda e: (
            "the server reports the prompt tokens twice, with different numbers, in "
            f"{e.totals.usage_contradictions:,} responses; the last number is used, and the cached "
            "tokens count as unknown"
        ),
        remedy="inspect the events with `usage` in a stream of the server, or of the gateway in "
        "front of it",
    ),
    Check(
        "time_order",
        lambda e: e.share(e.totals.impossible),
        IMPOSSIBLE_SHARE,
        text=lambda e: (
            f"by the clock, {count(e.totals.impossible, 'request')} got a response before the send"
        ),
        remedy="let the clock settle, or slew it instead of stepping it, before a run",
    ),
)
