"""The data model of a benchmark that runs a tool on ranks.

    spec ──roles──> ranks ──steps──> commands, run by couriers ──read──> reading ──> results

A *rank* is a place where commands run: a container on a cluster, a folder and child processes
locally. A *step* is a set of commands that start together on their ranks. Steps run one after the
other, or at the same time if they belong to one group. The output and files of a measured step's
commands become a `Reading`.
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
    """Name on PATH: `iperf3`."""
    package: str
    """Debian package that contains it; empty: none."""
    remedy: str = ""
    """How to install it without a Debian package."""

    @property
    def source(self) -> str:
        """What to do if it is missing."""
        if self.remedy:
            return self.remedy
        if self.package:
            return f"install the Debian package {self.package}"
        return "Debian has no package of it: add its folder to PATH"


class Role(msgspec.Struct, frozen=True):
    """Ranks with the same task."""

    name: str
    count: int


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One existing rank."""

    number: int
    role: str
    address: str
    """IP address for connections from other ranks."""
    node: str
    """Name of its node; locally the machine's."""
    work: str
    """Absolute path of its commands' working folder, as the commands see it. At the beginning of
    each step it contains only the workload's files."""
    volume: str
    """Absolute path of the folder that a disk benchmark measures. Its content persists between
    steps."""
    agent: str
    """Absolute path of a program with the interface of ssh, `AGENT HOST COMMAND...`, that runs the
    command on the rank with that address."""
    interface: str = ""
    """Name of the interface with `address`; empty if unknown."""
    cores: float = 1.0
    """CPUs that the rank may use."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of one rank in a step."""

    rank: int
    argv: tuple[str, ...]
    """Program and arguments, without a shell."""
    env: dict[str, str] = {}
    listens_on: int = 0
    """TCP port on which a server listens when it is ready; 0: none."""
    ends_with_step: bool = False
    """Whether it gets SIGTERM when the step's other commands have ended. Its exit code is then
    ignored."""
    keeps: tuple[str, ...] = ()
    """Files of the work folder to fetch, by name or pattern (`*.log`). Standard output and error
    always are."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that start together."""

    name: str
    """Unique among the steps of one repetition: `bandwidth`, `node-1 to node-2`."""
    commands: tuple[Command, ...]
    """Started at one due time, once every server is ready."""
    servers: tuple[Command, ...] = ()
    """Started before the commands, in order."""
    agent_ranks: tuple[int, ...] = ()
    """Ranks that take part without their own command: a command starts programs there through its
    rank's agent, as `mpirun` does."""
    is_measured: bool = True
    """Whether its output is read, and whether it is repeated. A step that only prepares runs
    once."""
    timeout_ns: int
    """Maximum time from its due time to the end of its last command."""
    expected_ns: int = 0
    """Expected time of the commands, if the spec determines it; 0: unknown."""
    headline: str = ""
    """Tag of the metric that its output must contain; empty: the workload's first metric."""
    labels: dict[str, str] = {}
    """Labels that distinguish its values from other steps': `{"pair": "node-1 → node-2"}`."""
    group: int = 0
    """Consecutive steps with the same number run at the same time, on different ranks; 0: it runs
    alone."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that take part, in order."""
        found = {command.rank for command in (*self.servers, *self.commands)}
        return tuple(sorted(found | set(self.agent_ranks)))


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step, as ordered."""

    number: int
    """1, 2, … over all attempts at steps of the run."""
    attempt: int
    """1, 2, … of the same step and repetition."""
    repetition: int
    """1, 2, …; 0: a step that only prepares."""
    step: Step

    @property
    def folder(self) -> str:
        """Name of the folder for its raw output."""
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.step.name)
        return f"{self.number:03d}-{name[:80]}"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one command."""

    rank: int
    is_server: bool = False
    exit_code: int
    """Negative: the signal that ended it."""
    stdout: bytes = b""
    stderr: bytes = b""
    files: dict[str, bytes] = {}
    duration_s: float = 0.0
    """Time from its start to its end."""

    @property
    def text(self) -> str:
        """Standard output as text, with invalid UTF-8 replaced."""
        return self.stdout.decode("utf-8", "replace")


class UnreadableOutput(Exception):
    """A step's output is not in its tool's format. The message contains the expected and the actual
    text. The step fails, and its output is kept."""


class ClaimedBytes(msgspec.Struct, frozen=True):
    """Payload that a tool reports to have moved through the kernel's network interfaces from its
    start to its end. Shared memory and RDMA do not count, because no interface counts them."""

    sent: int = 0
    received: int = 0
    packet_payload: int = 1448
    """Usual payload of a packet. It is less with a small MTU or MSS, or for small messages sent one
    by one. The verdict allows for the packet's headers."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed output of a measured step."""

    values: dict[str, float]
    """Metric tag to value, in the metric's unit."""
    series: tuple[Series, ...] = ()
    tables: tuple[Table, ...] = ()
    tool: str = ""
    """Name and version that the tool prints; if ranks differ, the check `tool-versions` fails."""
    tools: dict[int, str] = {}
    """Name and version by rank, if ranks print them and they may differ."""
    claimed_bytes: dict[int, ClaimedBytes] = {}
    """Rank to the bytes that the tool reports to have sent or received over the network."""
    errors: tuple[str, ...] = ()
    """Errors in the tool's output, even if it exited with 0. Any of them fails the step."""
    facts: dict[str, str] = {}
    """Context for readers of the numbers: path MTU, congestion control, transport."""


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
    """Return the usual timeout of a step with this expected time: twice that, plus a minute."""
    return 2 * expected_ns + 60 * SECOND_NS
