"""The parts of a heartbeat: health, counts and progress of a service."""

import msgspec

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.base import Value


class Vitals(Value, frozen=True):
    """Health of a service, for the verdict. CPU and lag are those of the last interval."""

    cpu_fraction: float = 0.0
    """Fraction of one core."""
    throttled_ns: int = 0
    """Time taken away by the cgroup's CPU quota since start."""
    loop_lag_ns: int = 0
    """Largest delay of the event loop."""
    rss_bytes: int = 0
    open_fds: int = 0
    fd_limit: int = 0
    stolen_ns: int = 0
    """Steal time per core: the virtual machine's host ran others. Since start."""
    pressure_ns: int = 0
    """Time since start in which a task of the node waited for a CPU; 0 if the kernel does not
    report it."""
    waited_ns: int = 0
    """Time since start in which the process' main thread was runnable and waited for a CPU; 0 if
    the kernel does not report it."""


class WorkerCounts(Value, frozen=True):
    """Cumulative counts of a worker in one phase."""

    phase: Phase
    granted: int = 0
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    unsent: int = 0
    revoked: int = 0
    requests_sent: int = 0
    """Requests written to a socket; a request that is sent again counts twice."""
    in_flight: int = 0
    capped: int = 0
    """Requests that waited for the concurrency cap or a connection."""
    last_seq: int = 0
    """Highest record sequence number assigned, over all phases."""
    records_dropped: int = 0
    """Records that could not be kept for resending when their record processor died."""
    clock_steps_ns: int = 0
    """Sum of the steps of the wall clock of over a millisecond, in either direction."""
    ended_near_steps: int = 0
    """Requests that ended shortly before such a step was detected, possibly after the step, and
    lack the flag CLOCK_JUMP."""
    retries: int = 0
    """Requests to send again because the server closed the reused connection before they
    arrived."""
    held_back_ns: int = 0
    """Time in which the worker sent nothing, and read only the beginnings of responses, because too
    many records waited for the record processor."""
    abandoned: int = 0
    """Credits that ended because their client disconnected, as configured."""
    turns_completed: int = 0
    """Completed requests that were not the last of their conversations."""
    longest_pause_ns: int = 0
    """Longest think time of any conversation, including current waits."""
    connecting: int = 0
    """Part of `unsent`: requests whose connections were being made at the stop."""
    history_defects: tuple[int, ...] = ()
    """Number of responses of conversations with each `Defect` of their tool calls."""
    unasked: int = 0
    """Connections that received bytes without a pending request."""


class ClockEstimate(Value, frozen=True):
    """Offset from a worker's clock to the timing manager's: `timing = worker + offset`."""

    offset_ns: int = 0
    uncertainty_ns: int = 0
    same_host: bool = False
    at_wall_ns: int = 0
    """Worker's own time at which the offset was measured; 0: unknown."""
    steps_ns: int = 0
    """Sum of the clock steps of the timing manager that the worker has seen."""


class AddressUse(Value, frozen=True):
    """A worker's use of one address of the target."""

    address: str
    connections: int = 0
    """Connections made in the whole run."""
    requests: int = 0
    """Requests written in the profiling phase."""
    failures: int = 0
    """Connections that could not be made, in the whole run."""
    error: str = ""
    """Reason of the last of these failures."""
    is_down: bool = False
    """True if the address is down at the end of the load."""


class HistogramDelta(Value, frozen=True):
    """Counts to add to a pooled histogram: parallel little-endian int32 buckets and int64
    counts."""

    phase: Phase
    tag: str
    buckets: bytes
    counts: bytes
    total: int
    sum_ns: int
    min_ns: int
    max_ns: int
    sum_squares: float = 0.0


class HookCall(Value, frozen=True):
    """A request to a server before or after a phase."""

    text: str
    """The request and its time, as text."""
    took_ms: float
    problem: str = ""
    """What went wrong; empty if nothing did."""


class PhaseReport(Value, frozen=True):
    """Times of a phase by the timing manager's clock, and the credits granted in it. The accounts
    of a run start from this report."""

    phase: Phase
    start_wall_ns: int
    stop_wall_ns: int = 0
    """Time at which sending ends by time or by the user; 0: it ends when the credits run out."""
    ramp_ns: int = 0
    granted: int = 0
    """Credits granted to all workers together."""
    granted_to_lost: dict[str, int] = msgspec.field(default_factory=dict)
    """Credits granted to lost workers, by id. A lost worker's last report may be older."""
    scheduled: int = 0
    """Conversations of the phase (or until its stop) by a fixed schedule, or expected from a
    changing rate; 0: the load has neither."""
    scheduled_rate: float = 0.0
    """Conversations per second; 0: they take no time."""
    hooks: tuple[HookCall, ...] = ()
    """Hooks called before and after the phase."""


class TokenStatistics(Value, frozen=True):
    """Token counts of a dataset's turns."""

    avg: float
    std: float
    min: int
    max: int
    count: int
    """Turns whose number of tokens is known."""
    sum: int


class ForcedLengthReport(Value, frozen=True):
    """The target's response to a request that forces its output length."""

    finding: str
    """A `core.endpoints.forced_length.Finding`."""
    said: str = ""
    """Message of the target."""
    requests: int = 0
    """Number of requests that workers sent for this test; they are not part of the load."""


class DatasetReport(Value, frozen=True):
    """Description of the dataset that the dataset manager has built."""

    kind: str
    source: str
    source_sha256: str | None
    """Checksum of the source file; None without a file."""
    sha256: str | None
    """Checksum of all request bodies; None if they are built on demand."""
    entries: int
    distinct_entries: int | None
    """None as above."""
    turns: int
    left_out: int
    """Number of entries of the source that are not prompts."""
    bytes: int | None
    """Size of all request bodies; None as above."""
    tokenizer: str | None
    input_tokens: TokenStatistics | None
    output_tokens: TokenStatistics | None
    """Requested output tokens; None if no request asks for a number."""
    warmup_entries: int
    forced_output_length: ForcedLengthReport | None = None
    """Result of the probe; None until a worker has made it."""
    streams: int | None = None
    """Number of agents of all session trees; None if entries are not trees."""
    theoretical_prefix_cache_hit: float | None = None
    """Share of the blocks of an agent trace that an unlimited prefix cache would hit if each tree
    ran alone, from 0 to 1; None if the trace has no blocks."""
    has_random_text: bool = False
    """Whether some or all prompts are random words."""


class RankInfo(Value, frozen=True):
    number: int
    role: str
    node: str
    address: str
    cores: float
    memory_bytes: int
    """Limit; 0: none."""


class StepProgress(Value, frozen=True):
    """Progress of a benchmark on ranks."""

    total: int
    """Steps of the run, repetitions included."""
    ended: int
    attempts: int
    """Finished attempts at steps. Each leaves a StepRecord, except those in `silent`."""
    name: str = ""
    """Name of the current step."""
    stage: str = ""
    """Its `StepStage`."""
    due_wall_ns: int = 0
    """When its commands start; 0: not known yet."""
    expected_ns: int = 0
    text: str = ""
    """Progress text of its command."""
    failures: tuple[str, ...] = ()
    """Problems so far."""
    ranks: tuple[RankInfo, ...] = ()
    silent: int = 0
    """Attempts of which all ranks were lost, so that no rank can report them."""
