"""Computes the progress of a run's phase from its status."""

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.protocol.messages import RunState


def is_loading(status: Status) -> bool:
    """Return whether requests are being sent."""
    return status.state in (RunState.WARMUP, RunState.PROFILING)


def share_done(status: Status) -> float | None:
    """Return how much of the phase is over, 0 to 1; None if that is not defined."""
    if not is_loading(status):
        return None
    ended = status.completed + status.errored + status.cancelled
    shares = []
    if status.requested_requests:
        shares.append(ended / status.requested_requests)
    if status.requested_duration_s:
        shares.append(status.phase_elapsed_s / status.requested_duration_s)
    return min(1.0, max(shares)) if shares else None


def remaining_s(status: Status) -> float | None:
    """Time to the end of the phase at the present rate; None when it cannot be told."""
    if not is_loading(status):
        return None
    times = []
    if status.requested_requests and status.requests_per_s > 0:
        ended = status.completed + status.errored + status.cancelled
        times.append((status.requested_requests - ended) / status.requests_per_s)
    if status.requested_duration_s:
        times.append(status.requested_duration_s - status.phase_elapsed_s)
    return max(0.0, min(times)) if times else None
