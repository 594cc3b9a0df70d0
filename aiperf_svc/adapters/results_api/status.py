"""The state of a run as the results API shows it, for displays and scrapers."""

from typing import Any

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it is now. Counts are of the phase that `phase` names."""

    number: int
    """Another one after every change; to wait for the next."""
    state: str
    reason: str
    phase: str
    """`warmup` or `profiling`."""
    is_cancelling: bool
    elapsed_s: float
    """Since the records manager started."""
    phase_elapsed_s: float
    requested_requests: int | None
    requested_duration_s: float | None
    completed: int
    errored: int
    cancelled: int
    in_flight: int
    requests_per_s: float
    """Over the last seconds."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    latency_p50_ms: float | None
    workers: int
    workers_lost: int
    record_processors: int
    dataset: dict[str, Any]
    message: str
    """What the run waits for."""
    results_ready: bool
    """Final, and the summary can be fetched."""
    artifact_error: str
    """Why files are missing."""
    verdict: str | None
    uploaded_to: str = ""
    """Where the results are as well, `s3://...`; empty when they are not."""
    is_settled: bool = False
    """Final, and nothing more will come: results are ready or there are none."""
    exit_code: ExitCode | None = None
    """What kind of failure; None unless the state is `failed`."""
    finish_reasons: dict[str, int] = {}
    """How many requests of the profiling phase ended with each, by name."""
