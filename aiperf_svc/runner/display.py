"""Displays on standard error during a run.

Shown is what the results API says, when it says it: a display that drew by itself would take time
from the load on a small machine.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.foreign_text import lines
from aiperf_svc.plan.topology import Topology
from aiperf_svc.runner.experiment_lines import position, trial_line
from aiperf_svc.runner.numbers import count, milliseconds, seconds
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.phase_progress import (
    in_flight,
    is_loading,
    main_error,
    step_line,
    time_left,
)

PLAIN_S = 2.0
"""Seconds between two lines of the plain display within one state."""


def print_line(text: str) -> None:
    """Print a text for people on standard error."""
    print(lines(text), file=sys.stderr, flush=True)


class Display(Protocol):
    """Shows a run until it is closed."""

    def show(self, status: Status) -> None:
        """The run as it is now."""
        ...

    def note(self, text: str) -> None:
        """Something that happened; it stays on the screen."""
        ...

    def close(self) -> None:
        """Make room for what comes next."""
        ...


class Silent:
    """Shows what happened only."""

    def __init__(self, say: Callable[[str], None] = print_line) -> None:
        self._say = say

    def show(self, status: Status) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Print one line."""
        self._say(text)

    def close(self) -> None:
        """Do nothing."""


class Plain(Silent):
    """A line at every new state and every two seconds."""

    def __init__(self, say: Callable[[str], None] = print_line) -> None:
        super().__init__(say)
        self._shown_mono_s = -PLAIN_S
        self._state = ""
        self._ended = 0

    def show(self, status: Status) -> None:
        """A line, unless the last one is too young. Each trial that has ended has a line."""
        experiment = status.experiment
        if experiment is not None and experiment.ended > self._ended:
            for row in experiment.rows[-(experiment.ended - self._ended) :]:
                self._say(trial_line(row))
            self._ended = experiment.ended
        now = time.monotonic()
        if status.state != self._state or now - self._shown_mono_s >= PLAIN_S:
            self._shown_mono_s, self._state = now, status.state
            self._say(plain_line(status))


def make_display(options: RunOptions, title: str, topology: Topology) -> Display:
    """The display that the user asked for."""
    kind = options.ui
    if kind == "auto":
        kind = "rich" if sys.stderr.isatty() else "plain"
    if kind == "none":
        return Silent()
    if kind == "plain":
        return Plain()
    from aiperf_svc.runner.live_display import LiveDisplay

    return LiveDisplay(title, topology)


def plain_line(status: Status) -> str:
    """A status in one line."""
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
        f"{status.completed:,}{_of(status.requested_requests)} completed",
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


def _of(total: int | None) -> str:
    return f" of {total:,}" if total else ""
