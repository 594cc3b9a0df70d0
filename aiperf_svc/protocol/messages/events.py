"""The event bus. Services send heartbeats and requests up to the control services, which publish
the state of the run and the roster to all.

The bus may lose any message, so each one carries the whole current state and is published on every
change and again until all receivers have confirmed it.
"""

from typing import Any

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.json_objects import Parameters
from aiperf_svc.protocol.messages.base import Message, Value
from aiperf_svc.protocol.messages.reports import (
    AddressUse,
    ClockEstimate,
    DatasetReport,
    HistogramDelta,
    PhaseReport,
    StepProgress,
    Vitals,
    WorkerCounts,
)
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service


class Heartbeat(Message, frozen=True):
    """Registers a service and reports its health, every second and on every change of `reached`."""

    service: Service
    seen_state: int
    """Number of the latest `RunStatePublished` that the service has handled."""
    seen_roster: int
    reached: RunState
    """Latest state of the run whose work this service has finished."""
    error: str = ""
    """Error that prevents the service from continuing; ends the run."""
    address: str = ""
    """Address at which peers reach a record processor directly."""
    boot_id: str = ""
    """Boot id of the kernel: services with one kernel share one clock."""
    vitals: Vitals = Vitals()
    counts: tuple[WorkerCounts, ...] = ()
    clock: ClockEstimate = ClockEstimate()
    phases: tuple[PhaseReport, ...] = ()
    """Every phase that has begun; sent by the timing manager."""
    dataset: DatasetReport | None = None
    """The dataset, once it is built; sent by the dataset manager."""
    progress: str = ""
    """Activities that delay the configuration; sent by the dataset manager and workers."""
    exit_code: ExitCode = ExitCode.BENCHMARK_FAILED
    """Exit code for `error`."""
    target_addresses: tuple[AddressUse, ...] = ()
    """Use of the target's addresses; sent by a worker once the load has ended."""
    batches_read: int = 0
    """Raw batches that a record processor has read. While it grows, records may still arrive."""
    steps: StepProgress | None = None
    """Progress of a benchmark on ranks (timing manager only)."""
    finding: dict[str, Any] | None = None
    """Finding of the trial's results that a search needs (records manager only)."""
    ends_early: bool = False
    """True if the load can end early, because the search has its answer (records manager only)."""
    network: tuple[tuple[HistogramDelta, ...], ...] = ()
    """Connection and round-trip times of each URL of the target, one histogram for each metric;
    sent by a worker once the load has ended."""


class CancelRequested(Message, frozen=True):
    """Requests the end of the run and keeps its results. Repeated until the published state shows
    it."""

    reason: str


class StartRequested(Message, frozen=True):
    """Sets the start time of a held run. Repeated until the published state shows it."""

    at_wall_ns: int


class Member(Value, frozen=True):
    """One service instance that takes part in the run."""

    id: str
    service: Service
    epoch: int
    rank: int
    """0, 1, … among the instances of its service, fixed when the roster freezes."""
    address: str = ""
    processor: str = ""
    """Id of the record processor that receives a worker's records."""
    lost: bool = False
    clock: ClockEstimate = ClockEstimate()


class RosterPublished(Message, frozen=True):
    """The roster. Published by the worker manager on change, and again until all members have seen
    it; a frozen roster is published to each member separately."""

    number: int
    frozen: bool
    complete: bool
    """True when every expected instance has registered."""
    missing: tuple[str, ...]
    members: tuple[Member, ...]
    """A frozen roster has only the members that its receiver deals with: all for a singleton, a
    worker and its processor for a worker, a processor and its workers for a processor."""


class RunStatePublished(Message, frozen=True):
    """The state of the run. Published by the system controller on change, and again twice a
    second."""

    number: int
    state: RunState
    reason: str = ""
    """Reason of a failure or a cancellation."""
    is_cancelling: bool = False
    exit_code: ExitCode = ExitCode.BENCHMARK_FAILED
    """Exit code of the run, valid in the state `failed`."""
    ends_early: bool = False
    """True if the load must end now. The run then continues with its results."""
    start_wall_ns: int = 0
    """Earliest start of the load; 0: as soon as possible."""


class TrialPublished(Message, frozen=True):
    """The current trial of an experiment. Published by the system controller on change, and again
    twice a second; `run_id` is that of the experiment."""

    serial: int
    """Number of trials begun, this one included. Every attempt counts."""
    number: int
    """Number of the trial in the plan, from 1."""
    parameters: Parameters
    """Value of each changed key of the config."""
    repetition: int
    attempt: int
    """From 1."""
    total: int
    """Number of trials of the experiment; 0 if unknown."""
    is_over: bool = False
    """True when this trial was the last one and has ended."""
    state: RunState = RunState.PENDING
    """How the experiment ended; empty while it runs."""
    reason: str = ""


class RecordsAcknowledged(Message, frozen=True):
    """For each worker, the highest sequence number up to which the records manager has every
    record."""

    highest: dict[str, int]
