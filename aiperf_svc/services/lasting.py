"""What outlives a trial in a process, as the services of a trial see it."""

from dataclasses import dataclass
from typing import Protocol

from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.config.search import Search
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.protocol.run_states import RunState


class TrialSequence(Protocol):
    """Decides which trial follows."""

    def trial_ended(self, state: RunState, reason: str, finding: Finding | None) -> None:
        """Take the end of the trial that is on, and what it found."""
        ...

    def cancel(self, reason: str) -> None:
        """Begin no other trial."""
        ...


class TrialResults(Protocol):
    """What the records manager of one trial tells."""

    def status(self) -> Status:
        """Return the status of the trial."""
        ...

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the status has another number than `after`."""
        ...

    def cancel(self, reason: str) -> None:
        """Ask for the end of the trial."""
        ...

    def start(self, at_wall_ns: int) -> None:
        """Give a held trial its start."""
        ...


class ResultsOfTrials(Protocol):
    """Collects what the records managers of the trials tell, and serves it."""

    @property
    def search(self) -> Search | None:
        """The search that the trials belong to; None without one."""
        ...

    def bucket_folder(self, folder: str) -> str:
        """Return where in the bucket the trial with this folder goes."""
        ...

    async def set_results(self, results: TrialResults) -> None:
        """Take the records manager of the trial that has begun. Raises EnvironmentProblem."""
        ...

    async def add(self, state: RunState, reason: str, results: RunResult | None) -> Finding | None:
        """Take the end of the current trial; what decides which trial follows."""
        ...


@dataclass(kw_only=True)
class Lasting:
    """What a process has for all trials of an experiment."""

    proxies: Proxies | None = None
    """In the process of the system controller, as `sequence` is."""
    sequence: TrialSequence | None = None
    results: ResultsOfTrials | None = None
    """In the process of the records manager."""
