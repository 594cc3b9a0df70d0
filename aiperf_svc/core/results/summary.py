"""What the results are made from, and what they are: the values that pass between the parts."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.core.results.accounts import Accounts, WorkerAccount
from aiperf_svc.core.results.slo import ObjectiveResult
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.stats.percentiles import Distribution
from aiperf_svc.core.stats.timeline import Timeline
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.core.verdict.judge import Verdict
from aiperf_svc.protocol.messages import AddressUse, ClockEstimate, ErrorSample


class WorkerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in the run."""

    rank: int
    account: WorkerAccount
    """Of the profiling phase."""
    clocks: tuple[ClockEstimate, ...] = ()
    """Its clock against the timing manager's, in order of time, all through the phase."""


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a finished run that is not in its metric records."""

    run_id: str
    config: BenchmarkConfig
    version: str
    profiling: PhaseTimes
    workers: tuple[WorkerRun, ...]
    warmup: tuple[WorkerAccount, ...] = ()
    """The workers' accounts of the warmup, which must balance too."""
    credits_granted: int | None = None
    """By the timing manager in the profiling phase."""
    lost_services: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    failure: str = ""
    """Why the run failed; empty when it did not."""
    was_cancelled: bool = False
    is_complete: bool = True
    cli_command: str = ""
    topology: dict[str, Any] = {}
    """For people: layout, number of workers, facts of the place."""
    target_addresses: tuple[AddressUse, ...] = ()
    """What each address of the target got; without what lost workers did."""


class MetricSummary(msgspec.Struct, frozen=True):
    """A distribution of the catalog's metric `tag`."""

    tag: str
    distribution: Distribution
    relative_error: float = 0.0
    """Of each percentile; 0: exact."""
    quantiles: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    """For plots: shares in 0..1 and the values there."""

    def stat(self, name: str) -> float | None:
        """`avg`, `p99`, ... or None."""
        return self.distribution.stats.get(name)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run, in memory: exports and report only write down what is here."""

    context: FinishedRun
    metrics: dict[str, MetricSummary]
    scalars: dict[str, float]
    concurrency: dict[str, float]
    """Statistics of `effective_concurrency`; empty when nothing was sent."""
    accounts: Accounts
    objectives: tuple[ObjectiveResult, ...]
    verdict: Verdict
    timeline: Timeline | None
    first_start_wall_ns: int
    last_end_wall_ns: int
    finish_reasons: dict[str, int] = {}
    """How many requests ended with each `FinishReason` that occurs, by its name in lower case."""

    @property
    def has_succeeded(self) -> bool:
        """Whether there is anything to report a latency of."""
        return self.scalars["request_count"] > 0

    def measured(self, tag: str, stat: str) -> float | None:
        """A statistic of any metric; of a scalar every statistic is the number itself."""
        if tag in self.scalars:
            return self.scalars[tag]
        if tag == "effective_concurrency":
            return self.concurrency.get(stat)
        metric = self.metrics.get(tag)
        return None if metric is None else metric.stat(stat)
