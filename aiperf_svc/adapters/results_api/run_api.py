"""Defines the runner's interface to a run, over HTTP (`client.py`) or, on this machine, over a
socket file (`local_socket.py`)."""

from typing import Protocol

from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.domain.errors import EnvironmentProblem


class ApiUnavailable(EnvironmentProblem):
    """Raised when the API cannot be reached or does not respond in time. A retry may help."""


class ApiRefused(EnvironmentProblem):
    """Raised when the API responds with an error."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class RunApi(Protocol):
    """The interface of a run's records manager. Its methods raise ApiUnavailable and ApiRefused."""

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        """Return the run's state. With `after`, wait until its number differs or the time is up."""
        ...

    async def results(self) -> "Results":
        """Return the results of the run or experiment."""
        ...

    async def cancel(self, reason: str) -> None:
        """Stop the run. Results so far are kept and reported."""
        ...

    async def start(self, at_wall_ns: int, *, trial: int = 1) -> None:
        """Start the load of a held run, or of this trial of it, at this time by the clock of its
        records manager."""
        ...

    async def clock(self) -> int:
        """Return the time in ns by the clock of the records manager."""
        ...

    async def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        """Set all that is known of the events of the run, or of the trial, whose load started at
        this time by the clock of its records manager."""
        ...

    async def collected(self) -> None:
        """Tell the records manager that the results were fetched, so that it may end."""
        ...
