"""The inputs and the summary of a finished run in the records manager. The summary stays in memory
and contains the samples for plots. `inference_result` converts it to the results that leave the
process."""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.events.report import Disturbance, DueCounts, EventReport
from aiperf_svc.core.quality.gate import QualityResult
from aiperf_svc.core.records.accounts import Accounts, WorkerAccount
from aiperf_svc.core.results.cache_stats import CacheUse
from aiperf_svc.core.results.inference_result import (
    AddressFacts,
    ErrorCount,
    ErrorDetails,
    GroupStats,
    Hook,
    InferenceResult,
    RunLayout,
    SteadyStats,
    TurnOverflow,
)
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.core.results.run_result import STATS, MetricStats
from aiperf_svc.core.results.slo_results import ObjectiveBatches, ObjectiveResult, TierResult
from aiperf_svc.core.scaling.report import ScalingReport, ScalingResult
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.stats.percentiles import Distribution
from aiperf_svc.core.stats.timeline import Timeline
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Verdict
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind
from aiperf_svc.domain.outcomes import ErrorKind, Phase
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.messages.reports import AddressUse, ClockEstimate, HookCall


class WorkerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in the run."""

    rank: int
    account: WorkerAccount
    """Account of the profiling phase."""
    clocks: tuple[ClockEstimate, ...] = ()
    """Estimates of its clock against the timing manager's during the phase, in order of time."""


class EarlyEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Objectives that a run misses, whatever the outcome of its unsent requests would have been."""

    text: str
    batches: tuple[ObjectiveBatches, ...]
    """Batches of these objectives, assuming that every other request is within the limit."""


NetworkTimes = Mapping[str, Histogram]
"""Times of the connections to one URL of the target, by tag."""


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Data about a finished run beyond its metric records."""

    run_id: str
    config: BenchmarkConfig
    version: str
    profiling: PhaseTimes
    workers: tuple[WorkerRun, ...]
    warmup: tuple[WorkerAccount, ...] = ()
    """The workers' accounts of the warmup, which must balance too."""
    credits_granted: int | None = None
    """Credits granted by the timing manager in the profiling phase."""
    scheduled_rate: float = 0.0
    """Conversations per second until the stop, for a fixed schedule or a changing rate; 0: the load
    has neither."""
    lost_services: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    failure: str = ""
    """Reason why the run failed; empty if it did not."""
    was_cancelled: bool = False
    early_end: EarlyEnd | None = None
    """Why the load ended early; None if it did not."""
    is_complete: bool = True
    cli_command: str = ""
    topology: RunLayout = RunLayout()
    target_addresses: tuple[AddressUse, ...] = ()
    """Use of each address of the target, except by lost workers."""
    scaling: ScalingReport | None = None
    """The runner's observations of the server's replicas."""
    hooks: tuple[HookCall, ...] = ()
    """Requests to the server before and after the phases."""
    events: tuple[EventReport, ...] = ()
    """The runner's reports on the events of the config."""
    host: dict[str, str] = {}
    """The machine of the records manager; in a local run, of all services."""
    quality: QualityResult | None = None
    """Outcome of the quality gate after the load; None if there is no gate."""
    network: tuple[NetworkTimes, ...] = ()
    """Network times of the connections to each URL of the target, without lost workers' times."""
    streams: tuple[bytes, bytes] | None = None
    """`turns` and `streams` of the dataset's shape; None if its entries are not session trees."""

    @property
    def requested_rate(self) -> float | None:
        """Rate that the load requests; None in closed loop."""
        load = self.config.load
        if load.user_centric is not None:
            return load.user_centric.rate
        return self.scheduled_rate or load.request_rate


class MetricSummary(msgspec.Struct, frozen=True):
    """Distribution of the catalog's metric `tag`."""

    tag: str
    distribution: Distribution
    quantiles: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    """Points for plots: shares in 0..1 and their values."""

    def stat(self, name: str) -> float | None:
        """Return a statistic such as `avg` or `p99`, or None."""
        return self.distribution.stats.get(name)

    @property
    def stats(self) -> MetricStats:
        """All statistics, without the points for plots."""
        measured = self.distribution
        is_censored = bool(measured.censored)
        return replace(
            MetricStats(unit=CATALOG[self.tag].unit),
            **{name: measured.stats.get(name) for name in STATS if name != "count"},
            count=measured.count,
            unreliable=measured.unreliable or UNSET,
            censored_share=measured.censored_share if is_censored else UNSET,
            beyond=measured.beyond if is_censored else UNSET,
            relative_error=measured.relative_error or UNSET,
        )


