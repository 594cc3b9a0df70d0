"""Checks of possible causes of wrong numbers: CPU, quota, event loop, clock, local limits. A cause
without an effect is a warning, so these checks report at most *degraded*. The exceptions are
requests that the client had no resources to send, runs in which most responses have no content, and
responses that are mistaken for those of the next requests of busy users."""

from collections.abc import Callable, Sequence

from aiperf_svc.core.endpoints.history import Defect
from aiperf_svc.core.verdict.check_result import MORE_WORKERS, Reason, graded
from aiperf_svc.core.verdict.effect_checks import LATENCY_SHIFT
from aiperf_svc.core.verdict.health_log import BUSY_CPU_FRACTION, Health
from aiperf_svc.core.verdict.inputs import Check, Evidence
from aiperf_svc.domain.number_text import count, counted, significant

NO_RESOURCES_SHARE = (0.0, 0.01)
CAPPED_SHARE = 0.01
"""Limit of requests that waited for a cap, which only `intended_*` latencies include. From 1% on,
their waits determine p99."""
UNSTAMPED_SHARE = 0.01
CLOCK_JUMP_SHARE = (0.01, 0.05)
BUSY_SAMPLES_SHARE = 0.10
"""Limit of the share of seconds in which a worker was busy. One busy second at the start is
preparation; one in ten is load."""
MIN_HEALTH_SAMPLES = 3
RETRIED_SHARE = 0.001
"""Limit of retried requests. Servers close idle connections all the time; one request in a thousand
moves p99.9 at most."""
UNASKED_SHARE = (0.001, 0.01)
"""Limits of connections with unexpected bytes. The second limit is for closed loops, where the next
request follows at once and bytes that arrive a moment later are mistaken for its response. Only
earlier bytes are detected, so all other records are doubtful."""
HISTORIES_SHARE = 0.01
THROTTLED_SHARE = 0.01
STOLEN_SHARE = 0.05
"""Limit of stolen CPU time. Hosts constantly take one or two percent in short pieces; other checks
judge the effects."""
WAITED_SHARE = 0.01
"""Share of the time in a run queue from which a lack of CPU explains the client's lateness: one
request in a hundred waited then, which is p99."""
LOOP_LAG_MS = 100.0
"""Limit of the median over each second's longest event-loop delay: four frames of a 100,000-stream
worker, and far more than a garbage collection."""
FD_SHARE = 0.95
UNUSUAL_REASONS = ("content_filter", "no_content", "other")
"""Finish reasons of completed responses that are shorter than requested."""
UNUSUAL_REASONS_SHARE = (0.01, 0.50)
"""Limits of their share. At 1% or more they determine p99; if most responses are of this kind,
nothing was measured."""
OSL_OFF_SHARE = 0.05
"""Limit of the share of output lengths that differ. Beyond it, throughput and latency are those of
another output length."""


def _unstamped(e: Evidence) -> Reason:
    share = e.share(e.totals.unstamped)
    headline = max((bound.measured_ms for bound in e.headline_bounds), default=0.0)
    is_harmless = share < 1 and e.receive_lag_ms <= LATENCY_SHIFT[0] * headline
    return graded(
        "unstamped",
        0.0 if is_harmless else share,
        UNSTAMPED_SHARE,
        text=f"{share:.1%} of requests had a read without a kernel stamp; the client handled "
        f"reads within {significant(e.receive_lag_ms, 3)} ms (p99)",
        remedy="run the client on Linux, whose kernel stamps received data",
    )


def is_busy(processes: Sequence[Health]) -> bool:
    """Return whether any of these processes was overloaded."""
    return any(
        health.busy_share > BUSY_SAMPLES_SHARE or health.loop_lag_p50_ms > LOOP_LAG_MS
        for health in _watched(processes)
    )


def lacks_cpu(workers: Sequence[Health]) -> bool | None:
    """Return whether any worker had less CPU than it needed; None if the run was too
    short."""
    watched = _watched(workers)
    if not watched:
        return None
    return is_busy(watched) or any(
        health.waited_share > WAITED_SHARE
        or health.throttled_share > THROTTLED_SHARE
        or health.stolen_share > STOLEN_SHARE
        for health in watched
    )


def _watched(workers: Sequence[Health]) -> list[Health]:
    return [health for health in workers if health.samples >= MIN_HEALTH_SAMPLES]


def _clock_uncertainty(e: Evidence) -> Reason | None:
    if not e.is_open_loop or not e.headline_bounds:
        return None
    usual = min(bound.measured_ms for bound in e.headline_bounds)
    return graded(
        "clock_uncertainty",
        e.clock_uncertainty_ms / usual if usual > 0 else 0.0,
        LATENCY_SHIFT[0],
        text="workers know the timing manager's clock only to within "
        f"{significant(e.clock_uncertainty_ms, 3)} ms, which is the possible error of due times",
        remedy="synchronise the nodes' clocks (chrony, PTP), or use only the plain latencies",
    )


def _unasked_bytes(e: Evidence) -> Reason:
    return graded(
        "unasked_bytes",
        e.share(e.unasked),
        UNASKED_SHARE[0] if e.is_open_loop else UNASKED_SHARE,
        text=f"{e.unasked:,} connections carried unsolicited bytes; such bytes are mistaken for a "
        "response if they arrive after the next request",
        remedy="find out why the server sends more than one response to a request; "
        "endpoint.connections: per-request keeps responses with their requests",
    )


def _finish_reasons(e: Evidence) -> Reason | None:
    if not e.finish_reasons:
        return None
    counts = {name: e.finish_reasons.get(name, 0) for name in UNUSUAL_REASONS}
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return graded(
        "finish_reasons",
        e.share_of_completed(sum(counts.values())),
        UNUSUAL_REASONS_SHARE,
        text=f"responses with an unusual finish reason: {shown}",
        remedy="inspect such a response: other prompts, or a longer output, avoid content filters "
        "and empty responses",
    )


