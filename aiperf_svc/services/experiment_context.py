"""What a process keeps from trial to trial of an experiment, as the services of a trial see it."""

from dataclasses import dataclass
from typing import Protocol

from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.config.search import Search
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.protocol.run_states import RunState


class TrialSequence(Protocol):
    """Decides which trial follows."""

    def trial_ended(self, state: RunState, reason: str, finding: Finding | None) -> None:
        """Record the end of the current trial and its finding."""
        ...

    def cancel(self, reason: str) -> None:
        """Begin no further trial."""
        ...


class TrialResults(Protocol):
    """The records manager of one trial, as seen by the results of the experiment."""

    def status(self) -> Status:
        """Return the status of the trial."""
        ...

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the number of the status differs from `after`, or the time is up."""
        ...

    def cancel(self, reason: str) -> None:
        """Request the end of the trial."""
        ...

    def set_scaling(self, report: ScalingReport) -> None:
        """Set all that the runner has seen of the server's replicas."""
        ...

    def start(self, at_wall_ns: int) -> None:
        """Set the start time of a held trial."""
        ...

    def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        """Set all that is known of the events of the load that started at this time."""
        ...


class ResultsOfTrials(Protocol):
    """Collects the results of all trials and serves them."""

    @property
    def search(self) -> Search | None:
        """The search of the experiment; None without one."""
        ...

    def bucket_folder(self, folder: str) -> str:
        """Return the folder in the bucket for the trial with this folder."""
        ...

    async def set_results(self, results: TrialResults) -> None:
        """Set the records manager of the current trial. Raises EnvironmentProblem."""
        ...

    async def add(self, state: RunState, reason: str, results: RunResult | None) -> Finding | None:
        """Record the end of the current trial. Returns what the choice of the next trial depends
        on."""
        ...


@dataclass(kw_only=True)
class ExperimentContext:
    """Objects of a process that all trials of an experiment share."""

    proxies: Proxies | None = None
    """Set in the process of the system controller, as is `sequence`."""
    sequence: TrialSequence | None = None
    results: ResultsOfTrials | None = None
    """Set in the process of the records manager."""
