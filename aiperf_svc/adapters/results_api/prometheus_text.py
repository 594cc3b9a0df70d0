"""Formats a run's status as Prometheus text, version 0.0.4."""

from aiperf_svc.adapters.results_api.status import Status

_PREFIX = "aiperf_"


def render_metrics(status: Status) -> str:
    """Format one gauge or counter per line, each with its help; absent values are left out."""
    phase = f'{{phase="{status.phase}"}}'
    state = f'{{state="{status.state}"}}'
    counter, gauge = "counter", "gauge"
    samples: list[tuple[str, str, str, str, float | None]] = [
        ("run_state", gauge, "1 for the state that the run is in.", state, 1),
        ("run_elapsed_seconds", gauge, "Time since the start.", "", status.elapsed_s),
        ("phase_elapsed_seconds", gauge, "Time in the state.", phase, status.phase_elapsed_s),
        ("requests_completed_total", counter, "Good responses.", phase, status.completed),
        ("requests_errored_total", counter, "Bad responses or none.", phase, status.errored),
        ("requests_cancelled_total", counter, "Cut by the end.", phase, status.cancelled),
        (
            "requests_in_flight",
            gauge,
            "Written, without a whole response yet.",
            phase,
            status.in_flight,
        ),
        ("requests_per_second", gauge, "Over the last seconds.", phase, status.requests_per_s),
        ("ttft_p50_seconds", gauge, "Recent median.", phase, _seconds(status.ttft_p50_ms)),
        ("ttft_p99_seconds", gauge, "Recent 99th percentile.", phase, _seconds(status.ttft_p99_ms)),
        ("latency_p50_seconds", gauge, "Recent median.", phase, _seconds(status.latency_p50_ms)),
        ("workers", gauge, "Registered workers.", "", status.workers),
        ("workers_lost", gauge, "Workers declared lost.", "", status.workers_lost),
        ("record_processors", gauge, "Registered processors.", "", status.record_processors),
        ("results_ready", gauge, "1 when the summary is there.", "", int(status.results_ready)),
    ]
    lines: list[str] = []
    for name, kind, text, labels, value in samples:
        if value is not None:
            lines.append(f"# HELP {_PREFIX}{name} {text}")
            lines.append(f"# TYPE {_PREFIX}{name} {kind}")
            lines.append(f"{_PREFIX}{name}{labels} {value:.17g}")
    if status.finish_reasons:
        name = f"{_PREFIX}finish_reasons_total"
        lines.append(f"# HELP {name} Requests of the profiling phase by finish reason.")
        lines.append(f"# TYPE {name} counter")
        lines += [f'{name}{{reason="{r}"}} {n}' for r, n in sorted(status.finish_reasons.items())]
    return "\n".join(lines) + "\n"


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3
