"""Made-up outcomes of trials."""

from typing import Any

from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.trials import Trial


def summary_of(
    *, throughput: float, ttft: float | None = None, verdict: str = "valid", **more: Any
) -> dict[str, Any]:
    """Content of profile_export_aiperf.json with a few metrics."""
    latency = {"time_to_first_token": {"unit": "ms", "avg": ttft, "p99": ttft, "count": 10}}
    return {
        "schema_version": "1.4",
        "benchmark_id": "abc",
        "request_throughput": {"unit": "requests/sec", "avg": throughput},
        **(latency if ttft is not None else {}),
        "aiperf_svc": {"verdict": verdict, "cause": more.pop("cause", ""), "slo": []},
        **more,
    }


def outcome(
    number: int,
    parameters: dict[str, Any],
    *,
    repetition: int = 1,
    state: str = "done",
    reason: str = "",
    **numbers: Any,
) -> TrialOutcome:
    """A trial with these numbers; without any, nothing was measured."""
    trial = Trial(number, parameters, repetition)
    return TrialOutcome(trial, state, reason, summary_of(**numbers) if numbers else None)


def sweep(
    points: dict[int, tuple[float, float]], *, repetitions: int = 1, step: float = 0.0
) -> list[TrialOutcome]:
    """Trials by concurrency, with throughput and TTFT; each repetition has `step` more of both."""
    return [
        outcome(
            repetition * len(points) + place + 1,
            {"load.concurrency": concurrency},
            repetition=repetition + 1,
            throughput=throughput + repetition * step,
            ttft=ttft + repetition * step,
        )
        for repetition in range(repetitions)
        for place, (concurrency, (throughput, ttft)) in enumerate(points.items())
    ]
