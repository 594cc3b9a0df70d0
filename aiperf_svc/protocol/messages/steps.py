"""The messages of a benchmark that runs a tool on ranks, in place of credits and requests.

Orders to a rank and a rank's status are state. Both are resent until they agree, so a lost or
repeated message changes nothing. Output travels in numbered pieces and is complete when all of them
have arrived.
"""

from enum import StrEnum

from aiperf_svc.protocol.messages.base import Message, Value


class RankAttached(Message, frozen=True):
    """Courier to timing manager: registers the rank. The first message on the credit socket."""

    number: int
    address: str
    """Address at which the other ranks reach it."""
    interface: str
    node: str
    work: str
    """Paths as the rank's commands see them."""
    volume: str
    agent: str
    cores: float
    memory_bytes: int
    """Limit of the rank; 0: none."""


class RankFilesRequested(Message, frozen=True):
    """Courier to dataset manager: asks for the workload's input files."""


class RankFiles(Message, frozen=True):
    """The workload's input files."""

    files: dict[str, bytes]
    """Path relative to the work folder, to content."""


# --- steps: timing manager <-> courier -----------------------------------------------------------


class StepStage(StrEnum):
    """Stages of a step in their order: orders to a rank, and its progress."""

    PREPARE = "prepare"
    """Empty the work folder, put the files there, start servers, wait until they listen."""
    RUN = "run"
    """Start the commands at the due time."""
    FINISH = "finish"
    """End the servers, bring back the output."""


class StepOrder(Message, frozen=True):
    """Timing manager to courier: what to do now."""

    step: int
    """1, 2, … over all attempts at steps of the run."""
    stage: StepStage
    abort_reason: str
    """With FINISH, why all commands must be stopped; empty: they have ended."""
    plan: bytes
    """JSON of a `workloads.steps.PlannedStep`."""
    due_wall_ns: int = 0
    """Due time of a RUN, on the timing manager's clock."""


class RankStatus(Message, frozen=True):
    """Courier to timing manager, on each change and twice a second: the rank's progress."""

    step: int
    stage: StepStage | None
    """The latest completed stage; None before the first. RUN is complete when the step's commands
    have ended."""
    problem: str = ""
    """Why the step cannot succeed on this rank."""
    progress: str = ""
    """Progress text of the measured command."""


class LaunchRequested(Message, frozen=True):
    """Courier to timing manager: a command of its rank asks to run another command on the rank with
    an address, as `ssh ADDRESS COMMAND` does."""

    step: int
    launch: str
    """Unique within the run."""
    address: str
    command: str
    """Command line for a shell."""


class CommandLaunched(Message, frozen=True):
    """Timing manager to courier: run this for another rank."""

    step: int
    launch: str
    command: str


class LaunchEnded(Message, frozen=True):
    """The end of such a command: courier to timing manager, and on to the courier that asked."""

    launch: str
    exit_code: int
    stdout: bytes
    stderr: bytes


# --- output: courier -> record processor -> records manager --------------------------------------


class RankWitness(Value, frozen=True):
    """Measurements of a courier during a step, independent of the tool. Counters are differences
    between the step's due time and the end of its last command. Times are on the timing manager's
    clock."""

    rank: int
    node: str = ""
    due_wall_ns: int = 0
    started_wall_ns: int = 0
    """When the last of its commands had started; 0: it had none."""
    ended_wall_ns: int = 0
    clock_uncertainty_ns: int = 0
    interface_rx_bytes: int = 0
    """Bytes received by the interface with the rank's address; by all but the loopback if that is
    unknown."""
    interface_tx_bytes: int = 0
    loopback_bytes: int = 0
    dropped_packets: int = 0
    tcp_retransmits: int = 0
    udp_errors: int = 0
    cpu_ns: int = 0
    """CPU time of the rank's container; 0: unknown."""
    throttled_ns: int = 0
    """Time throttled by the CPU quota, summed over CPUs."""
    memory_peak_bytes: int = 0
    """Peak memory of the rank's container, if this step reached it; 0: it did not, or the peak is
    unknown."""
    memory_limit_bytes: int = 0
    oom_kills: int = 0
    cpu_pressure: float | None = None
    """Share of the time in which some task of the node waited for a CPU; None: the kernel does not
    report it."""
    io_pressure: float | None = None
    memory_pressure: float | None = None
    stolen_ns: int = 0
    """Steal time per core: the virtual machine's host ran others."""
    courier_cpu_ns: int = 0
    """CPU time of the courier and the rank's loop."""
    is_shared_network: bool = False
    """Whether other programs use the counted interfaces too: those of the node, or of a local
    run."""


class CommandEnd(Value, frozen=True):
    index: int
    exit_code: int
    """Negative: the signal that ended it."""
    started_wall_ns: int
    ended_wall_ns: int
    was_told_to_end: bool = False


class RankReport(Value, frozen=True):
    plan: bytes
    """JSON of a `workloads.steps.PlannedStep`."""
    problem: str
    """Why the step failed on this rank; empty when it did not."""
    witness: RankWitness
    ends: tuple[CommandEnd, ...]


class StepOutput(Message, frozen=True):
    """One piece of a rank's output of a step."""

    step: int
    rank: int
    piece: int
    """0, 1, … within the step and rank."""
    command: int
    """Index of the command that wrote it."""
    file: str
    """`stdout`, `stderr`, or a path in the work folder."""
    data: bytes
    is_last: bool
    """True for the last piece of the step and rank."""
    report: RankReport | None = None
    """Report of the rank, with the last piece."""


class StepRecord(Message, frozen=True):
    """Record processor to records manager: the outcome of one attempt at a step."""

    step: int
    plan: bytes
    """JSON of a `workloads.steps.PlannedStep`."""
    problem: str
    """Why it failed; empty when it did not."""
    reading: bytes
    """JSON of a `workloads.steps.Reading`; empty when there is none."""
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]


def rank_number(courier: str) -> int:
    """The rank of a courier, by the number at the end of its id: `rank-3`, `rank-STACK-3`."""
    return int(courier.rpartition("-")[2])
