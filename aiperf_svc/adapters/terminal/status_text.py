"""Describes the status of a run in one line: its phase, its steps, its trials. Pure."""

from collections.abc import Iterable

from aiperf_svc.adapters.results_api.status import ExperimentStatus, ShownTrial, Status, StepStatus
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import changes_text
from aiperf_svc.domain.number_text import count, milliseconds, seconds
from aiperf_svc.protocol.run_states import RunState


def is_loading(status: Status) -> bool:
    """Return whether requests are being sent or steps run, and the status counts them. The status
    of Job indexes counts only trials and has no phase."""
    is_on = status.state in (RunState.WARMUP, RunState.PROFILING)
    return is_on and (bool(status.phase) or status.steps is not None)


def share_done(status: Status) -> float | None:
    """Return the finished share of the phase, 0 to 1; None if it is undefined."""
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
    """Return the share of finished steps, with the known part of the current step."""
    running = min(1.0, steps.running_s / steps.expected_s) if steps.expected_s else 0.0
    return (steps.ended + (running if steps.stage == "run" else 0.0)) / max(1, steps.total)


def remaining_s(status: Status) -> float | None:
    """Return the time to the end of the phase at the current rate; None if it is unknown."""
    if not is_loading(status):
        return None
    times = []
    if status.requested_requests and status.requests_per_s > 0:
        # The rate counts completed requests only.
        ended = _ended(status)
        left_s = (status.requested_requests - ended) / status.requests_per_s
        times.append(left_s * status.completed / max(1, ended))
    if status.requested_duration_s:
        times.append(status.requested_duration_s - status.phase_elapsed_s)
    return max(0.0, min(times)) if times else None


def time_left(status: Status) -> str:
    """Describe the time to the end of the phase; empty if it is unknown. After the duration,
    describe the requests in flight."""
    duration_s = status.requested_duration_s
    if is_loading(status) and duration_s and status.in_flight:
        over_s = status.phase_elapsed_s - duration_s
        if over_s >= 0:
            remaining = seconds(max(0.0, status.grace_s - over_s))
            return f"draining: {status.in_flight:,} in flight, at most {remaining}"
    left_s = remaining_s(status)
    return f"{seconds(left_s)} left" if left_s is not None else ""


def main_error(status: Status) -> str:
    """Return the text of the most frequent error; empty if there is none."""
    return one_line(status.main_error) if status.errored else ""


def step_line(steps: StepStatus) -> str:
    """Describe the progress of a benchmark on ranks in one line."""
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
    """Return our own requests in flight, and those on the server by its metrics."""
    server = on_server(status)
    return f"{status.in_flight:,}" + (f" (server {server})" if server else "")


def on_server(status: Status) -> str:
    """Return the requests on the server by its metrics, `5 + 3 waiting`; empty without metrics."""
    if status.server_running is None:
        return ""
    waiting = f" + {status.server_waiting:,.0f} waiting" if status.server_waiting else ""
    return f"{status.server_running:,.0f}{waiting}"


def position(experiment: ExperimentStatus) -> str:
    """Describe the current trial, `trial 3 of 12`; if several run, the number of finished ones."""
    if not experiment.number and experiment.total:
        return f"{experiment.ended:,} of {experiment.total:,} trials"
    total = f" of {experiment.total:,}" if experiment.total else ""
    attempt = f", attempt {experiment.attempt}" if experiment.attempt > 1 else ""
    return f"trial {experiment.number:,}{total}{attempt}"


def trial_line(row: ShownTrial) -> str:
    named = changes_text(row.parameters)
    number = f"trial {row.number:,}" + (f", attempt {row.attempt}" if row.attempt > 1 else "")
    parts = [number + (f" ({named})" if named else ""), row.state]
    parts += [row.text] if row.text else []
    parts += [f"verdict {row.verdict}"] if row.verdict else []
    parts += [row.reason] if row.reason else []
    return " · ".join(parts)


AMBIGUOUS_PARTS = ("mean", "stddev", "min", "max", "value")
"""Last parts of keys that are unclear without the preceding part."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each dotted key."""
    keys = list(dict.fromkeys(keys))
    return {key: _short_name(key, [each for each in keys if each != key]) for key in keys}


def _short_name(key: str, others: list[str]) -> str:
    parts = key.split(".")
    for begin in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[begin:])
        is_clear = not parts[begin].isdigit() and parts[begin] not in AMBIGUOUS_PARTS
        if is_clear and not any(f".{each}".endswith(f".{name}") for each in others):
            return name
    return key


def plain_line(status: Status) -> str:
    """Describe a status in one line."""
    line = f"{seconds(status.elapsed_s):>7}  "
    if status.experiment is not None and status.experiment.number:
        line += f"{position(status.experiment)}  "
    line += status.state
    if status.steps is not None and is_loading(status):
        return f"{line}: {step_line(status.steps)}"
    if not is_loading(status):
        extra = status.message or status.reason
        return f"{line}: {extra}" if extra else line
    parts = [
        f"{status.completed:,}{_of_total(status.requested_requests)} completed",
        count(status.errored, "error") + (f" ({text})" if (text := main_error(status)) else ""),
        *([f"{status.abandoned:,} abandoned"] if status.abandoned else []),
        f"{in_flight(status)} in flight",
        *([f"{status.requests_per_s:,.1f} requests/s"] if status.requests_per_s else []),
    ]
    if status.ttft_p50_ms is not None:
        first = f"{milliseconds(status.ttft_p50_ms)} / {milliseconds(status.ttft_p99_ms)}"
        parts.append(f"TTFT p50/p99 {first}")
    if status.workers_lost:
        parts.append(f"{count(status.workers_lost, 'worker')} lost")
    if left := time_left(status):
        parts.append(left)
    return f"{line}: {', '.join(parts)}"


def final_line(status: Status) -> str:
    """Return the outcome of a finished run in one line."""
    if status.experiment is not None:
        experiment = status.experiment
        failed = f", {experiment.failed:,} failed" if experiment.failed else ""
        reason = f" ({status.reason})" if status.reason else ""
        return f"{status.state}{reason}: {count(experiment.ended, 'trial')}{failed}"
    if status.steps is not None:
        parts = [f"{status.steps.ended:,} of {status.steps.total:,} steps"]
        parts += [f"{status.steps.failed:,} failed"] if status.steps.failed else []
    else:
        parts = [f"{status.completed:,} completed", count(status.errored, "error")]
        parts += [f"{status.cancelled:,} cancelled"] if status.cancelled else []
        parts += [f"{status.abandoned:,} abandoned"] if status.abandoned else []
    parts += [f"verdict {status.verdict}"] if status.verdict else []
    reason = f" ({status.reason})" if status.reason else ""
    return f"{status.state}{reason}: {', '.join(parts)}"


def _of_total(total: int | None) -> str:
    return f" of {total:,}" if total else ""