def metric_stats(
    metrics: Mapping[str, MetricSummary],
    scalars: Mapping[str, float],
    concurrency: Mapping[str, float] | None = None,
) -> dict[str, MetricStats]:
    """Return the statistics of all metrics by tag, in the order of the catalog."""
    found: dict[str, MetricStats] = {}
    for metric in METRICS:
        if metric.kind is Kind.SCALAR and metric.tag in scalars:
            found[metric.tag] = MetricStats(unit=metric.unit, avg=scalars[metric.tag])
        elif metric.kind is Kind.TIMED and concurrency:
            found[metric.tag] = replace(MetricStats(unit=metric.unit), **concurrency)
        elif metric.tag in metrics:
            found[metric.tag] = metrics[metric.tag].stats
    return found


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run in memory. Exports and the report only write these."""

    context: FinishedRun
    metrics: dict[str, MetricSummary]
    scalars: dict[str, float]
    concurrency: dict[str, float]
    """Statistics of `effective_concurrency`; empty if nothing was sent."""
    accounts: Accounts
    slo: tuple[ObjectiveResult, ...] = ()
    goodput_tiers: tuple[TierResult, ...] = ()
    slo_batches: tuple[ObjectiveBatches, ...] = ()
    verdict: Verdict
    timeline: Timeline | None
    first_start_wall_ns: int
    last_end_wall_ns: int
    finish_reasons: dict[str, int] = {}
    """Number of requests that ended with each `FinishReason`, by its name in lower case."""
    telemetry: tuple[SourceLog, ...] = ()
    """Metrics of servers and GPU exporters during the run."""
    targets: tuple[GroupStats, ...] = ()
    """Results of each target, if there are several."""
    models: tuple[GroupStats, ...] = ()
    """Results of each model, if there are several."""
    steady_state: SteadyStats | None = None
    """None without a rule in the config."""
    cache: CacheUse | None = None
    """Cached tokens by turn and by conversation; None without conversations, or if
    unknown."""
    context_overflows: tuple[TurnOverflow, ...] = ()
    """The turns at which prompts were too long for the server, if there are several turns."""
    system: SystemReport | None = None
    """The verdict on the system by these sources; None without a source."""
    provenance: Provenance | None = None
    """Hardware and software of client and target."""
    scaling: ScalingResult | None = None
    """How the server's replicas followed the load, if the run watched them."""
    events: tuple[Disturbance, ...] = ()
    """Effects of each event of the config on the load."""
    due_counts: DueCounts | None = None
    """Requests by due time, if the run had events."""
    client: SourceLog | None = None
    """Load of this program's own services over time."""

    @property
    def has_succeeded(self) -> bool:
        """True if a request has completed, so there are latencies."""
        return self.scalars["request_count"] > 0

    def measured(self, tag: str, stat: str) -> float | None:
        """Return a statistic of any metric. Every statistic of a scalar is the number itself."""
        if tag in self.scalars:
            return self.scalars[tag]
        if tag == "effective_concurrency":
            return self.concurrency.get(stat)
        metric = self.metrics.get(tag)
        return None if metric is None else metric.stat(stat)


def inference_result(summary: Summary, *, aiperf_config: msgspec.Raw) -> InferenceResult:
    """Return the results that leave the process. Members of the summary, its verdict and its
    context keep their names, except those with another form. `aiperf_config` is the config with
    AIPerf's names, as JSON."""
    context, early_end = summary.context, summary.context.early_end
    changed = {
        "name": context.config.name,
        "config": context.config.model_dump(mode="json"),
        "aiperf_config": aiperf_config,
        "start_wall_ns": summary.first_start_wall_ns,
        "end_wall_ns": summary.last_end_wall_ns,
        "reasons": summary.verdict.reasons,
        "notes": summary.verdict.notes,
        "early_end": early_end.text if early_end is not None else "",
        "metrics": metric_stats(summary.metrics, summary.scalars, summary.concurrency),
        "errors": error_counts(context.errors),
        "target_addresses": tuple(AddressFacts(**asdict(use)) for use in context.target_addresses),
        "hooks": tuple(Hook(**asdict(call)) for call in context.hooks),
    }
    same = {
        name: getattr(source, name)
        for source in (context, summary, summary.verdict)
        for name in source.__struct_fields__
        if name in InferenceResult.__struct_fields__
    }
    return InferenceResult(**(same | changed))


def error_counts(samples: Iterable[ErrorSample]) -> tuple[ErrorCount, ...]:
    """Return the errors of the profiling phase by kind, status and first message, most frequent
    first."""
    counts: dict[tuple[int, int, str], int] = {}
    for sample in samples:
        if sample.phase is Phase.PROFILING:
            key = (sample.kind, sample.status, sample.message)
            counts[key] = counts.get(key, 0) + sample.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        ErrorCount(
            ErrorDetails(
                code=status or None,
                type=ErrorKind(kind).name.title().replace("_", ""),
                message=message,
            ),
            count,
        )
        for (kind, status, message), count in ordered
    )
