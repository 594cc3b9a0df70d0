"""What a workload is: everything that differs between an inference load and a benchmark of a tool.

`registry.workload_of` returns the workload of a config. `inference/` has the one that sends
requests, `tool.py` the one from which each tool derives. Pure: a workload decides, and services,
adapters and the runner carry out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Tls
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import ConfigT
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.lifetime import LongestTimes
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.plan.stack_kind import StackKind
from aiperf_svc.plan.topology import Facts, Topology
from aiperf_svc.protocol.services import Service

if TYPE_CHECKING:
    from aiperf_svc.core.experiments.combinations import TrialRow
    from aiperf_svc.core.experiments.machine import EndedTrial, Strategy
    from aiperf_svc.core.qualify.result import Qualification

ReplayNs = Callable[[BenchmarkConfig], int | None]
"""How long a config's fixed schedule is; None if that is unknown."""


def no_length(config: BenchmarkConfig) -> int | None:
    """Return the length of a fixed schedule whose trace has not been read: unknown."""
    return None


class TrialTimes(NamedTuple):
    """Times of a trial in ns; None if they are unknown."""

    expected: int | None
    longest: int | None


class WorkerPriority(Enum):
    """How a process of workers competes for the cores of its machine."""

    USUAL = "usual"
    """As every other process."""
    BEFORE_ALL = "before all"
    """Before all others, since it keeps a schedule."""
    WHILE_IDLE = "while idle"
    """Before all others as long as it uses little CPU."""


class Secret(msgspec.Struct, frozen=True):
    """A secret value that services need."""

    variable: str
    """Environment variable that holds it on the user's machine."""
    key: str
    """Key of the stack's configuration that holds it."""
    services: tuple[Service, ...]


class NeededFile(NamedTuple):
    """A file that a run on this machine reads."""

    key: str
    """Key of the config that names it."""
    path: str
    may_be_folder: bool = False


class NeededVariable(NamedTuple):
    """An environment variable that a run on this machine reads."""

    key: str
    name: str
    remedy: str = ""
    """What to do besides setting it."""


class NeededProgram(NamedTuple):
    """A program that a run on this machine starts."""

    name: str
    remedy: str
    key: str = "workload.kind"
    """Key of the config that needs it."""


class LocalNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs of this machine."""

    files: tuple[NeededFile, ...] = ()
    authorities: Tls | None = None
    """The TLS settings whose certificates are read."""
    modules: tuple[tuple[str, str, str], ...] = ()
    """Modules of extras: the key that needs one, the module, the extra that has it."""
    tokenizer: str = ""
    """Name or path of a tokenizer; empty: none."""
    variables: tuple[NeededVariable, ...] = ()
    programs: tuple[NeededProgram, ...] = ()
    path: str | None = None
    """PATH on which the programs are; None: that of the environment."""
    problems: tuple[Problem, ...] = ()
    """What no machine can do."""


class Workload(ABC, Generic[ConfigT]):
    """One kind of workload."""

    kind: ClassVar[str]
    runs_on_ranks: ClassVar[bool]
    """Whether the workers are couriers of ranks. They send requests otherwise."""

    # --- the config ------------------------------------------------------------------------------

    @abstractmethod
    def config_problems(self, config: ConfigT) -> list[Problem]:
        """Return the problems of a config beyond its models, wherever it runs."""

    def cluster_problems(self, config: ConfigT) -> list[Problem]:
        """Return the problems of running a config on a cluster."""
        return []

    @abstractmethod
    def local_needs(self, config: ConfigT) -> LocalNeeds:
        """Return what a run on this machine needs of it."""

    @abstractmethod
    def secrets(self, config: ConfigT) -> tuple[Secret, ...]:
        """Return the secrets of a config, without those of uploads, which all kinds have."""

    @abstractmethod
    def subject(self, config: ConfigT) -> str:
        """Return what is measured, in a few words."""

    def kinds_of(self, config: ConfigT) -> tuple[str, ...]:
        """Return the kinds of tools that a run needs."""
        return ()

    # --- trials ----------------------------------------------------------------------------------

    def completed(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config as it is written with what follows from it, before it is checked."""
        return data

    def strategy(
        self, config: ConfigT, trials: Sequence[Trial], ended: Sequence["EndedTrial"]
    ) -> "Strategy | None":
        """Return what chooses among the planned trials by the results so far; None: they are run as
        planned. `ended` need not run again."""
        return None

    def needless(
        self,
        config: ConfigT,
        trials: Sequence[Trial],
        ended: Sequence["TrialRow"],
        *,
        is_local: bool,
    ) -> frozenset[int]:
        """Return the numbers of planned trials that need not run, by what has ended in a folder
        that is resumed."""
        return frozenset()

    def qualification(self, config: ConfigT, rows: Sequence["TrialRow"]) -> "Qualification | None":
        """Return the verdicts on the nodes that the trials measured; None if they are about no
        nodes."""
        return None

    def trial(self, config: ConfigT, experiment: Experiment) -> ConfigT:
        """Return the config of a trial with what the experiment adds to it. Raises ConfigError."""
        return config

    def with_own_prompts(self, config: ConfigT, number: int) -> ConfigT:
        """Return the config of a trial with prompts that no trial of another number has sent."""
        return config

    @abstractmethod
    def trial_times(self, config: ConfigT, replay_ns: ReplayNs = no_length) -> TrialTimes:
        """Return the times of a trial, as far as its config bounds them."""

    # --- the plan --------------------------------------------------------------------------------

    @abstractmethod
    def topology(self, config: ConfigT, facts: Facts) -> Topology:
        """Return the processes of a trial where these facts hold. Raises ConfigError."""

    def shape(self, config: ConfigT) -> list[object]:
        """Return what of a config needs processes or pods of its own, besides the keys of
        `shapes.SHAPE_KEYS`, as JSON."""
        return []

    @abstractmethod
    def longest_times(self, config: ConfigT, trials: Sequence[ConfigT]) -> LongestTimes:
        """Return the longest times of these trials of a config in the same pods."""

    @abstractmethod
    def stack(
        self, config: ConfigT, trials: Sequence[ConfigT], settings: StackSettings
    ) -> StackKind[ConfigT]:
        """Return the stack of a config whose pods run these trials, one after the other. Raises
        ConfigError."""

    def index_stack(
        self, config: ConfigT, indexes: Sequence[Sequence[ConfigT]]
    ) -> StackKind[ConfigT]:
        """Return the stack of a config whose shapes, which have these trials, are indexes of Jobs.
        Raises ConfigError."""
        raise ConfigError(
            "experiment.fan_out: jobs measures inference servers; leave it out, and the shapes of "
            "this workload run in stacks of their own"
        )

    # --- the run ---------------------------------------------------------------------------------

    def warnings(
        self, config: ConfigT, facts: Facts, topology: Topology, environ: Mapping[str, str]
    ) -> list[str]:
        """Return warnings about a run on this machine. They do not stop it."""
        return []

    def has_warmup(self, config: ConfigT) -> bool:
        """Return whether the load has a warmup."""
        return False

    def longest_waits_ns(self, config: ConfigT, *, is_held: bool) -> int:
        """Return how long the configuration may wait for others than the services."""
        return 0

    def worker_priority(self, config: ConfigT) -> WorkerPriority:
        """Return the priority of workers on a machine that has cores for all of them."""
        return WorkerPriority.USUAL

    # --- the preview -----------------------------------------------------------------------------

    @abstractmethod
    def preview(self, plan: StackPlan, config: ConfigT) -> list[tuple[str, str]]:
        """Return the first rows of a stack's preview: name and text."""
