"""The operations of a run's results API. The runner calls them over HTTP (`client.py`) or, on this
machine, over a socket file (`local_socket.py`); `provider.py` carries them out.

Each operation is a message. Its tag is its name: GET or POST /v1/<tag> over HTTP.
"""

from abc import ABC, abstractmethod

import msgspec

from aiperf_svc.adapters.exports.result_files import Results, decode
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.domain.errors import EnvironmentProblem

BYTES = "application/octet-stream"
"""Content type of result files for a client that accepts only this. Proxies, such as the API
server's, rewrite the links of a `text/html` page, whose hash would then be wrong."""


class ApiUnavailable(EnvironmentProblem):
    """Raised when the API cannot be reached or does not respond in time. A retry may help."""


class ApiRefused(EnvironmentProblem):
    """Raised when the API responds with an error."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class GetStatus(msgspec.Struct, tag="status", omit_defaults=True):
    """Return the status. With `after`, wait until its number differs or the timeout."""

    after: int | None = None
    timeout_s: float = 0.0


class GetSummary(msgspec.Struct, tag="summary"):
    """Return the results of the run or experiment."""


class GetClock(msgspec.Struct, tag="clock"):
    """Return the time by the records manager's clock."""


class Cancel(msgspec.Struct, tag="cancel"):
    """Stop the run. Results so far are kept and reported."""

    reason: str = "requested through the API"


class Start(msgspec.Struct, tag="start"):
    """Start the load of a held run, or of this trial of it."""

    at_wall_ns: int
    trial: int = 1


class Events(msgspec.Struct, tag="events"):
    """Set the complete report on the events of the load that started at this time."""

    start_wall_ns: int
    events: tuple[EventReport, ...]


class Collected(msgspec.Struct, tag="collected"):
    """Report that the results were fetched, so the process may end."""


class Clock(msgspec.Struct):
    """The time by the records manager's clock."""

    wall_ns: int


RunnerMessage = Start | Events | ScalingReport
"""Messages of the runner to a run, or to the current trial of an experiment."""
Operation = GetStatus | GetSummary | GetClock | Cancel | RunnerMessage | Collected


class RunApi(ABC):
    """A client of a run's records manager. Its methods raise ApiUnavailable and ApiRefused."""

    @abstractmethod
    async def _call(self, operation: Operation, *, wait_s: float = 0.0) -> bytes:
        """Send an operation and return its response. `wait_s` is the operation's own wait."""

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        """Return the run's state. With `after`, wait until its number differs or the timeout."""
        operation = GetStatus(after, timeout_s)
        return msgspec.json.decode(await self._call(operation, wait_s=timeout_s), type=Status)

    async def results(self) -> Results:
        """Return the results of the run or experiment."""
        return decode(await self._call(GetSummary()))

    async def cancel(self, reason: str) -> None:
        """Stop the run. Results so far are kept and reported."""
        await self._call(Cancel(reason))

    async def start(self, at_wall_ns: int, *, trial: int = 1) -> None:
        """Start the load of a held run, or of this trial of it, at this time by its records
        manager's clock."""
        await self._call(Start(at_wall_ns, trial))

    async def clock(self) -> int:
        """Return the time in ns by the clock of the records manager."""
        return msgspec.json.decode(await self._call(GetClock()), type=Clock).wall_ns

    async def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        """Set the complete report on the events of the run, or of the trial, whose load started at
        this time by its records manager's clock."""
        await self._call(Events(start_wall_ns, reports))

    async def set_scaling(self, report: ScalingReport) -> None:
        """Set the complete report on the server's replicas, by the records manager's clock."""
        await self._call(report)

    async def collected(self) -> None:
        """Tell the records manager that the results were fetched, so it may end."""
        await self._call(Collected())
