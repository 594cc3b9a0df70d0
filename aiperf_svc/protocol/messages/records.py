"""All messages between services.

Three kinds of path, three rules:

- The *event bus* is publish/subscribe and may lose any message. So messages on it carry the whole
  current state, published on every change and again until all receivers have confirmed it.
- *Credits* travel on an addressed, mandatory-routing pair of sockets, in blocks.
- *Records* travel in batches with per-worker sequence numbers and are kept until acknowledged.

Every message carries the run it belongs to and the epoch (start time) of the process that sent it,
so that a receiver refuses messages of a previous run or of a restarted process.
"""

from enum import StrEnum
from typing import Any

import msgspec

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.base import Message, Value
from aiperf_svc.protocol.messages.indexes import (
    CollectorReply,
    IndexBegun,
    IndexEnded,
    IndexFilePart,
)
from aiperf_svc.protocol.messages.steps import (
    CommandLaunched,
    LaunchEnded,
    LaunchRequested,
    RankAttached,
    RankFiles,
    RankFilesRequested,
    RankStatus,
    StepOrder,
    StepOutput,
    StepRecord,
)


class Service(StrEnum):
    """The seven services."""

    SYSTEM_CONTROLLER = "system-controller"
    DATASET_MANAGER = "dataset-manager"
    TIMING_MANAGER = "timing-manager"
    WORKER_MANAGER = "worker-manager"
    RECORDS_MANAGER = "records-manager"
    WORKER = "worker"
    RECORD_PROCESSOR = "record-processor"


class RunState(StrEnum):
    """The states of a run; the last three are final."""

    PENDING = "pending"
    CONFIGURING = "configuring"
    READY = "ready"
    WARMUP = "warmup"
    PROFILING = "profiling"
    DRAINING = "draining"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if no state follows."""
        return self in (RunState.DONE, RunState.FAILED, RunState.CANCELLED)


# --- event bus, up: from every service to the control services -----------------------------------


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
    """Time per core that the virtual machine's host gave to others since start."""
    pressure_ns: int = 0
    """Time in which something on the node waited for a CPU, since start; 0 if the kernel does not
    tell."""


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
    max_in_flight: int = 0
    capped: int = 0
    """Requests that waited for the concurrency cap or a connection."""
    last_seq: int = 0
    """Highest record sequence number given out, over all phases."""
    records_dropped: int = 0
    """Records that could not be kept for resending when their record processor died."""
    clock_steps_ns: int = 0
    """Sum of the steps of the wall clock of over a millisecond, in either direction."""
    ended_near_steps: int = 0
    """Requests that ended shortly before such a step was noticed, perhaps after it, and do not have
    the flag CLOCK_JUMP."""
    retries: int = 0
    """Requests to send again because the server closed the reused connection before they
    arrived."""
    held_back_ns: int = 0
    """Time in which the worker sent nothing, and read only the beginnings of responses, because too
    many records waited for the record processor."""
    abandoned: int = 0
    """Credits that ended because their client left, as the load asks for."""
    turns_completed: int = 0
    """Completed requests after which their conversations went on."""
    longest_pause_ns: int = 0
    """Longest think time that a conversation waited for, or still waits for."""


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
    """The request and its time, in words."""
    took_ms: float
    problem: str = ""
    """What went wrong; empty if nothing did."""


class PhaseReport(Value, frozen=True):
    """Times of a phase by the timing manager's clock, and the credits granted in it. The accounts
    of a run start from this."""

    phase: Phase
    start_wall_ns: int
    stop_wall_ns: int = 0
    """Time at which sending ends by time or by the user; 0: it ends when the credits run out."""
    ramp_ns: int = 0
    granted: int = 0
    """Credits granted to all workers together."""
    granted_to_lost: dict[str, int] = msgspec.field(default_factory=dict)
    """Those granted to lost workers, by id. A lost worker's own last report may be older."""
    scheduled: int = 0
    """Conversations that a fixed schedule has in the phase, or until its stop, or that a rate that
    changes lets expect; 0: the load has neither."""
    scheduled_rate: float = 0.0
    """Their number per second; 0: they take no time."""
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


class DatasetReport(Value, frozen=True):
    """Description of the dataset that the dataset manager has built."""

    kind: str
    source: str
    source_sha256: str | None
    """Checksum of the source file; None without a file."""
    sha256: str | None
    """Checksum of all request bodies; None if they are made when they are asked for."""
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


class RankInfo(Value, frozen=True):
    """Where a rank is."""

    number: int
    role: str
    node: str
    address: str
    cores: float
    memory_bytes: int
    """Limit; 0: none."""


