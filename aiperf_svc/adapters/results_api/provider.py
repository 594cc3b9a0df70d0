"""The interface between a records manager and the servers of its results."""

from pathlib import Path
from time import time_ns
from typing import Protocol

import msgspec

from aiperf_svc.adapters.exports.result_files import Results, encode
from aiperf_svc.adapters.results_api.run_api import (
    Cancel,
    Clock,
    Collected,
    Events,
    GetClock,
    GetStatus,
    GetSummary,
    Operation,
    RunnerMessage,
    Start,
)
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.run_states import RunState

FURTHEST_START_NS = 60_000_000_000
"""Longest time until a start, so a wrong clock cannot delay a run for hours."""


class Refused(Exception):
    """Raised for an operation that the run cannot carry out in its state."""


class TrialResults(Protocol):
    """The operations on a run or on each trial of an experiment."""

    def status(self) -> Status:
        """Status of the run."""
        ...

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the status number differs from `after`, or for at most the timeout."""
        ...

    def cancel(self, reason: str) -> None:
        """Request the end of the run."""
        ...

    def handle_message(self, message: RunnerMessage) -> None:
        """Handle a message of the runner to the run or the current trial."""
        ...


class ResultsProvider(TrialResults, Protocol):
    """The operations of the results API, implemented by the records manager."""

    def collected(self) -> None:
        """Record that the results were fetched, so this process may end."""
        ...

    def results(self) -> Results | None:
        """Results of the run or experiment; None until they are computed."""
        ...

    def folder(self) -> Path:
        """Folder of the artifacts."""
        ...


async def respond(provider: ResultsProvider, operation: Operation) -> bytes:
    """Carry out an operation and return its response as JSON. After the response to `Collected`,
    call `provider.collected`. Raises Refused."""
    match operation:
        case GetStatus(after, timeout_s):
            if after is not None:
                await provider.wait_change(after, timeout_s)
            return msgspec.json.encode(provider.status())
        case GetSummary():
            found = provider.results()
            if found is None:
                raise Refused("the summary is not computed yet")
            return encode(found)
        case GetClock():
            return msgspec.json.encode(Clock(time_ns()))
        case Cancel(reason):
            provider.cancel(one_line(reason))
        case Start() | Events() | ScalingReport():
            if isinstance(operation, Start):
                _check_start(provider, operation)
            provider.handle_message(operation)
        case Collected() if not provider.status().is_settled:
            raise Refused("the results are not final yet")
    return b"null"


def _check_start(provider: ResultsProvider, start: Start) -> None:
    """Raise Refused if the run, or this trial of it, cannot be started."""
    status = provider.status()
    if status.state != RunState.READY:
        raise Refused(f"the run is {status.state} and does not wait for a start")
    if status.trial != start.trial:
        text = f"trial {start.trial} does not wait for a start; the current trial is {status.trial}"
        raise Refused(text)
    if abs(start.at_wall_ns - time_ns()) > FURTHEST_START_NS:
        raise Refused("a start is at most a minute away; the clocks differ by more")