def _output_length(e: Evidence) -> Reason | None:
    totals = e.totals
    if not totals.osl_known or not e.is_length_forced:
        return None
    ratio = totals.osl_generated / totals.osl_requested if totals.osl_requested else 1.0
    return graded(
        "output_length",
        totals.osl_off / totals.osl_known,
        OSL_OFF_SHARE,
        text=f"{totals.osl_off:,} of {totals.osl_known:,} responses do not have the requested "
        f"output length; the total is {ratio:.1%} of the requested tokens",
        remedy="the server does not honour ignore_eos and min_tokens; if the length is only a "
        "maximum, set endpoint.force_output_length: false",
    )


def _worst_worker(
    check: str,
    figure: Callable[[Health], float],
    limit: float,
    *,
    text: Callable[[Health], str],
    remedy: str,
    unit: str = "ratio",
    min_samples: int = MIN_HEALTH_SAMPLES,
) -> Callable[[Evidence], Reason | None]:
    """Return the check of one value, for the worker with the highest one."""

    def graded_worst(e: Evidence) -> Reason | None:
        watched = [health for health in e.workers if health.samples >= min_samples]
        if not watched:
            return None
        worst = max(watched, key=figure)
        return graded(check, figure(worst), limit, text=text(worst), remedy=remedy, unit=unit)

    return graded_worst


def _history_defects(e: Evidence) -> str:
    found = [
        f"{count:,} {defect.text}"
        for defect, count in zip(Defect, e.history_defects, strict=False)
        if count
    ]
    if not found:
        return "all responses of conversations could be sent back unchanged"
    return f"responses in histories: {', '.join(found)}"


CAUSE_CHECKS: tuple[Callable[[Evidence], Reason | None], ...] = (
    _unstamped,
    Check(
        "local_limits",
        lambda e: e.share(e.totals.no_resources),
        NO_RESOURCES_SHARE,
        text=lambda e: (
            "the client had no free file descriptor or local port for "
            f"{count(e.totals.no_resources, 'request')}"
        ),
        remedy="raise ulimit -n, use more workers, or add endpoint.source_addresses",
    ),
    _worst_worker(
        "file_descriptors",
        lambda worker: worker.fd_share,
        FD_SHARE,
        text=lambda worker: f"{worker.id} used {worker.fd_share:.0%} of its file descriptors",
        remedy="raise ulimit -n or use more workers",
        min_samples=0,
    ),
    Check(
        "capped",
        lambda e: e.share(e.capped) if e.is_open_loop else None,
        CAPPED_SHARE,
        text=lambda e: (
            f"{count(e.capped, 'request')} waited for the concurrency cap or the connection limit"
        ),
        remedy="raise or remove load.concurrency; without it, raise ulimit -n or add workers",
    ),
    Check(
        "retries",
        lambda e: e.share(e.accounts.retries),
        RETRIED_SHARE,
        text=lambda e: (
            f"{counted(e.accounts.retries, 'request', 'was')} sent again on a new connection, "
            "because the server closed the reused one before they arrived"
        ),
        remedy="raise the server's keep-alive timeout, or set endpoint.connections: per-request",
    ),
    _unasked_bytes,
    _worst_worker(
        "cpu",
        lambda worker: worker.busy_share,
        BUSY_SAMPLES_SHARE,
        text=lambda worker: (
            f"{worker.id} used over {BUSY_CPU_FRACTION:.0%} of a core in {worker.busy_share:.0%} "
            f"of its samples ({worker.cpu_mean:.0%} on average)"
        ),
        remedy=MORE_WORKERS,
    ),
    _worst_worker(
        "throttling",
        lambda worker: worker.throttled_share,
        THROTTLED_SHARE,
        text=lambda worker: (
            f"the CPU quota throttled {worker.id} for {worker.throttled_share:.1%} of the time"
        ),
        remedy="raise or remove the CPU limit of the client's container",
    ),
    _worst_worker(
        "stolen",
        lambda worker: worker.stolen_share,
        STOLEN_SHARE,
        text=lambda worker: (
            f"the host stole {worker.stolen_share:.1%} of the CPU time of {worker.id}'s machine"
        ),
        remedy="run the client on a machine with dedicated cores (not burstable or shared)",
    ),
    _worst_worker(
        "event_loop",
        lambda worker: worker.loop_lag_p50_ms,
        LOOP_LAG_MS,
        unit="ms",
        text=lambda worker: (
            f"the event loop of {worker.id} was delayed by up to "
            f"{significant(worker.loop_lag_p50_ms, 3)} ms in a typical second, "
            f"{significant(worker.loop_lag_max_ms, 3)} ms at most"
        ),
        remedy=MORE_WORKERS,
    ),
    _clock_uncertainty,
    Check(
        "clock_jumps",
        lambda e: max(e.share(e.clock_jumps), e.clock_step_share),
        CLOCK_JUMP_SHARE,
        text=lambda e: (
            f"the clock jumped by over 1 ms during {count(e.clock_jumps, 'request')}, in total by "
            f"{e.clock_step_share:.2%} of the load's time"
        ),
        remedy="let the clock settle, or slew it instead of stepping it, before a run",
    ),
    _finish_reasons,
    _output_length,
    Check(
        "histories",
        lambda e: e.share(sum(e.history_defects)),
        HISTORIES_SHARE,
        text=_history_defects,
        remedy="check the server's tool parser and the model's tool calls; a server may refuse "
        "the next request of such a conversation",
    ),
)