class StepProgress(Value, frozen=True):
    """How far a benchmark on ranks is."""

    total: int
    """Steps of the run, repetitions included."""
    ended: int
    attempts: int
    """Attempts at steps that have ended; each leaves a StepRecord, but for those in `silent`."""
    name: str = ""
    """Name of the step under way."""
    stage: str = ""
    """Its `StepStage`."""
    due_wall_ns: int = 0
    """When its commands start; 0 before that is known."""
    expected_ns: int = 0
    text: str = ""
    """What its command says of itself."""
    failures: tuple[str, ...] = ()
    """What went wrong so far."""
    ranks: tuple[RankInfo, ...] = ()
    silent: int = 0
    """Attempts of which all ranks were lost: nobody is left to report them."""


class Heartbeat(Message, frozen=True):
    """Registers a service and reports its health, every second and on every change of `reached`."""

    service: Service
    seen_state: int
    """Number of the newest `RunStatePublished` that the service has acted on."""
    seen_roster: int
    reached: RunState
    """Newest state of the run whose work this service has finished."""
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
    """What takes time while the run is configured; sent by the dataset manager and workers."""
    exit_code: ExitCode = ExitCode.BENCHMARK_FAILED
    """Exit code for `error`."""
    target_addresses: tuple[AddressUse, ...] = ()
    """Use of the target's addresses; sent by a worker from the end of the load on."""
    batches_read: int = 0
    """Raw batches that a record processor has read. While it grows, missing records may arrive."""
    steps: StepProgress | None = None
    """Progress of a benchmark on ranks (timing manager only)."""
    finding: dict[str, Any] | None = None
    """What a search needs to know of the trial's results (records manager only)."""
    ends_early: bool = False
    """True if the load need not go on: a search knows enough of it (records manager only)."""
    network: tuple[tuple[HistogramDelta, ...], ...] = ()
    """What the way to each URL of the target takes, one histogram for each metric of connections;
    sent by a worker from the end of the load on."""


class CancelRequested(Message, frozen=True):
    """Asks to end the run and keep its results. Repeated until the published state shows it."""

    reason: str


class StartRequested(Message, frozen=True):
    """Tells a held run when to start its load. Repeated until the published state shows it."""

    at_wall_ns: int


# --- event bus, down: from the control services to all -------------------------------------------


class Member(Value, frozen=True):
    """One service instance that takes part in the run."""

    id: str
    service: Service
    epoch: int
    rank: int
    """0, 1, … among the instances of its service, fixed when the roster freezes."""
    address: str = ""
    processor: str = ""
    """Id of the record processor that takes a worker's records."""
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
    """True if the load is to end now, and the run goes on to its results."""
    start_wall_ns: int = 0
    """Earliest start of the load; 0: as soon as possible."""


class TrialPublished(Message, frozen=True):
    """The trial of an experiment that is on. Published by the system controller on change, and
    again twice a second; `run_id` is that of the experiment."""

    serial: int
    """Number of trials begun, this one included; another attempt is counted anew."""
    number: int
    """Number of the trial in the plan, from 1."""
    parameters: dict[str, Any]
    """Value of each changed key of the config."""
    repetition: int
    attempt: int
    """From 1."""
    total: int
    """Trials of the experiment; 0 while nobody knows."""
    is_over: bool = False
    """True when this trial was the last one and has ended."""
    state: RunState = RunState.PENDING
    """How the experiment has ended, when it is over."""
    reason: str = ""


class RecordsAcknowledged(Message, frozen=True):
    """Records that the records manager has: for each worker, the highest sequence number below
    which no record is missing."""

    highest: dict[str, int]


# --- credits: timing manager <-> worker ----------------------------------------------------------


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
    """Total of all workers: users in closed loop, the cap in open loop (0: none)."""
    ramp_ns: int
    worker_rank: int
    worker_count: int
    prefill_concurrency: int = 0
    """Total of all workers: most requests that wait for their first token; 0: no limit."""
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
    """Outcomes of a worker's credits. Cumulative, so that a repeated message changes nothing."""

    counts: WorkerCounts
    is_idle: bool
    """True if the worker holds no credit and has nothing in flight."""
    taken_mono_ns: int = 0
    """Time by the worker's monotonic clock when the counts were taken. Rates are computed from
    it."""


# --- dataset: worker <-> dataset manager ---------------------------------------------------------


class Turn(Value, frozen=True):
    """One request of a conversation. The body is `head + history + messages + tail`."""

    messages: bytes
    """JSON that this turn adds; for endpoints without conversations, the whole body."""
    tail: bytes = b""
    delay_ns: int = 0
    """Pause after the end of the previous response."""
    earliest_ns: int = 0
    """Time after the conversation's first due time before which the turn is not due."""
    input_tokens: int = -1
    """Number of input tokens, exact with a tokenizer; -1: unknown."""
    requested_tokens: int = -1
    """Output tokens that the request asks for; -1: it asks for no number."""


