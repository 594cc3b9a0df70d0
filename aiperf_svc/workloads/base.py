"""A benchmark of a tool that runs on ranks, from which each tool derives. Pure: a workload decides,
and services and adapters carry out.

    spec ──roles──> ranks ──steps──> commands, run by couriers ──read──> reading ──> results

A *rank* is one place where commands run: a container on a cluster, a folder and child processes
locally. A *step* is one set of commands that start together on their ranks. Steps run one after the
other; what a measured step's commands print and write becomes a `Reading`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.image_names import check_replacement
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.results.measured import MetricInfo, Series, Table
from aiperf_svc.core.results.run_objectives import check_objectives
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.plan.experiments import replacement_time
from aiperf_svc.plan.lifetime import LongestTimes, step_times
from aiperf_svc.plan.ranks import RANK_DIR, VOLUME_DIR, RankNeeds, RankStack
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.plan.stack_kind import StackKind
from aiperf_svc.plan.topology import Facts, Topology, plan_ranks
from aiperf_svc.protocol.services import Service
from aiperf_svc.workloads.tool_preview import tool_rows
from aiperf_svc.workloads.workload import (
    LocalNeeds,
    NeededProgram,
    NeededVariable,
    ReplayNs,
    Secret,
    TrialTimes,
    Workload,
    no_length,
)

SpecT = TypeVar("SpecT", bound=WorkloadSpec)

Better = Literal["higher", "lower", ""]


class Tool(msgspec.Struct, frozen=True):
    """An executable that the ranks need."""

    name: str
    """As it is found on PATH: `iperf3`."""
    package: str
    """Debian package that has it; empty: none."""
    roles: tuple[str, ...] = ()
    """Roles of the ranks that need it; empty: all."""

    @property
    def source(self) -> str:
        """What to do where it is missing."""
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


class ToolWorkload(Workload[WorkloadConfig[SpecT]], Generic[SpecT]):
    """One tool.

    The folder of a kind exports one instance as `WORKLOAD`; `registry.py` names the folder. A third
    party names its instance as an entry point of the group `aiperf_svc.workloads`.
    """

    runs_on_ranks = True
    summary: ClassVar[str]
    """One line for `aiperf-svc workloads`."""
    spec: type[SpecT]
    tools: ClassVar[tuple[Tool, ...]] = ()
    """The tools of the spec's defaults; `tools_of` has those of a config."""
    metrics: ClassVar[tuple[MetricInfo, ...]]
    """The first one is the headline."""
    shows_traffic: ClassVar[bool] = False
    """Whether the display shows the traffic of the ranks' interfaces while the output has no
    progress: true for a tool that loads the network and prints only at its end."""

    @abstractmethod
    def roles(self, spec: SpecT) -> tuple[Role, ...]:
        """Return the ranks by role, in the order of their numbers."""

    @abstractmethod
    def steps(self, config: WorkloadConfig[SpecT], ranks: Sequence[Rank]) -> tuple[Step, ...]:
        """Return the steps of one repetition for these ranks, preparing ones included."""

    @abstractmethod
    def read(self, config: WorkloadConfig[SpecT], step: Step, outputs: Sequence[Output]) -> Reading:
        """Return the reading of a measured step. `outputs` has one element for each command and
        server, in their order. Raises UnreadableOutput."""

    def problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        """Return the problems of a config beyond its models, a line each: `workload.key: text`."""
        return []

    def local_problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        """Return why this config cannot run as local processes, one line each."""
        return []

    def files(self, config: WorkloadConfig[SpecT]) -> dict[str, bytes]:
        """Return the files of each rank's work folder at the beginning of each step, by relative
        path. Those that begin with `#!` are executable."""
        return {}

    def metrics_of(self, config: WorkloadConfig[SpecT]) -> tuple[MetricInfo, ...]:
        """Return the metrics that this config can have, for objectives and tables."""
        return self.metrics

    def tools_of(self, config: WorkloadConfig[SpecT]) -> tuple[Tool, ...]:
        """Return the tools that this config needs."""
        return self.tools

    def plots(self, config: WorkloadConfig[SpecT]) -> tuple[Plot, ...]:
        """Return the plots of the report, made from series and tables."""
        return ()

    def checks(
        self, config: WorkloadConfig[SpecT], readings: Sequence[Reading]
    ) -> tuple[Reason, ...]:
        """Return findings of this tool besides those that every tool has."""
        return ()

    def progress(self, config: WorkloadConfig[SpecT], line: str) -> str:
        """Return the progress in a line of a measured command's output, for people; empty if it has
        none."""
        return ""

    def needs_privilege(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        """Return the Linux capabilities that the ranks' containers need, such as `IPC_LOCK`."""
        return ()

    # --- the config ------------------------------------------------------------------------------

    def config_model(self) -> type[WorkloadConfig[SpecT]]:
        """Return the model of a whole config of this kind."""
        # The class of a generic model is made by its parameter, which no type checker can follow.
        model: type[WorkloadConfig[SpecT]] = WorkloadConfig.__class_getitem__(self.spec)  # type: ignore[assignment]
        return model

    def config_problems(self, config: WorkloadConfig[SpecT]) -> list[Problem]:
        """Return the problems of a config beyond its models, wherever it runs."""
        objectives = check_objectives(config.slo, self.metrics_of(config))
        return [_problem(line) for line in (*self.problems(config), *objectives)]

    def local_needs(self, config: WorkloadConfig[SpecT]) -> LocalNeeds:
        """Return what a run on this machine needs of it."""
        spec = config.workload
        return LocalNeeds(
            problems=tuple(map(_problem, self.local_problems(config))),
            variables=tuple(
                NeededVariable(f"workload.secret_env.{name}", name) for name in spec.secret_env
            ),
            programs=tuple(NeededProgram(tool.name, tool.source) for tool in self.tools_of(config)),
            path=spec.env.get("PATH"),
        )

    def secrets(self, config: WorkloadConfig[SpecT]) -> tuple[Secret, ...]:
        """Return the secrets of the commands."""
        named = config.workload.secret_env.items()
        return tuple(Secret(variable, key, (Service.WORKER,)) for variable, key in named)

    def subject(self, config: WorkloadConfig[SpecT]) -> str:
        """Return the kind."""
        return self.kind

    def role_names(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        """Return the role of each rank: those of the tool, or with `pairs: all` as many as the
        config asks for."""
        ranks = config.deployment.ranks
        if ranks.pairs == "all":
            return ("rank",) * (ranks.count or len(ranks.nodes))
        return tuple(role.name for role in self.roles(config.workload) for _ in range(role.count))

    # --- the plan --------------------------------------------------------------------------------

    def trial_times(
        self, config: WorkloadConfig[SpecT], replay_ns: ReplayNs = no_length
    ) -> TrialTimes:
        """Return the longest time of all steps. How long they usually take is unknown."""
        return TrialTimes(None, self._steps_ns(config))

    def topology(self, config: WorkloadConfig[SpecT], facts: Facts) -> Topology:
        """Return a topology with a worker for each rank."""
        return plan_ranks(config.deployment, len(self.role_names(config)), facts)

    def shape(self, config: WorkloadConfig[SpecT]) -> list[object]:
        """Return the ranks of a config, and the capabilities of their containers."""
        return [self.role_names(config), self.needs_privilege(config)]

    def longest_times(
        self, config: WorkloadConfig[SpecT], trials: Sequence[WorkloadConfig[SpecT]]
    ) -> LongestTimes:
        """Return the longest times of the start and of all steps of these trials."""
        experiment = config.experiment
        pauses_ns = (len(trials) - 1) * (experiment.cooldown if experiment else 0)
        steps_ns = sum(map(self._steps_ns, trials)) + pauses_ns
        # Ceiling division: the trials are about equally long.
        again_ns = replacement_time(-(-steps_ns // len(trials)), experiment)
        return step_times(config.deployment, steps_ns + again_ns)

    def stack(
        self,
        config: WorkloadConfig[SpecT],
        trials: Sequence[WorkloadConfig[SpecT]],
        settings: StackSettings,
    ) -> StackKind[Any]:
        """Return the stack of the ranks. Raises ConfigError if `settings` replace an image that the
        config pins."""
        spec, replacement = config.workload, settings.workload_image
        notes: tuple[str, ...] = ()
        if replacement:
            note = check_replacement(
                spec.image, replacement, key="workload.image", variable="AIPERF_WORKLOAD_IMAGE"
            )
            notes = (note,) if note else ()
            spec = spec.model_copy(update={"image": replacement})
            config = config.model_copy(update={"workload": spec})
        return RankStack(
            config=config,
            trials=trials,
            times=self.longest_times(config, trials),
            needs=RankNeeds(
                count=len(self.role_names(config)),
                image=spec.image or default_image(spec.kind, settings.version),
                capabilities=self.needs_privilege(config),
                notes=notes,
            ),
        )

    def _steps_ns(self, config: WorkloadConfig[SpecT]) -> int:
        """Return the longest time of all steps. Their names and timeouts do not depend on where the
        ranks are."""
        ranks = [
            Rank(
                number=number,
                role=role,
                address=str(_FIRST_ADDRESS + number),
                node=f"node-{number}",
                work=f"{RANK_DIR}/work",
                volume=VOLUME_DIR,
                agent=f"{RANK_DIR}/rank_agent.sh",
            )
            for number, role in enumerate(self.role_names(config))
        ]
        attempts = 1 + config.workload.retries
        return sum(
            attempts * step.timeout_ns * (config.repetitions if step.is_measured else 1)
            for step in self.steps(config, ranks)
        )

    # --- the preview -----------------------------------------------------------------------------

    def preview(self, plan: StackPlan, config: WorkloadConfig[SpecT]) -> list[tuple[str, str]]:
        """Return the first rows of a stack's preview."""
        return tool_rows(plan, config)


def _problem(line: str) -> Problem:
    key, _, text = line.partition(": ")
    return Problem(key, text)


_FIRST_ADDRESS = IPv4Address("192.0.2.0")
"""First address of ranks that do not exist yet, in a range for documentation (RFC 5737)."""


def default_image(kind: str, version: str) -> str:
    """Return the name of the image that `make image WORKLOAD=kind` builds."""
    return f"localhost/aiperf-svc-{kind}:{version}"


def timeout_of(spec: WorkloadSpec, usual_ns: int) -> int:
    """Return the spec's timeout of a step, or the usual one."""
    return spec.timeout if spec.timeout is not None else usual_ns


def margin_ns(expected_ns: int) -> int:
    """Return the usual timeout of a step that should take so long: twice that, and a minute."""
    return 2 * expected_ns + 60 * SECOND_NS
