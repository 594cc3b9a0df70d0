"""What a benchmark of a tool on ranks consists of.

    spec ──roles──> ranks ──steps──> commands, run by couriers ──read──> reading ──> results

A *rank* is one place where commands run: a container on a cluster, a folder and child processes
locally. A *step* is one set of commands that start together on their ranks. Steps run one after the
other, or at the same time if they are of one group; what a measured step's commands print and write
becomes a `Reading`.
"""

from typing import Literal

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.core.results.measured import Series, Table

Better = Literal["higher", "lower", ""]


class Tool(msgspec.Struct, frozen=True):
    """An executable that the ranks need."""

    name: str
    """As it is found on PATH: `iperf3`."""
    package: str
    """Debian package that has it; empty: none."""
    remedy: str = ""
    """How it is installed, if not as a package of Debian."""

    @property
    def source(self) -> str:
        """What to do where it is missing."""
        if self.remedy:
            return self.remedy
        if self.package:
            return f"install the Debian package {self.package}"
        return "Debian has no package of it: add its folder to PATH"


class Role(msgspec.Struct, frozen=True):
    """Ranks that do the same."""

    name: str
    count: int


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, once it is there."""

    number: int
    role: str
    address: str
    """IP address at which the other ranks reach it."""
    node: str
    """Name of its node; locally the machine's."""
    work: str
    """Absolute path of the folder in which its commands run, as the commands see it. It is empty at
    the beginning of each step but for the workload's files."""
    volume: str
    """Absolute path of the folder that a disk benchmark measures. What is there stays from step to
    step."""
    agent: str
    """Absolute path of a program that is called as `ssh` is, `AGENT HOST COMMAND...`, and runs the
    command on the rank with that address."""
    interface: str = ""
    """Name of the interface that has `address`; empty if it is unknown."""
    cores: float = 1.0
    """CPUs that the rank may use."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does in a step."""

    rank: int
    argv: tuple[str, ...]
    """Program and arguments; no shell reads them."""
    env: dict[str, str] = {}
    listens_on: int = 0
    """TCP port on which a server listens when it is ready; 0: none."""
    ends_with_step: bool = False
    """Whether it gets SIGTERM when the step's other commands have ended; its exit code then has no
    meaning."""
    keeps: tuple[str, ...] = ()
    """Files of the work folder that are brought back, by name or pattern (`*.log`). Standard output
    and error always are."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that start together."""

    name: str
    """Unique among the steps of one repetition: `bandwidth`, `node-1 to node-2`."""
    commands: tuple[Command, ...]
    """Started at one due time, when every server is ready."""
    servers: tuple[Command, ...] = ()
    """Started before, one after the other."""
    agent_ranks: tuple[int, ...] = ()
    """Ranks that take part without a command of their own: a command starts programs there by its
    rank's agent, as `mpirun` does."""
    is_measured: bool = True
    """Whether its output is read, and whether it is repeated. A step that only prepares is run
    once."""
    timeout_ns: int
    """Longest time from its due time to the end of its last command."""
    expected_ns: int = 0
    """How long the commands should take, if the spec bounds it; 0: unknown."""
    headline: str = ""
    """Tag of the metric that its output must have; empty: the first of the workload's."""
    labels: dict[str, str] = {}
    """What distinguishes its values from those of other steps: `{"pair": "node-1 → node-2"}`."""
    group: int = 0
    """Steps that follow each other with the same number run at the same time, on ranks of their
    own; 0: it runs alone."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that take part, in order."""
        found = {command.rank for command in (*self.servers, *self.commands)}
        return tuple(sorted(found | set(self.agent_ranks)))


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as one attempt at it is ordered."""

    number: int
    """1, 2, … over all attempts at steps of the run."""
    attempt: int
    """1, 2, … of the same step and repetition."""
    repetition: int
    """1, 2, …; 0: of a step that only prepares."""
    step: Step

    @property
    def folder(self) -> str:
        """Name of the folder of its raw output."""
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.step.name)
        return f"{self.number:03d}-{name[:80]}"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one command left."""

    rank: int
    is_server: bool = False
    exit_code: int
    """Negative: the signal that ended it."""
    stdout: bytes = b""
    stderr: bytes = b""
    files: dict[str, bytes] = {}
    duration_s: float = 0.0
    """From its start to its end."""

    @property
    def text(self) -> str:
        """Standard output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")


class UnreadableOutput(Exception):
    """Raised when a step's output is not what its tool writes. The message names what was expected
    and shows the difference; the step fails, and its output is kept."""


class ClaimedBytes(msgspec.Struct, frozen=True):
    """Payload that a tool reports to have moved through the kernel's network interfaces between its
    start and its end. Shared memory and RDMA do not count: no interface sees them."""

    sent: int = 0
    received: int = 0
    packet_payload: int = 1448
    """Usual payload of a packet; less with a small MTU or MSS, or for small messages that are sent
    one by one. The verdict allows for the headers around it."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a measured step's output."""

    values: dict[str, float]
    """Metric tag to value, in the metric's unit."""
    series: tuple[Series, ...] = ()
    tables: tuple[Table, ...] = ()
    tool: str = ""
    """Name and version that the tool prints; if ranks differ, the check `tool-versions` fails."""
    tools: dict[int, str] = {}
    """The same for each rank that prints it, where they may differ."""
    claimed_bytes: dict[int, ClaimedBytes] = {}
    """Rank to the bytes that the tool reports to have sent or received over the network."""
    errors: tuple[str, ...] = ()
    """Errors that the tool reports in its output although it may have exited with 0. Any of them
    fails the step."""
    facts: dict[str, str] = {}
    """What a reader should know beside the numbers: path MTU, congestion control, transport."""


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One plot of the report."""

    title: str
    kind: Literal["series", "table", "matrix"]
    """`series`: the series of `name` over time; `table`: column `y` of tables `name` over column
    `x`, a line for each step; `matrix`: metric `name` by pair of nodes."""
    name: str
    x: str = ""
    y: tuple[str, ...] = ()
    x_is_log: bool = False
    y_is_log: bool = False


def size_plot(table: str, title: str, *columns: str) -> Plot:
    """Return the plot of columns of a table over its message sizes, with two logarithmic axes."""
    return Plot(
        title=title, kind="table", name=table, x="size", y=columns, x_is_log=True, y_is_log=True
    )


def timeout_of(spec: WorkloadSpec, usual_ns: int) -> int:
    """Return the spec's timeout of a step, or the usual one."""
    return spec.timeout if spec.timeout is not None else usual_ns


def margin_ns(expected_ns: int) -> int:
    """Return the usual timeout of a step that should take so long: twice that, and a minute."""
    return 2 * expected_ns + 60 * SECOND_NS