class Conversation(Value, frozen=True):
    """A dataset entry."""

    id: str
    turns: tuple[Turn, ...]
    head: bytes = b""


class DatasetBlockRequested(Message, frozen=True):
    """Asks for a block of entries."""

    block: int


class DatasetBlock(Message, frozen=True):
    """Entries `first_entry`, `first_entry + 1`, … of the dataset."""

    block: int
    block_count: int
    entry_count: int
    warmup_entries: int
    """Number of entries at the end that only the warmup uses; profiling uses the others."""
    first_entry: int
    conversations: tuple[Conversation, ...]
    starts: bytes = b""
    """First entry of each block, uint32 little-endian; in block 0 only. Blocks differ in length."""
    is_streamed: bool = False
    """The dataset is larger than a worker's cache and blocks are made when they are asked for."""


class DatasetShapeRequested(Message, frozen=True):
    """Asks for the number of turns of each entry; sent by the timing manager."""


class DatasetShape(Message, frozen=True):
    """Shape of the dataset, from which the timing manager counts requests."""

    entry_count: int
    warmup_entries: int
    turns: bytes
    """Number of turns of each entry, uint16 little-endian; empty if every entry has one turn."""
    due_ns: bytes = b""
    """Fixed schedule: when each entry of profiling is due from the start of a phase, int64
    little-endian and ascending."""


class ForcedLengthAsked(Message, frozen=True):
    """Asks whether requests may force their output length, or reports the target's response to such
    a request; sent by a worker."""

    finding: str = ""
    """A `core.endpoints.forced_length.Finding`; empty: the message only asks."""
    said: str = ""
    """Message of the target."""


class ForcedLengthDecided(Message, frozen=True):
    """Tells a worker how to treat the forced output length."""

    decision: str
    """A `core.endpoints.forced_length.Decision`."""


# --- records -------------------------------------------------------------------------------------


class RawBatch(Message, frozen=True):
    """Fragments of requests, worker to record processor. Layouts in `protocol.records`."""

    number: int
    fragments: bytes
    reads: bytes
    bodies: bytes
    is_resent: bool = False


class SequenceSpan(Value, frozen=True):
    """Records `first..last` of one worker, all in this batch."""

    worker: str
    worker_epoch: int
    first: int
    last: int


class ErrorSample(Value, frozen=True):
    """Errors of one kind and target within a batch, with the first message."""

    phase: Phase
    kind: int
    status: int
    message: str
    count: int
    target: int = 0
    """Number of the target among those of a run: messages may name its address."""


class LineDetails(Value, frozen=True):
    """Details of a batch's requests for the lines of profile_export.jsonl, beyond its rows."""

    gaps_ns: bytes
    """Gaps between content chunks, int64, of each completed request with more than one, in the
    order of the rows."""
    messages: tuple[str, ...]
    """Error text of each request with an error."""
    chunks: bytes = b""
    """Stamp and length of each read with bytes of a body, int64 pairs, of each request in the order
    of the rows; empty if nobody wants HTTP traces."""
    chunk_counts: bytes = b""
    """Number of these reads of each request, int64; empty as above."""


class MetricBatch(Message, frozen=True):
    """Finished requests, record processor to records manager."""

    spans: tuple[SequenceSpan, ...]
    rows: bytes
    """METRIC_DTYPE rows."""
    details: LineDetails | None = None
    """None if no more lines are wanted."""
    histograms: tuple[HistogramDelta, ...] = ()
    errors: tuple[ErrorSample, ...] = ()
    lost: tuple[SequenceSpan, ...] = ()
    """Requests whose earlier fragments died with another record processor."""


AnyMessage = (
    Heartbeat
    | CancelRequested
    | StartRequested
    | RosterPublished
    | RunStatePublished
    | TrialPublished
    | RecordsAcknowledged
    | WorkerAttached
    | ClockProbed
    | ClockReply
    | PhaseOpened
    | CreditsGranted
    | PhaseStopped
    | CreditsReturned
    | DatasetBlockRequested
    | DatasetBlock
    | DatasetShapeRequested
    | DatasetShape
    | ForcedLengthAsked
    | ForcedLengthDecided
    | RawBatch
    | MetricBatch
    | RankAttached
    | RankFilesRequested
    | RankFiles
    | StepOrder
    | RankStatus
    | LaunchRequested
    | CommandLaunched
    | LaunchEnded
    | StepOutput
    | StepRecord
    | IndexBegun
    | IndexFilePart
    | IndexEnded
    | CollectorReply
)
