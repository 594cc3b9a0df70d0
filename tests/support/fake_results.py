"""Made-up results of runs and experiments."""

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
"""The description of a dataset, as in a file."""


def avg_of(metrics: Mapping[str, MetricStats], tag: str) -> float:
    """Return the average of a metric, which must have one."""
    found = metrics[tag].stat("avg")
    assert found is not None
    return found


def inference_result(
    requests: int = 10,
    verdict: str = "valid",
    slo: tuple[bool | ObjectiveResult, ...] = (),
    **fields: Any,
) -> InferenceResult:
    """The results of a run with so many requests, and objectives that hold or not."""
    count = MetricStats(unit="requests", avg=float(requests))
    given: dict[str, Any] = {
        "run_id": "0123456789ab",
        "name": "benchmark",
        "version": "0",
        "verdict": Severity(verdict),
        "cause": "",
        "slo": tuple(o if isinstance(o, ObjectiveResult) else objective(ok=o) for o in slo),
        "config": {"name": "benchmark"},
        "metrics": {"request_count": count},
    }
    return InferenceResult(**{**given, **fields})


def objective(*, ok: bool, **fields: Any) -> ObjectiveResult:
    """The result of a limit."""
    given: dict[str, Any] = {
        "metric": "request_latency",
        "stat": "p99",
        "bound": "max",
        "limit": 5.0,
        "measured": 9.0,
        "unit": "ms",
    }
    return ObjectiveResult(**{**given, **fields}, ok=ok)


def errors(*counts: tuple[int, str]) -> tuple[ErrorCount, ...]:
    """So many errors with each message."""
    return tuple(ErrorCount(ErrorDetails(None, "Connect", text), count) for count, text in counts)


def trial(number: int = 1, **fields: Any) -> TrialResult:
    """A trial of an experiment."""
    given: dict[str, Any] = {
        "repetition": 1,
        "parameters": {},
        "state": "done",
        "reason": "",
        "folder": f"{number:03}-r1",
    }
    return TrialResult(number=number, **{**given, **fields})


def experiment(trials: Iterable[TrialResult]) -> ExperimentResult:
    """An experiment of these trials."""
    return ExperimentResult(trials=tuple(trials))


def decoded(content: dict[str, Any]) -> result_files.Results:
    """The results in the content of a file."""
    return result_files.decode(msgspec.json.encode(content))


def as_json(results: result_files.Results) -> dict[str, Any]:
    """The content of the file of results."""
    found: dict[str, Any] = msgspec.json.decode(result_files.encode(results))
    return found


def throttled(share: float) -> SystemReport:
    """The clock of a GPU was reduced for this share of the time."""
    check = graded(
        "gpu_throttling", share, 0.01, text=f"power limits, {share:.0%}", remedy="cool it"
    )
    return SystemReport(verdict=check.severity, checks=(check,), metrics={}, sources=())
