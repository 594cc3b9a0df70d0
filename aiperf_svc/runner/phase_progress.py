"""Computes the progress of a run's phase from its status."""

from aiperf_svc.adapters.results_api.status import Status, StepStatus
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.numbers import seconds


def is_loading(status: Status) -> bool:
    """Return whether requests are being sent, or steps run, and the status counts them. That of
    indexes of Jobs counts trials only, and has no phase."""
    is_on = status.state in (RunState.WARMUP, RunState.PROFILING)
    return is_on and (bool(status.phase) or status.steps is not None)


def share_done(status: Status) -> float | None:
    """Return how much of the phase is over, 0 to 1; None if that is not defined."""
    if not is_loading(status):
        return None
    if status.steps is not None:
        return _share_of_steps(status.steps)
    ended = _ended(status)
    shares = []
    if status.requested_requests:
        shares.append(ended / status.requested_requests)
    if status.requested_duration_s:
        shares.append(status.phase_elapsed_s / status.requested_duration_s)
    return min(1.0, max(shares)) if shares else None


def _ended(status: Status) -> int:
    return status.completed + status.errored + status.cancelled + status.abandoned


def _share_of_steps(steps: StepStatus) -> float:
    """Steps that have ended, with the part of the running one whose length is known."""
    running = min(1.0, steps.running_s / steps.expected_s) if steps.expected_s else 0.0
    return (steps.ended + (running if steps.stage == "run" else 0.0)) / max(1, steps.total)


def remaining_s(status: Status) -> float | None:
    """Time to the end of the phase at the present rate; None when it cannot be told."""
    if not is_loading(status):
        return None
    times = []
    if status.requested_requests and status.requests_per_s > 0:
        # The rate is of those that completed.
        ended = _ended(status)
        left_s = (status.requested_requests - ended) / status.requests_per_s
        times.append(left_s * status.completed / max(1, ended))
    if status.requested_duration_s:
        times.append(status.requested_duration_s - status.phase_elapsed_s)
    return max(0.0, min(times)) if times else None


def time_left(status: Status) -> str:
    """Return the time to the end of the phase; empty when it cannot be told. After the duration, it
    is that of the requests in flight."""
    duration_s = status.requested_duration_s
    if is_loading(status) and duration_s and status.in_flight:
        over_s = status.phase_elapsed_s - duration_s
        if over_s >= 0:
            most = seconds(max(0.0, status.grace_s - over_s))
            return f"draining: {status.in_flight:,} in flight, at most {most}"
    left_s = remaining_s(status)
    return f"{seconds(left_s)} left" if left_s is not None else ""


def main_error(status: Status) -> str:
    """Return the text of the most frequent error; empty if there is none."""
    return one_line(status.main_error) if status.errored else ""


def step_line(steps: StepStatus) -> str:
    """Return where a benchmark on ranks is, in one line."""
    if not steps.total:
        return "planning the steps"
    parts = [f"step {min(steps.ended + 1, steps.total):,} of {steps.total:,}"]
    if steps.name:
        doing = "starting" if steps.stage == "prepare" else "collecting"
        if steps.stage == "run":
            doing = seconds(steps.running_s)
            doing += f" of {seconds(steps.expected_s)}" if steps.expected_s else ""
        parts.append(f"{steps.name} {doing}")
    parts += [steps.text] if steps.text else []
    parts += [f"{steps.failed:,} failed"] if steps.failed else []
    return ", ".join(parts)


def in_flight(status: Status) -> str:
    """Return our own requests in flight, and those that the server says it has."""
    server = on_server(status)
    return f"{status.in_flight:,}" + (f" (server {server})" if server else "")


def on_server(status: Status) -> str:
    """Return the requests that the server says it runs, `5 + 3 waiting`; empty if it does not."""
    if status.server_running is None:
        return ""
    waiting = f" + {status.server_waiting:,.0f} waiting" if status.server_waiting else ""
    return f"{status.server_running:,.0f}{waiting}"
