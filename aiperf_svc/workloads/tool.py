"""The base class of the workloads that run a tool on ranks, in steps (`steps.py`)."""

from abc import abstractmethod
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any, ClassVar, Generic, TypeVar

from aiperf_svc.config.placement import Ranks, check_replacement
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.units import format_duration, format_size
from aiperf_svc.config.workload import AnyWorkloadConfig, WorkloadConfig, WorkloadSpec
from aiperf_svc.core.cluster.facts import is_gpu
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.tool_objectives import check_objectives
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.experiments import replacement_time
from aiperf_svc.plan.lifetime import LongestTimes, step_times
from aiperf_svc.plan.network import OutsideUrl
from aiperf_svc.plan.ranks import RANK_DIR, VOLUME_DIR, RankNeeds, RankStack
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.plan.stack_kind import StackKind
from aiperf_svc.plan.topology import Facts, Topology, plan_ranks
from aiperf_svc.protocol.services import Service
from aiperf_svc.workloads.pairs import group_steps
from aiperf_svc.workloads.steps import Output, Plot, Rank, Reading, Role, Step, Tool
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


def gpu_problems(config: WorkloadConfig[Any], gpus: int) -> list[str]:
    """Return the problems if each rank needs this number of GPUs, one line each."""
    devices = config.deployment.ranks.devices
    there = sum(number for resource, number in devices.items() if is_gpu(resource))
    if there == gpus:
        return []
    return [
        f"workload.gpus: {gpus} in each rank, but deployment.ranks.devices has {there}: write "
        f"nvidia.com/gpu: {gpus} there, or the resource of your GPUs"
    ]


COMMON = ("kind", "image", "env", "secret_env", "files")
"""Keys of a workload that are shown elsewhere or are too long."""


def tool_rows(plan: StackPlan, config: AnyWorkloadConfig) -> list[tuple[str, str]]:
    """Return the first rows of the preview: name and text."""
    ranks, repetitions = config.deployment.ranks, count(config.repetitions, "repetition")
    number = plan.ranks.replicas if plan.ranks else 0
    found = [
        ("workload", _workload(config)),
        ("steps", f"{repetitions}, at most {format_duration(plan.times.load)}"),
        ("ranks", f"{count(number, 'rank')}{_nodes(plan, ranks)}"),
        ("network", _network(ranks)),
        ("volume", _volume(ranks)),
    ]
    return [(name, text) for name, text in found if text]


def _workload(config: AnyWorkloadConfig) -> str:
    """Return the kind and the keys that were set."""
    chosen = config.workload.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    keys = {key: value for key, value in chosen.items() if key not in COMMON}
    text = ", ".join(f"{key} {_in_one_line(value)}" for key, value in keys.items())
    return f"{config.kind}: {text}" if text else config.kind


def _in_one_line(value: Any) -> str:
    """Return a list, or the keys of a map, on one line."""
    return " ".join(map(str, value)) if isinstance(value, list | dict) else str(value)


def _nodes(plan: StackPlan, ranks: Ranks) -> str:
    if plan.ranks is not None and plan.ranks.replicas == 1 and isinstance(ranks.nodes, str):
        return ""
    match ranks.nodes:
        case "apart":
            return ", each on a node of its own"
        case "together":
            return ", all on one node"
        case "any":
            return ", on any nodes"
        case names:
            return f", on {', '.join(names)} in turn"


def _network(ranks: Ranks) -> str:
    parts = ["the nodes' own"] if ranks.host_network else []
    if ranks.network is not None:
        attach_text = (
            "instead of the pods'" if ranks.network.attach == "default" else "beside the pods'"
        )
        parts.append(f"{ranks.network.name}, {attach_text}")
    parts += [f"MTU {ranks.mtu:,}"] if ranks.mtu else []
    parts += [f"{number} {name}" for name, number in ranks.devices.items()]
    return ", ".join(parts)


def _volume(ranks: Ranks) -> str:
    volume = ranks.volume
    if volume is None:
        return ""
    size = format_size(volume.size)
    match volume.kind:
        case "empty-dir":
            return f"{size} of the node's disk for each rank"
        case "host-path":
            return f"{volume.path} of the node"
        case "claim" | "shared-claim":
            whose = "for each rank" if volume.kind == "claim" else "for all ranks"
            storage = f", storage class {volume.storage_class}" if volume.storage_class else ""
            return f"a claim of {size} {whose}{storage}, removed with the stack"


