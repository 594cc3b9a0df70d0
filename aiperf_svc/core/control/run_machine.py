"""The state machine of a run: takes events, returns instructions, has no I/O and no clock.

    pending ─ roster complete → configuring ─ all configured → ready ─ all saw the frozen roster →
    warmup (if any) → profiling ─ timing manager done → draining ─ nothing on its way → processing ─
    results written → done | failed | cancelled

A held run stays in `ready` until it receives a start time, so that several runs can start together.

The controller publishes the state. Each service reports in its heartbeats the latest state whose
work it has finished (`reached`). A lost message delays the run by one heartbeat and never fails
it.
"""

from collections import deque

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.messages.events import Heartbeat, Member
from aiperf_svc.protocol.ports import REPLICAS
from aiperf_svc.protocol.run_states import FINAL_STATES, RunState
from aiperf_svc.protocol.services import Service

ORDER = tuple(RunState)
_INDEX = {state: number for number, state in enumerate(ORDER)}

NEEDED: dict[RunState, frozenset[Service]] = {
    RunState.CONFIGURING: frozenset(Service) - {Service.SYSTEM_CONTROLLER},
    RunState.READY: frozenset(Service) - {Service.SYSTEM_CONTROLLER},
    RunState.WARMUP: frozenset({Service.TIMING_MANAGER}),
    RunState.PROFILING: frozenset({Service.TIMING_MANAGER}),
    RunState.DRAINING: frozenset({Service.RECORDS_MANAGER}),
    RunState.PROCESSING: frozenset({Service.RECORDS_MANAGER}),
    **dict.fromkeys(FINAL_STATES, frozenset(Service) - {Service.SYSTEM_CONTROLLER}),
}
"""The services whose work completes each state. Final states have no successor."""


class RosterChanged(msgspec.Struct, frozen=True):
    """Event: the roster has changed."""

    members: tuple[Member, ...]
    is_complete: bool


class HeartbeatReceived(msgspec.Struct, frozen=True):
    """Event: a member has sent a heartbeat."""

    beat: Heartbeat


class CancelRequested(msgspec.Struct, frozen=True):
    """Event: the user has requested the end of the run."""

    reason: str


class StartScheduled(msgspec.Struct, frozen=True):
    """Event: a held run may start its load at this time."""

    at_wall_ns: int


class DeadlinePassed(msgspec.Struct, frozen=True):
    """Event: the run has been in a state for too long."""

    state: RunState
    reason: str


class Publish(msgspec.Struct, frozen=True):
    """Instruction: publish the state to all services."""

    state: RunState
    reason: str
    is_cancelling: bool


class MarkStarted(msgspec.Struct, frozen=True):
    """Instruction: write a marker that this run has begun, so it never begins twice."""


class FreezeRoster(msgspec.Struct, frozen=True):
    """Instruction: freeze the roster. Services that register later take no part."""


Event = RosterChanged | HeartbeatReceived | CancelRequested | StartScheduled | DeadlinePassed
Instruction = Publish | MarkStarted | FreezeRoster


