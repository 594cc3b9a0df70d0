"""The interface of workloads: everything that differs between an inference load and a tool.

`registry.workload_of` returns the workload of a config. `inference/` has the workload that sends
requests, `tool.py` the base of all tools. Pure: a workload decides; services, adapters and the
runner execute.
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
"""Returns the length of a config's fixed schedule; None if unknown."""


def no_length(config: BenchmarkConfig) -> int | None:
    """Return the length of a fixed schedule whose trace has not been read: unknown."""
    return None


class TrialTimes(NamedTuple):
    """Times of a trial in ns; None if unknown."""

    expected: int | None
    longest: int | None


class WorkerPriority(Enum):
    """How worker processes compete for the cores of their machine."""

    USUAL = "usual"
    """Like every other process."""
    BEFORE_ALL = "before all"
    """Before all other processes, to keep a schedule."""
    WHILE_IDLE = "while idle"
    """Before all other processes while it uses little CPU."""


class Secret(msgspec.Struct, frozen=True):
    """A secret value that services need."""

    variable: str
    """Environment variable with the value on the user's machine."""
    key: str
    """Key of the stack's configuration with the value."""
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
    """Requirements of a run for this machine."""

    files: tuple[NeededFile, ...] = ()
    authorities: Tls | None = None
    """The TLS settings whose certificates are read."""
    modules: tuple[tuple[str, str, str], ...] = ()
    """Modules of extras: the key that needs one, the module, the extra that contains it."""
    tokenizer: str = ""
    """Name or path of a tokenizer; empty: none."""
    variables: tuple[NeededVariable, ...] = ()
    programs: tuple[NeededProgram, ...] = ()
    path: str | None = None
    """PATH for the programs; None: the environment's."""
    problems: tuple[Problem, ...] = ()
    """Problems on any machine."""


class Workload(ABC, Generic[ConfigT]):
    """One kind of workload."""

    kind: ClassVar[str]
    runs_on_ranks: ClassVar[bool]
    """Whether the workers are couriers of ranks instead of senders of requests."""

    # --- the config ------------------------------------------------------------------------------

    @abstractmethod
    def config_problems(self, config: ConfigT) -> list[Problem]:
        """Return the problems of a config beyond its models, wherever it runs."""

    def cluster_problems(self, config: ConfigT) -> list[Problem]:
        """Return the problems of running a config on a cluster."""
        return []

    @abstractmethod
    def local_needs(self, config: ConfigT) -> LocalNeeds:
        """Return the requirements of a run on this machine."""

    @abstractmethod
    def secrets(self, config: ConfigT) -> tuple[Secret, ...]:
        """Return the secrets of a config, without those of uploads, which all kinds have."""

    @abstractmethod
    def subject(self, config: ConfigT) -> str:
        """Return a few words about what is measured."""

    def kinds_of(self, config: ConfigT) -> tuple[str, ...]:
        """Return the kinds of tools that a run needs."""
        return ()

    # --- trials ----------------------------------------------------------------------------------

    def completed(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config as written, plus its implied parts, before it is checked."""
        return data

    def strategy(
        self, config: ConfigT, trials: Sequence[Trial], ended: Sequence["EndedTrial"]
    ) -> "Strategy | None":
        """Return the strategy that chooses planned trials by the results so far; None: they run as
        planned. `ended` trials need not run again."""
        return None

    def unnecessary_trials(
        self,
        config: ConfigT,
        trials: Sequence[Trial],
        ended: Sequence["TrialRow"],
        *,
        is_local: bool,
    ) -> frozenset[int]:
        """Return the numbers of planned trials that need not run, given the trials that have ended
        in a resumed folder."""
        return frozenset()

    def qualification(self, config: ConfigT, rows: Sequence["TrialRow"]) -> "Qualification | None":
        """Return the verdicts on the nodes of the trials; None if the trials do not judge nodes."""
        return None

    def trial(self, config: ConfigT, experiment: Experiment) -> ConfigT:
        """Return the config of a trial with the experiment's additions. Raises ConfigError."""
        return config

    def with_own_prompts(self, config: ConfigT, number: int) -> ConfigT:
        """Return the config of a trial with prompts that only trials of this number send."""
        return config

    @abstractmethod
    def trial_times(self, config: ConfigT, replay_ns: ReplayNs = no_length) -> TrialTimes:
        """Return the times of a trial, as far as its config limits them."""

    # --- the plan --------------------------------------------------------------------------------

    @abstractmethod
    def topology(self, config: ConfigT, facts: Facts) -> Topology:
        """Return the processes of a trial on a machine with these facts. Raises ConfigError."""

    def shape(self, config: ConfigT) -> list[object]:
        """Return the parts of a config that need separate processes or pods, besides the keys of
        `shapes.SHAPE_KEYS`, as JSON."""
        return []

    @abstractmethod
    def longest_times(self, config: ConfigT, trials: Sequence[ConfigT]) -> LongestTimes:
        """Return the longest times of these trials of a config in the same pods."""

    @abstractmethod
    def stack(
        self, config: ConfigT, trials: Sequence[ConfigT], settings: StackSettings
    ) -> StackKind[ConfigT]:
        """Return the stack of a config whose pods run these trials one after another. Raises
        ConfigError."""

    def index_stack(
        self, config: ConfigT, indexes: Sequence[Sequence[ConfigT]]
    ) -> StackKind[ConfigT]:
        """Return the stack of a config whose shapes, with these trials, are indexes of Jobs. Raises
        ConfigError."""
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
        """Return how long the configuration may wait for anything but the services."""
        return 0

    def worker_priority(self, config: ConfigT) -> WorkerPriority:
        """Return the priority of workers on a machine with cores for all of them."""
        return WorkerPriority.USUAL

    # --- the preview -----------------------------------------------------------------------------

    @abstractmethod
    def preview(self, plan: StackPlan, config: ConfigT) -> list[tuple[str, str]]:
        """Return the first rows of a stack's preview: name and text."""
