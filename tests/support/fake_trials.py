"""Fake outcomes of trials."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search_report import Ending, SearchPoint, SearchReport
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.metric_catalog import CATALOG
from tests.support.fake_results import inference_result


def results_of(
    *,
    throughput: float,
    ttft: float | None = None,
    verdict: str = "valid",
    more: Mapping[str, MetricStats] | None = None,
    **fields: Any,
) -> InferenceResult:
    """Return the results of a run with a few metrics and `more`."""
    metrics = {"request_throughput": MetricStats(unit="requests/sec", avg=throughput)}
    if ttft is not None:
        metrics["time_to_first_token"] = MetricStats(unit="ms", avg=ttft, p99=ttft, count=10)
    metrics |= more or {}
    metrics = {tag: metrics[tag] for tag in CATALOG if tag in metrics}
    return inference_result(verdict=verdict, metrics=metrics, run_id="abc", **fields)


def outcome(
    number: int,
    parameters: dict[str, Any],
    *,
    repetition: int = 1,
    state: str = "done",
    reason: str = "",
    **numbers: Any,
) -> TrialOutcome:
    """Return a trial with these numbers. Without numbers, nothing was measured."""
    trial = Trial(number, parameters, repetition)
    return TrialOutcome(trial, state, reason, results_of(**numbers) if numbers else None)


def sweep(
    points: dict[int, tuple[float, float]], *, repetitions: int = 1, step: float = 0.0
) -> list[TrialOutcome]:
    """Return trials by concurrency, with throughput and TTFT. Repetitions add `step` to both."""
    return [
        outcome(
            repetition * len(points) + index + 1,
            {"load.concurrency": concurrency},
            repetition=repetition + 1,
            throughput=throughput + repetition * step,
            ttft=ttft + repetition * step,
        )
        for repetition in range(repetitions)
        for index, (concurrency, (throughput, ttft)) in enumerate(points.items())
    ]


def search_report() -> SearchReport:
    """Return the report of a search between one and three users: two is the highest that passes."""
    point = SearchPoint(
        value=1.0, holds=True, share_beyond=0.0, statistics={}, verdict="valid",
        is_client_bound=False, reason="", runs=1, confirmations=1,
    )  # fmt: skip
    return SearchReport(
        parameter="load.concurrency", unit="users", ending=Ending.BRACKETED, holds=2.0, breaks=3.0,
        reason="", confirmations=1, precision=0.05, is_narrowest=True, knee=None,
        points=(point, replace(point, value=2.0)), trials=2,
    )  # fmt: skip
