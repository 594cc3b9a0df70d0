"""Credits: timing manager to worker and back, and the clocks of the two."""

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.reports import WorkerCounts


class WorkerAttached(Message, frozen=True):
    """Registers a worker at the credit router; the first message on its credit socket."""


class ClockProbed(Message, frozen=True):
    """Asks the timing manager for its time."""

    sent_wall_ns: int
    sent_raw_ns: int = 0


class ClockReply(Message, frozen=True):
    """The reply to ClockProbed: NTP's four timestamps without the last one."""

    sent_wall_ns: int
    received_wall_ns: int
    replied_wall_ns: int
    boot_id: str
    sent_raw_ns: int = 0
    """Time of the probe by the worker's raw clock."""
    received_raw_ns: int = 0
    replied_raw_ns: int = 0
    """Raw-clock time of `replied_wall_ns`, exact to `slack_ns`."""
    slack_ns: int = 0


class PhaseOpened(Message, frozen=True):
    """Announces the start of a phase. All times are of the timing manager's clock."""

    phase: Phase
    start_wall_ns: int
    stop_wall_ns: int
    """No request is sent after this time; 0: the phase ends when the credits run out."""
    grace_ns: int
    is_open_loop: bool
    concurrency: int
    """Total over all workers: users in closed loop, the cap in open loop (0: none)."""
    ramp_ns: int
    worker_rank: int
    worker_count: int
    prefill_concurrency: int = 0
    """Total over all workers: maximum requests that wait for their first token; 0: no limit."""
    prefill_ramp_ns: int = 0


class CreditsGranted(Message, frozen=True):
    """Grants permission to run the conversations `first_index + k * stride` for k in 0..count-1."""

    phase: Phase
    first_index: int
    stride: int
    count: int
    due_wall_ns: bytes = b""
    """Open loop: int64 little-endian due times, timing manager's clock; empty in closed loop."""
    last_turns: int = 0
    """Number of turns after which the last conversation of the block ends; 0: all of them."""


class PhaseStopped(Message, frozen=True):
    """Tells a worker to stop sending, to return its unsent credits, and to cancel what is in flight
    at `cancel_wall_ns`."""

    phase: Phase
    stop_wall_ns: int
    cancel_wall_ns: int


class CreditsReturned(Message, frozen=True):
    """Outcomes of a worker's credits. Cumulative: a repeated message changes nothing."""

    counts: WorkerCounts
    is_idle: bool
    """True if the worker holds no credit and has nothing in flight."""
    taken_mono_ns: int = 0
    """Monotonic time of the worker at which the counts were taken. Rates are computed from it."""
