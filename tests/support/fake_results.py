"""Fake results of runs and experiments."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aiperf_svc.adapters.exports import result_files
from aiperf_svc.core.experiments.experiment_result import ExperimentResult, TrialResult
from aiperf_svc.core.results.inference_result import ErrorCount, ErrorDetails, InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Severity, graded

DATASET = {
    "kind": "synthetic",
    "source": "synthetic",
    "source_sha256": None,
    "sha256": None,
    "entries": 100,
    "distinct_entries": 100,
    "turns": 100,
    "left_out": 0,
    "bytes": None,
    "tokenizer": None,
    "input_tokens": None,
    "output_tokens": None,
    "warmup_entries": 0,
}
"""The description of a dataset as stored in a file."""


def avg_of(metrics: Mapping[str, MetricStats], tag: str) -> float:
    """Return the average of a metric. Fails if the metric has none."""
    found = metrics[tag].stat("avg")
    assert found is not None
    return found


def inference_result(
    requests: int = 10,
    verdict: str = "valid",
    slo: tuple[bool | ObjectiveResult, ...] = (),
    **fields: Any,
) -> InferenceResult:
    """Return the results of a run with `count` requests and objectives that are met or missed."""
    count = MetricStats(unit="requests", avg=float(requests))
    defaults: dict[str, Any] = {
        "run_id": "0123456789ab",
        "name": "benchmark",
        "version": "0",
        "verdict": Severity(verdict),
        "cause": "",
        "slo": tuple(o if isinstance(o, ObjectiveResult) else objective(ok=o) for o in slo),
        "config": {"name": "benchmark"},
        "metrics": {"request_count": count},
    }
    return InferenceResult(**{**defaults, **fields})


def objective(*, ok: bool, **fields: Any) -> ObjectiveResult:
    """Return the result of an objective."""
    defaults: dict[str, Any] = {
        "metric": "request_latency",
        "stat": "p99",
        "bound": "max",
        "limit": 5.0,
        "measured": 9.0,
        "unit": "ms",
    }
    return ObjectiveResult(**{**defaults, **fields}, ok=ok)


def errors(*counts: tuple[int, str]) -> tuple[ErrorCount, ...]:
    """Return error counts with these messages."""
    return tuple(ErrorCount(ErrorDetails(None, "Connect", text), count) for count, text in counts)


def trial(number: int = 1, **fields: Any) -> TrialResult:
    """Return the result of a trial."""
    defaults: dict[str, Any] = {
        "repetition": 1,
        "parameters": {},
        "state": "done",
        "reason": "",
        "folder": f"{number:03}-r1",
    }
    return TrialResult(number=number, **{**defaults, **fields})


def experiment(trials: Iterable[TrialResult]) -> ExperimentResult:
    """Return the results of an experiment with these trials."""
    return ExperimentResult(trials=tuple(trials))


def decoded(content: dict[str, Any]) -> result_files.Results:
    """Return the results decoded from a file's content."""
    return result_files.decode(msgspec.json.encode(content))


def as_json(results: result_files.Results) -> dict[str, Any]:
    """Return the content of the results file."""
    found: dict[str, Any] = msgspec.json.decode(result_files.encode(results))
    return found


def throttled(share: float) -> SystemReport:
    """Return a report that the GPU clock was reduced for this share of the time."""
    check = graded(
        "gpu_throttling", share, 0.01, text=f"power limits, {share:.0%}", remedy="cool it"
    )
    return SystemReport(verdict=check.severity, checks=(check,), metrics={}, sources=())
