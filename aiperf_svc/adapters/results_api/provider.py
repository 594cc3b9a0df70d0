"""The interface of a records manager to the servers of its results."""

from pathlib import Path
from time import time_ns
from typing import Protocol

from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.protocol.run_states import RunState

FURTHEST_START_NS = 60_000_000_000
"""Longest time until a start, so that a wrong clock holds no run for hours."""


class TrialResults(Protocol):
    """What a run, or each trial of an experiment, reports and takes."""

    def status(self) -> Status:
        """Status of the run."""
        ...

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the status has another number than `after`, or the time is up."""
        ...

    def cancel(self, reason: str) -> None:
        """Request the end of the run."""
        ...

    def set_scaling(self, report: ScalingReport) -> None:
        """Set all that the runner has seen of the server's replicas."""
        ...

    def start(self, at_wall_ns: int) -> None:
        """Set the start of the load of a held run, or of the current trial."""
        ...

    def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        """Set all that is known of the events of the load that started at this time."""
        ...


class ResultsProvider(TrialResults, Protocol):
    """Provider of what the API serves, implemented by the records manager."""

    def collected(self) -> None:
        """Record that the results were fetched, so that this process may end."""
        ...

    def results(self) -> Results | None:
        """Results of the run or experiment, once they are computed."""
        ...

    def folder(self) -> Path:
        """Folder of the artifacts."""
        ...

    def manifest(self) -> Manifest | None:
        """Content of manifest.json, once it is written."""
        ...


def refused_start(provider: ResultsProvider, at_wall_ns: int, trial: int) -> str:
    """Return why the run, or this trial of it, cannot be started; empty if it can."""
    status = provider.status()
    if status.state != RunState.READY:
        return f"the run is {status.state} and does not wait for a start"
    if status.trial != trial:
        return f"trial {trial} does not wait for a start; trial {status.trial} is on"
    if abs(at_wall_ns - time_ns()) > FURTHEST_START_NS:
        return "a start is at most a minute away; the clocks differ by more"
    return ""
