"""The base class of all services: it registers, follows the run's state, and reports.

A service's `work` maps states of the run to the service's work in that state. The service learns
the state from the event bus, does the work, and reports in its heartbeats which state's work it has
finished. Heartbeats and states are published repeatedly, so a lost message only causes a short
delay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic_ns, time_ns
from typing import Any, ClassVar

import zmq

from aiperf_svc.adapters.host.logs import set_phase
from aiperf_svc.adapters.host.vitals import VitalsProbe
from aiperf_svc.adapters.messaging.bus import DOWN, REPORT, UP, Bus, encode, receive_each, topic_of
from aiperf_svc.core.control.control_intervals import registering_interval_s
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import MESSAGE_LIMIT, lines
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.events import (
    CancelRequested,
    Heartbeat,
    Member,
    RecordsAcknowledged,
    RosterPublished,
    RunStatePublished,
    StartRequested,
)
from aiperf_svc.protocol.messages.reports import (
    AddressUse,
    ClockEstimate,
    DatasetReport,
    HistogramDelta,
    PhaseReport,
    StepProgress,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import REPLICAS, Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.context import RunContext

HEARTBEAT_S = 1.0
PREPARING = (RunState.CONFIGURING, RunState.READY)
"""States whose unfinished work is cancelled when the run fails or is cancelled, because it may wait
for services that never register. The work of later states ends by itself with the available
data."""
REGISTERING_GROWTH = 1.5
"""Growth factor of the heartbeat interval until the roster contains this service. A roster of
thousands takes a while, and frequent heartbeats would only slow it down."""


class BaseService:
    """Base class of the seven services."""

    service: ClassVar[Service]
    is_control: ClassVar[bool] = False
    """True if the service receives the heartbeats of the others."""

    def __init__(self, context: RunContext, bus: Bus) -> None:
        self.context = context
        self.bus = bus
        self.id = context.id_of(self.service)
        self.log = logging.getLogger(f"aiperf_svc.{self.service.value}")
        self.state = RunState.PENDING
        self.is_cancelling = False
        self.ends_early = False
        self.start_wall_ns = 0
        """Earliest start of the load; 0 for as soon as possible."""
        self.reached = RunState.PENDING
        self.error = ""
        self.exit_code = ExitCode.BENCHMARK_FAILED
        self.address = ""
        self.batches_read = 0
        self.progress_text = ""
        """Description of slow work: configuration (dataset manager and workers), or reading output
        (record processor of ranks)."""
        self.dataset: DatasetReport | None = None
        """Description of the dataset, once it is built (dataset manager only)."""
        self.target_addresses: tuple[AddressUse, ...] = ()
        """Number of requests to each address, at the end of the load (workers only)."""
        self.network: tuple[tuple[HistogramDelta, ...], ...] = ()
        """Round-trip times to each URL, at the end of the load (workers only)."""
        self.roster: RosterPublished | None = None
        self.work: dict[RunState, Callable[[], Awaitable[None]]] = {}
        self.finished = asyncio.Event()
        """Set when the service has nothing left to do in the run."""
        self._state_number = 0
        self._controller_epoch = 0
        self._states: asyncio.Queue[RunState] = asyncio.Queue()
        self._preparation: asyncio.Timeout | None = None
        """Cancel scope of work that a final state ends, while such work is running."""
        self._beat_now = asyncio.Event()
        self._vitals = VitalsProbe()
        is_replica = self.service in REPLICAS
        self._report_topic = REPORT if is_replica else UP
        self._publisher = bus.connect(zmq.PUB, Port.REPORTS_IN if is_replica else Port.EVENTS_IN)
        self._subscriber = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, DOWN)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, topic_of(self.id))
        if self.is_control:
            self._subscriber.setsockopt(zmq.SUBSCRIBE, UP)
            self._subscriber.setsockopt(zmq.SUBSCRIBE, REPORT)

    async def run(self) -> None:
        """Take part in the run until cancelled or `finished`."""
        tasks: list[Coroutine[Any, Any, None]] = [
            self._send_heartbeats(),
            receive_each(self._subscriber, self._dispatch),
            self._follow(),
            self._vitals.watch_loop(),
            *self.tasks(),
        ]
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task, name=f"{self.id} {getattr(task, '__qualname__', task)}")

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return []

    async def close(self) -> None:
        """Release resources other than sockets of the bus, after `run` has ended."""

    # --- methods that a service may override -----------------------------------------------------

    def on_heartbeat(self, beat: Heartbeat) -> None:
        """Called for each heartbeat of a service (control services only)."""

    def on_roster(self, roster: RosterPublished) -> None:
        """Called when the roster has changed."""

    def on_state(self, state: RunStatePublished) -> None:
        """Called when the published state has changed; slow work belongs in `work`."""

    def on_acknowledged(self, message: RecordsAcknowledged) -> None:
        """Called when the records manager has confirmed records."""

    def on_cancel_requested(self, message: CancelRequested) -> None:
        """Called when the user has requested the end of the run (control services only)."""

    def on_start_requested(self, message: StartRequested) -> None:
        """Called when a held run gets its start time (control services only)."""

    def counts(self) -> tuple[WorkerCounts, ...]:
        """Return the accounts of each phase (workers and timing manager)."""
        return ()

    def phases(self) -> tuple[PhaseReport, ...]:
        """Return a report of each started phase (timing manager only)."""
        return ()

    def steps(self) -> StepProgress | None:
        """Return the progress of a benchmark on ranks (timing manager only)."""
        return None

    def finding(self) -> dict[str, Any] | None:
        """Return the finding for the choice of the next trial (records manager only)."""
        return None

    def can_stop_early(self) -> bool:
        """Return whether the load can end early (records manager only)."""
        return False

    def clock(self) -> ClockEstimate:
        """Return the estimated offset of a worker's clock."""
        return ClockEstimate()

    # --- methods that a service uses -------------------------------------------------------------

    @property
    def header(self) -> tuple[str, str, int]:
        """Return the first three fields of every message."""
        return self.context.run_id, self.id, self.context.epoch

    @property
    def me(self) -> Member | None:
        """Return the entry of this service in the roster; None if it has none."""
        if self.roster is None:
            return None
        mine = (m for m in self.roster.members if m.id == self.id)
        return next((m for m in mine if m.epoch == self.context.epoch), None)

    async def publish(self, topic: bytes, message: Message) -> None:
        """Publish a message on the event bus."""
        await self._publisher.send_multipart([topic, encode(message)])

    def beat(self) -> None:
        """Send a heartbeat now."""
        self._beat_now.set()

    def fail(self, reason: str, exit_code: ExitCode = ExitCode.BENCHMARK_FAILED) -> None:
        """Report to the controller that this service has failed."""
        if not self.error:
            # It may contain text of a file, a server or a store, and all services receive it.
            reason = lines(reason, limit=MESSAGE_LIMIT)
            self.log.error("%s", reason)
            self.error, self.exit_code = reason, exit_code
            self.beat()

    # --- the common machinery --------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        interval_s = registering_interval_s(sum(self.context.topology.expected.values()))
        while True:
            self._beat_now.clear()
            await self.publish(self._report_topic, self._heartbeat())
            if self.me is not None:
                interval_s = HEARTBEAT_S
            await is_set_within(self._beat_now, interval_s)
            interval_s = min(HEARTBEAT_S, REGISTERING_GROWTH * interval_s)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            *self.header,
            service=self.service,
            seen_state=self._state_number,
            seen_roster=self.roster.number if self.roster is not None else 0,
            reached=self.reached,
            error=self.error,
            address=self.address,
            boot_id=self.context.boot_id,
            vitals=self._vitals.take(),
            counts=self.counts(),
            clock=self.clock(),
            phases=self.phases(),
            dataset=self.dataset,
            progress=self.progress_text,
            exit_code=self.exit_code,
            target_addresses=self.target_addresses,
            batches_read=self.batches_read,
            steps=self.steps(),
            finding=self.finding(),
            ends_early=self.can_stop_early(),
            network=self.network,
        )

    def _dispatch(self, message: AnyMessage, topic: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        if topic == REPORT and not is_report(message):
            self.log.warning("dropped: %s reports a %s", message.sender, type(message).__name__)
            return
        match message:
            case Heartbeat():
                self.on_heartbeat(message)
            case RunStatePublished():
                self._handle_state(message)
            case RosterPublished():
                if self.roster is None or message.number > self.roster.number:
                    self.roster = message
                    self.on_roster(message)
                    if message.frozen:
                        self.beat()
            case RecordsAcknowledged():
                self.on_acknowledged(message)
            case CancelRequested():
                self.on_cancel_requested(message)
            case StartRequested():
                self.on_start_requested(message)
            case _:
                self.log.warning("not expected on the event bus: %s", type(message).__name__)

    def _handle_state(self, message: RunStatePublished) -> None:
        if message.epoch > self._controller_epoch and self._accepts_newer(message.state):
            self._controller_epoch, self._state_number = message.epoch, 0
        if message.epoch != self._controller_epoch or message.number <= self._state_number:
            return
        self._state_number = message.number
        is_new = message.state is not self.state
        self.state = message.state
        set_phase(message.state.value)
        self.is_cancelling = message.is_cancelling
        self.ends_early = message.ends_early
        self.start_wall_ns = message.start_wall_ns
        self.on_state(message)
        if is_new:
            self._states.put_nowait(message.state)
            if message.state.is_final and self._preparation is not None:
                self._preparation.reschedule(asyncio.get_running_loop().time())

    def _accepts_newer(self, state: RunState) -> bool:
        """Return whether to accept a state of a newer controller: any state before the run has
        started, and afterwards only the end of the run."""
        return self.state is RunState.PENDING or (state.is_final and not self.state.is_final)

    async def _follow(self) -> None:
        while True:
            state = await self._states.get()
            work = self.work.get(state)
            self.log.info("run is %s", state.value)
            if work is not None:
                try:
                    if not await self._do(work, state):
                        continue
                except AiperfError as error:
                    self.fail(str(error), error.exit_code)
                    continue
                except Exception as error:
                    self.log.exception("failed while %s", state.value)
                    self.fail(f"{type(error).__name__}: {error}")
                    continue
            self.reached = state
            if state.is_final and not self.stays_after_end:
                # The controller waits for this heartbeat, and the process may end right after it.
                await self.publish(self._report_topic, self._heartbeat())
                self.finished.set()
            else:
                self.beat()

    async def _do(self, work: Callable[[], Awaitable[None]], state: RunState) -> bool:
        """Do the work of a state. Returns False if a final state has cancelled it."""
        if state not in PREPARING:
            await work()
            return True
        if self.state.is_final:
            return False
        self._preparation = scope = asyncio.timeout(None)
        try:
            async with scope:
                await work()
        except TimeoutError:
            if not scope.expired():
                raise
            return False
        finally:
            self._preparation = None
        return True

    stays_after_end: ClassVar[bool] = False
    """True if the service is still needed after the run has ended."""


def is_report(message: AnyMessage) -> bool:
    """Return whether a worker or record processor may send this message: only its own heartbeat."""
    return (
        isinstance(message, Heartbeat)
        and message.service in REPLICAS
        and message.sender not in frozenset(Service)
    )


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most `seconds`, and return whether it is set.

    Python 3.11's `wait_for` loses a cancellation that arrives together with the event.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def every(seconds: float, action: Callable[[], Awaitable[None] | None]) -> None:
    """Call `action` about every `seconds`, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        result = action()
        if result is not None:
            await result


def mono_ns() -> int:
    """Return the monotonic time, for measuring intervals."""
    return monotonic_ns()


def wall_ns() -> int:
    """Return the wall-clock time, for due times and timestamps."""
    return time_ns()
