"""Renders a run's status as samples for scrapers and as Prometheus text, version 0.0.4."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from aiperf_svc.adapters.results_api.status import ExperimentStatus, Status, StepStatus
from aiperf_svc.core.verdict.health_log import ClientLoad

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "aiperf_"


_Value = tuple[str, str, dict[str, str], float | None]
"""Name without prefix, help, labels and value."""


class Sample(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    text: str
    labels: dict[str, str]
    value: float


def samples(status: Status) -> Iterator[Sample]:
    """Yield all values of a status; absent ones are left out."""
    phase, state = {"phase": status.phase}, {"state": status.state}
    values: list[_Value] = [
        ("run_state", "1 for the current state of the run.", state, 1),
        ("run_elapsed_seconds", "Time since the start of the run.", {}, status.elapsed_s),
        ("phase_elapsed_seconds", "Time in the current state.", phase, status.phase_elapsed_s),
        ("credits_granted_total", "Conversations granted.", phase, status.credits_granted),
        ("requests_sent_total", "Requests written to a socket.", phase, status.requests_sent),
        ("requests_completed_total", "Successful requests.", phase, status.completed),
        ("requests_errored_total", "Failed requests.", phase, status.errored),
        ("requests_cancelled_total", "Requests cancelled at the end.", phase, status.cancelled),
        (
            "requests_abandoned_total",
            "Requests whose clients disconnected.",
            phase,
            status.abandoned,
        ),
        ("requests_unsent_total", "Requests due but never sent.", phase, status.unsent),
        (
            "requests_retried_total",
            "Requests retried on another connection.",
            phase,
            status.retries,
        ),
        (
            "requests_in_flight",
            "Requests without a complete response yet.",
            phase,
            status.in_flight,
        ),
        (
            "server_requests_running",
            "Running requests according to the server.",
            phase,
            status.server_running,
        ),
        (
            "server_requests_waiting",
            "Waiting requests according to the server.",
            phase,
            status.server_waiting,
        ),
        (
            "server_kv_cache_ratio",
            "KV cache usage of the fullest server.",
            phase,
            status.server_kv_usage,
        ),
        ("requests_per_second", "Rate over the last seconds.", phase, status.requests_per_s),
        (
            "schedule_lag_p50_seconds",
            "From due time to start, recent median.",
            phase,
            _seconds(status.schedule_lag_p50_ms),
        ),
        (
            "schedule_lag_p99_seconds",
            "From due time to start, recent 99th percentile.",
            phase,
            _seconds(status.schedule_lag_p99_ms),
        ),
        ("ttft_p50_seconds", "Recent median.", phase, _seconds(status.ttft_p50_ms)),
        ("ttft_p99_seconds", "Recent 99th percentile.", phase, _seconds(status.ttft_p99_ms)),
        ("latency_p50_seconds", "Recent median.", phase, _seconds(status.latency_p50_ms)),
        (
            "latency_p99_seconds",
            "Recent 99th percentile.",
            phase,
            _seconds(status.latency_p99_ms),
        ),
        ("workers", "Registered workers.", {}, status.workers),
        ("workers_lost", "Workers declared lost.", {}, status.workers_lost),
        ("record_processors", "Registered processors.", {}, status.record_processors),
        ("results_ready", "1 if the results are available.", {}, int(status.results_ready)),
        *_of_client(status.client),
        *_of_steps(status.steps),
        *_of_experiment(status.experiment),
    ]
    for name, text, labels, value in values:
        if value is not None:
            kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
            yield Sample(_PREFIX + name, kind, text, labels, value)
    name, text = "finish_reasons_total", "Requests of the profiling phase by finish reason."
    for reason, count in sorted(status.finish_reasons.items()):
        yield Sample(_PREFIX + name, "counter", text, {"reason": reason}, count)


def _of_client(client: ClientLoad | None) -> Iterator[_Value]:
    if client is None:
        return
    for name, text, label, values in (
        ("service_cpu_ratio", "Cores used by the busiest one.", "service", client.cpu_cores),
        ("service_loop_lag_seconds", "Largest event-loop delay.", "service", client.loop_lag_s),
        ("node_cpu_lost_ratio", "Time without the CPU, by cause.", "cause", client.cpu_lost),
    ):
        for which, value in sorted(values.items()):
            yield name, text, {label: which}, value


def _of_steps(steps: StepStatus | None) -> Iterator[_Value]:
    if steps is None:
        return
    labels = {"workload": steps.workload}
    yield "steps_planned", "Steps of the run.", labels, steps.total
    yield "steps_ended_total", "Steps that ended, failed ones included.", labels, steps.ended
    yield "steps_failed_total", "Steps that failed.", labels, steps.failed


def _of_experiment(experiment: ExperimentStatus | None) -> Iterator[_Value]:
    if experiment is None:
        return
    yield "trials_planned", "Trials of the experiment; 0 if unknown.", {}, experiment.total
    yield "trials_ended_total", "Trials that ended, failed ones included.", {}, experiment.ended
    yield "trials_failed_total", "Trials that failed.", {}, experiment.failed


def render_metrics(status: Status) -> str:
    """Format one value per line, with a help line for each family."""
    lines: list[str] = []
    last = ""
    for name, kind, text, labels, value in samples(status):
        if name != last:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            last = name
        inner = ",".join(f'{key}="{label}"' for key, label in labels.items())
        lines.append(f"{name}{f'{{{inner}}}' if inner else ''} {value:.17g}")
    return "\n".join(lines) + "\n"


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3
