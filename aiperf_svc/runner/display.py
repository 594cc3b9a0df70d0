"""What is shown on standard error while a run goes."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from aiperf_svc.adapters.run_status import Status
from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.plan.topology import Topology
from aiperf_svc.runner.options import RunOptions

PLAIN_S = 2.0


class Display(Protocol):
    """A context manager that is told the status."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, status: Status) -> None: ...
    def note(self, text: str) -> None: ...


class Plain:
    """A line every two seconds."""

    def __init__(self) -> None:
        self._last = 0.0
        self._state = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def show(self, status: Status) -> None:
        now = time.monotonic()
        if status.state != self._state or now - self._last > PLAIN_S:
            self._last, self._state = now, status.state
            print(
                f"{status.state}: {status.completed} completed, {status.errored} errors, "
                f"{status.in_flight} in flight, {status.requests_per_s:.1f}/s",
                file=sys.stderr,
            )

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def make_display(options: RunOptions, config: BenchmarkConfig, topology: Topology) -> Display:
    """The display."""
    return Plain()
