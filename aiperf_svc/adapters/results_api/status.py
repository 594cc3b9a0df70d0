"""The status of a run in the results API, for displays and scrapers."""

from typing import Literal

import msgspec

from aiperf_svc.core.verdict.health_log import ClientLoad
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.json_objects import Parameters


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a benchmark on ranks."""

    workload: str
    """Kind of the tool."""
    total: int
    """Number of steps of the run, repetitions included."""
    ended: int
    failed: int
    name: str
    """Name of the current step; empty between steps."""
    stage: str
    """`prepare`, `run` or `finish`."""
    running_s: float
    """Time since its commands were started."""
    expected_s: float
    """Expected duration; 0 if it is unknown."""
    text: str
    """Progress text of its command."""


class ShownTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that has ended."""

    number: int
    parameters: Parameters
    repetition: int
    attempt: int
    state: str
    reason: str
    verdict: str | None
    text: str
    """Its headline numbers."""


class ExperimentStatus(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Number of the current trial in the plan; 0 when the experiment has ended."""
    parameters: Parameters
    """Value of each key that the trial changes."""
    repetition: int
    attempt: int
    total: int
    """Number of trials; 0 while it is unknown."""
    ended: int
    failed: int
    left_s: float | None
    """Expected time until the last trial has ended; None while it is unknown."""
    rows: tuple[ShownTrial, ...]
    """The latest trials that have ended."""


class LiveObjective(msgspec.Struct, frozen=True, kw_only=True):
    """An objective with its value over the latest requests. It does not judge the run."""

    metric: str
    stat: str
    bound: Literal["max", "min"]
    limit: float
    value: float
    unit: str

    @property
    def is_within(self) -> bool:
        """True if the value is within the limit now."""
        return self.value <= self.limit if self.bound == "max" else self.value >= self.limit


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the run. Counts are those of the current phase. Counts of requests are left out of
    runs that measure none."""

    number: int
    """Number that increases with every change; lets clients wait for the next one."""
    state: str
    reason: str
    phase: str
    """Current phase: `warmup` or `profiling`."""
    is_cancelling: bool
    elapsed_s: float
    """Seconds since the records manager started."""
    phase_elapsed_s: float
    load_start_wall_ns: int = 0
    """Start time of the measured load, by the run's clock; 0 outside of the load."""
    requested_requests: int | None = None
    requested_duration_s: float | None = None
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    in_flight: int = 0
    requests_per_s: float = 0.0
    """Completed requests per second over the last seconds; 0 if there are none or it is unknown."""
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    latency_p50_ms: float | None = None
    workers: int
    workers_lost: int
    record_processors: int
    dataset: msgspec.Raw = msgspec.Raw(b"{}")
    """The dataset as JSON, as in the results; empty before it is built."""
    message: str
    """Description of what the run is waiting for."""
    results_ready: bool
    """True if the state is final and the summary can be fetched."""
    artifact_error: str
    """Reason why files are missing."""
    verdict: str | None
    uploaded_to: str = ""
    """URL of the uploaded results, `s3://...`; empty if they are not uploaded."""
    is_settled: bool = False
    """True if the state is final and nothing will follow: results are ready, or there are none."""
    exit_code: ExitCode | None = None
    """Kind of failure; None unless the state is `failed`."""
    main_error: str = ""
    """Text of the most frequent error; empty if there is none."""
    grace_s: float = 0.0
    """Longest time for requests in flight after the duration."""
    finish_reasons: dict[str, int] = {}
    """Number of requests of the profiling phase by finish reason."""
    abandoned: int = 0
    """Requests that their clients abandoned, as configured in the load."""
    server_running: float | None = None
    """Requests that the server is processing, by its metrics; None without metrics."""
    server_waiting: float | None = None
    """Requests that are queued in the server."""
    server_kv_usage: float | None = None
    """Used share of the KV cache of the fullest server."""
    credits_granted: int = 0
    """Number of credits (permissions to run a conversation) that workers hold."""
    requests_sent: int = 0
    unsent: int = 0
    """Requests that were due and never sent."""
    retries: int = 0
    """Requests that were resent because the server had closed the connection."""
    schedule_lag_p50_ms: float | None = None
    """Time from due to start of the latest requests."""
    schedule_lag_p99_ms: float | None = None
    latency_p99_ms: float | None = None
    output_tokens_per_s: float | None = None
    """Rate over the last seconds; None if no response had countable tokens."""
    objectives: tuple[LiveObjective, ...] = ()
    """Latency objectives with recent values."""
    client: ClientLoad | None = None
    """Load of the own services; None before the first report."""
    steps: StepStatus | None = None
    """None in runs that measure requests."""
    experiment: ExperimentStatus | None = None
    """None in a run without an experiment."""

    @property
    def trial(self) -> int:
        """Number of the current trial; 1 in a run without an experiment."""
        return self.experiment.number if self.experiment is not None else 1

    @property
    def is_last_trial(self) -> bool:
        """True if no trial follows the current one. False for a search, whose length is unknown."""
        return self.experiment is None or self.experiment.number == self.experiment.total