class RunMachine:
    def __init__(self, *, has_warmup: bool, is_held: bool = False) -> None:
        self.state = RunState.PENDING
        self.reason = ""
        self.exit_code = ExitCode.BENCHMARK_FAILED
        """Kind of failure, valid in the state `failed`."""
        self.is_cancelling = False
        self.ends_early = False
        """True if the load ends early because the records manager has enough data."""
        self.start_wall_ns = 0
        """Earliest start of the load; 0: as soon as possible."""
        self._has_warmup = has_warmup
        self._is_held = is_held
        self._members: dict[str, Member] = {}
        self._is_complete = False
        self._reached: dict[str, tuple[int, RunState]] = {}
        self._waiting: set[str] | None = None
        """Ids of the services that have not finished the state's work; None: must be
        recomputed."""
        self.story: deque[str] = deque(maxlen=32)
        """The last events, for error messages."""

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions to carry out."""
        self._note(event)
        if self.state.is_final:
            return []
        before = (self.state, self.reason, self.is_cancelling, self.ends_early)
        self.story.append(f"{self.state.value}: {type(event).__name__}")
        match event:
            case RosterChanged():
                self._check_losses()
            case HeartbeatReceived(beat=beat):
                if self._was_restarted(beat):
                    self._fail(f"{beat.sender} was started again; the run cannot continue")
                elif beat.error and self._takes_part(beat):
                    self._fail(f"{beat.sender}: {beat.error}", beat.exit_code)
                elif beat.ends_early and self.state is RunState.PROFILING:
                    self.ends_early = True
            case CancelRequested(reason=reason):
                if not self.is_cancelling:
                    self.is_cancelling = True
                    self.reason = reason
            case StartScheduled(at_wall_ns=at) if self._is_held and not self.start_wall_ns:
                self.start_wall_ns = at
            case DeadlinePassed(state=state, reason=reason):
                if state is self.state:
                    self._fail(reason)
        instructions: list[Instruction] = []
        while not self.state.is_final and self._is_state_done():
            instructions += self._advance()
        if (self.state, self.reason, self.is_cancelling, self.ends_early) != before:
            instructions.append(Publish(self.state, self.reason, self.is_cancelling))
        return instructions

    @property
    def has_everyone_ended(self) -> bool:
        """True if the state is final and every remaining service has finished its last work."""
        return self.state.is_final and not self._still_waiting_for()

    def _note(self, event: Event) -> None:
        match event:
            case RosterChanged():
                self._members = {m.id: m for m in event.members}
                self._is_complete = event.is_complete
                self._waiting = None
            case HeartbeatReceived(beat=beat):
                self._reached[beat.sender] = (beat.epoch, beat.reached)
                if self._waiting and beat.sender in self._waiting:
                    member = self._members[beat.sender]
                    if self._has_reached(member):
                        self._waiting.discard(beat.sender)

    def waiting_for(self) -> tuple[str, ...]:
        """Return the ids of the services that have not finished the current state's work."""
        return tuple(m for m in self._members if m in self._still_waiting_for())

    def _still_waiting_for(self) -> set[str]:
        if self._waiting is None:
            needed = NEEDED.get(self.state, frozenset())
            self._waiting = {
                m.id
                for m in self._members.values()
                if m.service in needed and not m.lost and not self._has_reached(m)
            }
        return self._waiting

    def _is_state_done(self) -> bool:
        early = _INDEX[self.state] < _INDEX[RunState.WARMUP]
        if self.is_cancelling and early:
            return True
        if self.state is RunState.PENDING:
            return self._is_complete
        if early and not self._is_complete:
            # A registered service is lost. Until the roster freezes, another may replace it.
            return False
        if self.state is RunState.READY and self._is_held and not self.start_wall_ns:
            return False
        return not self._still_waiting_for()

    def _has_reached(self, member: Member) -> bool:
        epoch, reached = self._reached.get(member.id, (0, RunState.PENDING))
        return epoch == member.epoch and _INDEX[reached] >= _INDEX[self.state]

    def _takes_part(self, beat: Heartbeat) -> bool:
        """Return whether an error of this service fails the run. After the freeze, errors of late
        instances do not."""
        member = self._members.get(beat.sender)
        if member is None:
            return _INDEX[self.state] < _INDEX[RunState.READY]
        return not member.lost and member.epoch == beat.epoch

    def _was_restarted(self, beat: Heartbeat) -> bool:
        """Return whether a singleton was restarted after the load began. Its lost state would hide
        losses, or keep the load from ending."""
        if beat.service in REPLICAS or _INDEX[self.state] <= _INDEX[RunState.READY]:
            return False
        member = self._members.get(beat.sender)
        return member is not None and beat.epoch > member.epoch

    def _advance(self) -> list[Instruction]:
        self._waiting = None
        if self.is_cancelling and _INDEX[self.state] < _INDEX[RunState.WARMUP]:
            self.state = RunState.CANCELLED
            return []
        match self.state:
            case RunState.PENDING:
                self.state = RunState.CONFIGURING
            case RunState.CONFIGURING:
                self.state = RunState.READY
                return [FreezeRoster()]
            case RunState.READY:
                self.state = RunState.WARMUP if self._has_warmup else RunState.PROFILING
                return [MarkStarted()]
            case RunState.WARMUP:
                self.state = RunState.DRAINING if self.is_cancelling else RunState.PROFILING
            case RunState.PROFILING:
                self.state = RunState.DRAINING
            case RunState.DRAINING:
                self.state = RunState.PROCESSING
            case RunState.PROCESSING:
                self.state = RunState.CANCELLED if self.is_cancelling else RunState.DONE
            case _:
                raise AssertionError(f"no transition from {self.state}; {list(self.story)}")
        return []

    def _check_losses(self) -> None:
        for member in self._members.values():
            if member.lost and member.service not in REPLICAS:
                self._fail(f"{member.id} was lost; the run cannot continue without it")

    def _fail(self, reason: str, exit_code: ExitCode = ExitCode.BENCHMARK_FAILED) -> None:
        self._waiting = None
        self.state = RunState.FAILED
        self.reason = reason
        self.exit_code = exit_code
