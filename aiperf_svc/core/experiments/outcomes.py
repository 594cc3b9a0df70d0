"""What became of a trial, and what was measured in it: the sample of everything that is said of an
experiment.

The numbers come from the content of profile_export_aiperf.json or results.json, so that a finished
experiment can be read again from its folders.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from aiperf_svc.core.compare.measured_run import INFERENCE, RowKey
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.run_result import STATS as WORKLOAD_STATS
from aiperf_svc.core.results.slo_results import outcome_of_all
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS

DONE = "done"
"""State of a trial that ran to its end."""
STATS = (
    "avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9",
    "std", "sum", "count",
)  # fmt: skip
"""Statistics of a metric of an inference benchmark, in the order of the columns."""
_HEADLINE = (
    RowKey("request_throughput", "avg"),
    RowKey("output_token_throughput", "avg"),
    RowKey("time_to_first_token", "p99"),
    RowKey("inter_token_latency", "p99"),
    RowKey("request_latency", "p99"),
    RowKey("time_to_first_token", "p50"),
    RowKey("inter_token_latency", "p50"),
    RowKey("request_latency", "p50"),
    RowKey("goodput", "avg"),
    RowKey("request_error_rate", "avg"),
)
_Direction = Literal["higher", "lower", ""]
_DIRECTIONS: dict[str, _Direction] = {name: name for name in get_args(_Direction)}
_WORKLOAD_SCHEMA = "run-result/"


class TrialOutcome(NamedTuple):
    """A trial that has ended."""

    trial: Trial
    state: str
    """`done`, `failed` or `cancelled`."""
    reason: str
    """Why it failed or was cancelled."""
    summary: dict[str, Any] | None
    """Content of profile_export_aiperf.json or results.json; None when nothing was measured."""
    attempt_folder: str = ""
    """Name of its folder if that is not the trial's own."""
    replaced: tuple[str, ...] = ()
    """Why earlier attempts were invalid or failed, in order."""

    @property
    def folder(self) -> str:
        """Name of its folder, below `trials`."""
        return self.attempt_folder or self.trial.folder


class Measured(NamedTuple):
    """The numbers of one trial, whatever was measured."""

    run_id: str
    kind: str
    """`inference`, or the kind of the workload."""
    verdict: str
    cause: str
    slo: str
    """`held`, `missed` or `not judged`; empty without an SLO."""
    values: dict[RowKey, float]
    """A metric that is one number has the statistic `avg`."""
    metrics: dict[str, MetricInfo]
    headline: tuple[RowKey, ...]
    """The values that people look at first."""
    not_held: tuple[str, ...] = ()
    """The objectives that do not hold, each with its reason."""

    @property
    def is_usable(self) -> bool:
        """False if the numbers are not to be used."""
        return self.verdict != Severity.INVALID


def read_summary(summary: dict[str, Any]) -> Measured:
    """Return the numbers of a finished run."""
    if str(summary.get("schema_version")).startswith(_WORKLOAD_SCHEMA):
        return _workload(summary)
    return _inference(summary)


def _inference(summary: dict[str, Any]) -> Measured:
    values: dict[RowKey, float] = {}
    metrics: dict[str, MetricInfo] = {}
    for metric in METRICS:
        found = summary.get(metric.tag)
        if found is None:
            continue
        metrics[metric.tag] = _INFOS[metric.tag]
        for stat, key in _KEYS[metric.tag]:
            value = found.get(stat)
            if value is not None:
                values[key] = float(value)
    ours = summary.get("aiperf_svc", {})
    return Measured(
        run_id=str(summary.get("benchmark_id", "")),
        kind=INFERENCE,
        verdict=str(ours.get("verdict", "")),
        cause=str(ours.get("cause", "")),
        slo=outcome_of_all(ours.get("slo", ())),
        values=values,
        metrics=metrics,
        headline=tuple(key for key in _HEADLINE if key in values),
        not_held=_not_held(ours.get("slo", ())),
    )


_INFOS = {
    tag: MetricInfo(tag=tag, name=metric.name, unit=metric.unit, better=_DIRECTIONS[metric.better])
    for tag, metric in CATALOG.items()
}
_KEYS = {tag: [(stat, RowKey(tag, stat)) for stat in STATS] for tag in CATALOG}


def _workload(result: dict[str, Any]) -> Measured:
    values: dict[RowKey, float] = {}
    metrics: dict[str, MetricInfo] = {}
    for metric in result["metrics"]:
        info = metric["info"]
        metrics[info["tag"]] = msgspec.convert(info, MetricInfo)
        for stat in WORKLOAD_STATS:
            if metric[stat] is not None:
                values[RowKey(info["tag"], stat)] = float(metric[stat])
    shown = [tag for tag, info in metrics.items() if info.better and info.in_table]
    return Measured(
        run_id=result["run_id"],
        kind=result["workload"],
        verdict=result["verdict"],
        cause=result["cause"],
        slo=outcome_of_all(result["slo"]),
        values=values,
        metrics=metrics,
        headline=tuple(RowKey(tag, "avg") for tag in shown or metrics),
        not_held=_not_held(result["slo"]),
    )


def _not_held(objectives: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    found = []
    for each in objectives:
        if not each["ok"]:
            unit, value = each["unit"], each["measured"]
            measured = "" if value is None else f" {value:.4g} {unit}"
            limit = f"limit {each['limit']:.4g} {unit}".rstrip()
            reason = each["reason"] if each.get("judged", True) else f"not judged: {each['reason']}"
            found.append(f"{each['stat']} {each['metric']}{measured} ({limit}): {reason}")
    return tuple(found)
