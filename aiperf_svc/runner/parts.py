"""The parts of a session, and what each of them gets from it.

    members   its targets, its clusters, or each target in each cluster; else one without a name
    rounds    its shapes, or the trials that a driver names one by one; else one for all trials

Each member takes part in each round with a set of services of its own: a `Part`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiperf_svc.adapters.terminal.screens import Screen
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.several_targets import problem_of_joint
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.machine import BeginTrial
from aiperf_svc.core.experiments.schedule import Part
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.start_gate import Offset, StartGate
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape, Where, is_side_by_side, shapes, shapes_of
from aiperf_svc.workloads.trials import TrialConfig

Kind = Literal["clusters", "targets"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the targets or clusters that are measured at the same time, or the only one."""

    name: str = ""
    """Names its folder and its column; empty if there is one."""
    where: str = ""
    """The address of its target, or the context of its cluster."""
    config: Config
    trials: tuple[TrialConfig, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one part measures, and where its results go."""

    part: Part
    member: Member
    config: Config
    """The config that its services read."""
    shape: Shape
    """The trials that its services run."""
    trial: BeginTrial | None = None
    """The one trial that it runs, if a driver has named it."""
    folder: Path
    logs: Path
    goes_on: bool = False
    """Whether the folder has trials that have ended before."""
    finished: frozenset[int] = frozenset()
    """Numbers of the trials that need not run again."""
    run: RunValues = field(default_factory=RunValues)
    """Whether its load waits for a common start, and the folder of the bucket that several parts
    share."""
    run_id: str


@dataclass(frozen=True, kw_only=True)
class JointRun:
    """One of the runs when it has ended."""

    name: str
    where: str
    """The context of its cluster, or the address of its target."""
    outcome: RunOutcome
    offsets: Mapping[int, Offset] = field(default_factory=dict)
    """Its clock when it was given the start of each trial, by number; of a run without an
    experiment, trial 1."""

    def offset(self, trial: int) -> Offset | None:
        """Return its clock at a trial, or when it is known next best; None if it is not known."""
        return self.offsets.get(trial) or next(iter(self.offsets.values()), None)


@dataclass(frozen=True)
class PartContext:
    """What a part uses of its session."""

    interrupts: Interrupts
    screen: Screen
    gate: StartGate | None = None
    left_s: float | None = None
    """Time that the session has left; None without a limit."""
    is_counting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the part handles interrupts itself; before, the first one cancels it."""


class Placement(ABC):
    """Runs parts on this machine or in a cluster, one part at a time."""

    where: Where
    """This machine or a cluster."""
    lead_s: float
    """Time from the moment at which all parts of a round are ready to the start of their loads."""
    run_id: str
    """Id of the session: that of its only part, or of the experiment that all parts share."""

    @property
    def limit(self) -> int:
        """Most rounds at the same time. If it is more than 1, each must also find room."""
        return 1

    @abstractmethod
    def prepare(self) -> bool:
        """Check what can be checked before anything is made; False if the user declines what would
        be created. Raises AiperfError."""

    @asynccontextmanager
    async def opened(
        self, context: PartContext, shared_parts: Sequence[Work] | None
    ) -> AsyncIterator[Sequence[int] | None]:
        """Connect to what `find_room` asks, or check and preview the stack that these parts share,
        which is removed at the end. Yields the rounds to run on it in their order, none if nothing
        is to be made; None without such a stack. Raises AiperfError if nothing was made."""
        context.is_counting.set()
        yield None

    async def find_room(
        self, running: Sequence[Work], waiting: Sequence[Sequence[Work]]
    ) -> int | None:
        """Return the place of the first waiting round, given by its parts, that has room beside the
        parts that run; None if none has. Raises AiperfError."""
        return 0

    @abstractmethod
    async def run(self, work: Work, context: PartContext) -> RunOutcome:
        """Run a part from its start to its removal. Raises AiperfError if nothing was made."""

    @abstractmethod
    async def upload_keys(self, member: Member) -> Mapping[str, str]:
        """Return the keys of the upload, by environment variable."""

    def image(self, member: Member) -> str | None:
        """Return the image of the services that measure a member; None: they need none."""
        return None

    def more(self, work: Work) -> dict[str, Any]:
        """Return the further keys of `--json` for a part that was not begun."""
        return {}

    def completed(
        self, member: Member, outcome: RunOutcome, parts: Sequence[RunOutcome]
    ) -> RunOutcome:
        """Add to the outcome of a member what only the placement knows. `parts` are those of its
        parts."""
        return outcome


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """The parts of a config, before any of them is started."""

    kind: Kind = "targets"
    """What the members are, if there are several."""
    members: tuple[Member, ...]
    shapes: Mapping[str, tuple[Shape, ...]]
    """The shapes of each member, by its name. They have the same trials and differ in what the
    members differ in."""
    is_driven: bool = False
    """Whether each trial is a round of its own, which a driver names when the last one is over."""
    is_in_turn: bool = False
    """Whether a stack is changed from one shape to the next; a driver makes a new one for each of
    its trials."""

    @property
    def first(self) -> Member:
        """The first member, or the only one. All members have the same trials."""
        return self.members[0]

    @property
    def is_joint(self) -> bool:
        """Whether several members are measured at the same time."""
        return len(self.members) > 1

    @property
    def is_single(self) -> bool:
        """Whether there is one part, or one stack that all parts share."""
        return not (self.is_split or self.is_driven or self.is_joint)

    @property
    def is_split(self) -> bool:
        """Whether each round has processes or stacks of its own."""
        return len(self.rounds) > 1 and not self.is_in_turn

    @property
    def rounds(self) -> range:
        """The numbers of the rounds; of a driver's, nothing is known before."""
        return range(1, len(self.shapes[self.first.name]) + 1)


def expand(members: Sequence[Member], where: Where, *, kind: Kind = "targets") -> Expansion:
    """Return the parts of a config with these members. Raises ConfigError.

    A driver is needed where the services of a part cannot decide which trial is next: a search
    whose values need other processes or pods, and a search or retries over several members.
    """
    config = members[0].config
    if len(members) > 1 and (problem := problem_of_joint(config.experiment)):
        raise ConfigError(Problem("", problem, names_keys=True).line({}))
    found = {each.name: _shapes(each, where) for each in members}
    experiment, shapes = config.experiment, found[members[0].name]
    has_search = config.search is not None
    has_retries = experiment is not None and experiment.retries > 0
    if len(members) > 1 and has_retries:
        trials = [each.trial for each in members[0].trials]
        if workload_of(config).strategy(config, trials, ()) is not None:
            raise ConfigError(
                "experiment.retries: each cluster chooses its trials by what its own nodes have "
                "measured, so that the clusters cannot repeat a trial together; leave it out"
            )
    return Expansion(
        kind=kind,
        members=tuple(members),
        shapes=found,
        is_driven=(has_search and len(shapes) > 1)
        or (len(members) > 1 and (has_search or has_retries)),
        is_in_turn=where == "cluster" and len(members) == 1 and not is_side_by_side(config),
    )


def _shapes(member: Member, where: Where) -> tuple[Shape, ...]:
    if member.config.search is not None:
        return shapes(member.trials, where)
    return shapes_of(member.config, where, member.trials)