SpecT = TypeVar("SpecT", bound=WorkloadSpec)


class ToolWorkload(Workload[WorkloadConfig[SpecT]], Generic[SpecT]):
    """One tool.

    The package of a kind exports one instance as `WORKLOAD`; `registry.py` names the package. A
    third party names its instance in an entry point of the group `aiperf_svc.workloads`.
    """

    runs_on_ranks = True
    summary: ClassVar[str]
    """One line for `aiperf-svc workloads`."""
    spec: type[SpecT]
    tools: ClassVar[tuple[Tool, ...]] = ()
    """The tools of the default spec; `tools_of` returns those of a config."""
    metrics: ClassVar[tuple[MetricInfo, ...]]
    """The metrics. The first one is the headline."""
    shows_traffic: ClassVar[bool] = False
    """Whether the display shows the traffic of the ranks' interfaces while the output has no
    progress: true for a tool that loads the network and prints only when it exits."""

    rank_key: ClassVar[str] = ""
    """Key of the spec with the number of ranks, if the tool supports any number; empty: none."""

    def roles(self, spec: SpecT) -> tuple[Role, ...]:
        """Return the ranks by role, in the order of their numbers: the number in the key
        `rank_key`, or two."""
        return (Role("rank", getattr(spec, self.rank_key) if self.rank_key else 2),)

    @abstractmethod
    def steps(self, config: WorkloadConfig[SpecT], ranks: Sequence[Rank]) -> tuple[Step, ...]:
        """Return the steps of one repetition on these ranks, preparing ones included."""

    @abstractmethod
    def read(self, config: WorkloadConfig[SpecT], step: Step, outputs: Sequence[Output]) -> Reading:
        """Return the reading of a measured step. `outputs` has one element per command and server,
        in order. Raises UnreadableOutput."""

    def problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        """Return the problems of a config beyond its models, one per line: `workload.key: text`."""
        return []

    def local_problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        """Return why this config cannot run as local processes, one line each."""
        return []

    def device_problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        """Return the problems of the devices that pods of this config request, one line each. Local
        processes use the machine's devices."""
        return []

    def files(self, config: WorkloadConfig[SpecT]) -> dict[str, bytes]:
        """Return the files of each rank's work folder at the beginning of each step, by relative
        path. Files that begin with `#!` are executable."""
        return {}

    def metrics_of(self, config: WorkloadConfig[SpecT]) -> tuple[MetricInfo, ...]:
        """Return the metrics that this config can have, for objectives and tables."""
        return self.metrics

    def tools_of(self, config: WorkloadConfig[SpecT]) -> tuple[Tool, ...]:
        """Return the tools that this config needs."""
        return self.tools

    def kinds_of(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        return (self.kind,)

    def plots(self, config: WorkloadConfig[SpecT]) -> tuple[Plot, ...]:
        """Return the plots of the report, made from series and tables."""
        return ()

    def checks(
        self, config: WorkloadConfig[SpecT], readings: Sequence[Reading]
    ) -> tuple[Reason, ...]:
        """Return this tool's own findings, in addition to the common ones."""
        return ()

    def progress(self, config: WorkloadConfig[SpecT], line: str) -> str:
        """Return the progress in a line of a measured command's output, for people; empty without
        any."""
        return ""

    def needs_privilege(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        """Return the Linux capabilities that the ranks' containers need, such as `IPC_LOCK`."""
        return ()

    def outside(self, config: WorkloadConfig[SpecT]) -> tuple[OutsideUrl, ...]:
        """Return the servers outside the stack that the ranks connect to."""
        return ()

    # --- the config ------------------------------------------------------------------------------

    def config_model(self) -> type[WorkloadConfig[SpecT]]:
        # The class of a generic model is created from its parameter; type checkers cannot follow.
        model: type[WorkloadConfig[SpecT]] = WorkloadConfig.__class_getitem__(self.spec)  # type: ignore[assignment]
        return model

    def config_problems(self, config: WorkloadConfig[SpecT]) -> list[Problem]:
        objectives = check_objectives(config.slo, self.metrics_of(config))
        return [_problem(line) for line in (*self.problems(config), *objectives)]

    def cluster_problems(self, config: WorkloadConfig[SpecT]) -> list[Problem]:
        return [_problem(line) for line in self.device_problems(config)]

    def local_needs(self, config: WorkloadConfig[SpecT]) -> LocalNeeds:
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
        named = config.workload.secret_env.items()
        return tuple(Secret(variable, key, (Service.WORKER,)) for variable, key in named)

    def subject(self, config: WorkloadConfig[SpecT]) -> str:
        return self.kind

    def role_names(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        """Return the role of each rank: the tool's ranks or, to measure every pair, the configured
        number."""
        ranks = config.deployment.ranks
        if ranks.pairs != "one":
            return ("rank",) * (ranks.count or len(ranks.nodes))
        return tuple(role.name for role in self.roles(config.workload) for _ in range(role.count))

    def planned_steps(
        self, config: WorkloadConfig[SpecT], ranks: Sequence[Rank]
    ) -> tuple[Step, ...]:
        """Return the steps of one repetition, with group numbers for steps that run at the same
        time."""
        steps = self.steps(config, ranks)
        if config.deployment.ranks.pairs == "rounds":
            return group_steps(steps, ranks)
        return steps

    # --- the plan --------------------------------------------------------------------------------

    def trial_times(
        self, config: WorkloadConfig[SpecT], replay_ns: ReplayNs = no_length
    ) -> TrialTimes:
        """Return the maximum time of all steps. Their usual time is unknown."""
        return TrialTimes(None, self._steps_ns(config))

    def longest_waits_ns(self, config: WorkloadConfig[SpecT], *, is_held: bool) -> int:
        """Return how long couriers may wait for their ranks' containers."""
        return config.deployment.ready_timeout

    def topology(self, config: WorkloadConfig[SpecT], facts: Facts) -> Topology:
        """Return a topology with one worker per rank."""
        return plan_ranks(config.deployment, len(self.role_names(config)), facts)

    def shape(self, config: WorkloadConfig[SpecT]) -> list[object]:
        """Return the ranks of a config, the capabilities of their containers and the servers that
        they may reach."""
        return [self.role_names(config), self.needs_privilege(config), *self.outside(config)]

    def longest_times(
        self, config: WorkloadConfig[SpecT], trials: Sequence[WorkloadConfig[SpecT]]
    ) -> LongestTimes:
        experiment = config.experiment
        pauses_ns = (len(trials) - 1) * (experiment.cooldown if experiment else 0)
        steps_ns = sum(map(self._steps_ns, trials)) + pauses_ns
        # Ceiling division: the trials have about the same length.
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
            config = config.with_image(replacement)
        return RankStack(
            config=config,
            trials=trials,
            times=self.longest_times(config, trials),
            needs=RankNeeds(
                count=len(self.role_names(config)),
                image=config.workload.image or default_image(spec.kind, settings.version),
                capabilities=self.needs_privilege(config),
                outside=self.outside(config),
                notes=notes,
            ),
        )

    def _steps_ns(self, config: WorkloadConfig[SpecT]) -> int:
        """Return the maximum time of all steps. Their names and timeouts do not depend on the
        ranks' nodes."""
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
        # Steps of a group run at the same time; steps without a group have their own key.
        longest: dict[int | str, int] = {}
        for at, step in enumerate(self.planned_steps(config, ranks)):
            repetitions = config.repetitions if step.is_measured else 1
            key = step.group or f"step {at}"
            longest[key] = max(longest.get(key, 0), step.timeout_ns * repetitions)
        return (1 + config.workload.retries) * sum(longest.values())

    # --- the preview -----------------------------------------------------------------------------

    def preview(self, plan: StackPlan, config: WorkloadConfig[SpecT]) -> list[tuple[str, str]]:
        return tool_rows(plan, config)


def _problem(line: str) -> Problem:
    key, _, text = line.partition(": ")
    return Problem(key, text)


_FIRST_ADDRESS = IPv4Address("192.0.2.0")
"""First address of ranks that do not exist yet, from a documentation range (RFC 5737)."""


def default_image(kind: str, version: str) -> str:
    """Return the name of the image that `make image WORKLOAD=kind` builds."""
    return f"localhost/aiperf-svc-{kind}:{version}"
