"""The parts of a session, and the context that each of them gets.

    members   the targets, the clusters, or each target in each cluster; otherwise a single member
              without a name
    rounds    the shapes, or the trials that a driver chooses one by one; otherwise a single round
              with all trials

In each round, each member runs its own set of services: a `Part`.
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
    """Name of its folder and column; empty for the only member."""
    where: str = ""
    """The address of its target, or the context of its cluster."""
    config: Config
    trials: tuple[TrialConfig, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The trials that one part measures, and where its results go."""

    part: Part
    member: Member
    config: Config
    """Config of its services."""
    shape: Shape
    """Trials of its services."""
    trial: BeginTrial | None = None
    """The only trial to run, if a driver chose it."""
    folder: Path
    logs: Path
    is_resumed: bool = False
    """Whether the folder has trials of an earlier command."""
    finished: frozenset[int] = frozenset()
    """Numbers of the trials that need not run again."""
    run: RunValues = field(default_factory=RunValues)
    """Whether the load waits for a common start, the bucket folder that several parts share, and
    the command line."""
    run_id: str


@dataclass(frozen=True, kw_only=True)
class JointRun:
    """One finished run of a joint measurement."""

    name: str
    where: str
    """The context of its cluster, or the address of its target."""
    outcome: RunOutcome
    offsets: Mapping[int, Offset] = field(default_factory=dict)
    """Offset of its clock when the start of each trial was set, by trial number. A run without an
    experiment has trial 1."""

    def offset(self, trial: int) -> Offset | None:
        """Return the clock offset at a trial, else at the first measured one; None without any."""
        return self.offsets.get(trial) or next(iter(self.offsets.values()), None)


@dataclass(frozen=True)
class PartContext:
    """The resources of the session that a part uses."""

    interrupts: Interrupts
    screen: Screen
    gate: StartGate | None = None
    left_s: float | None = None
    """Remaining time of the session; None without a limit."""
    is_counting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the part handles interrupts itself. Until then, the first interrupt cancels it."""


class Placement(ABC):
    """Runs parts on this machine or in a cluster, one part at a time."""

    where: Where
    """This machine or a cluster."""
    lead_s: float
    """Time between the moment when all parts of a round are ready and the start of their loads."""
    run_id: str
    """Id of the session: that of its only part, or of the experiment that all parts share."""

    @property
    def limit(self) -> int:
        """Maximum number of concurrent rounds. If it is above 1, `find_room` chooses each round."""
        return 1

    @abstractmethod
    def prepare(self) -> bool:
        """Check the parts before anything is created. Returns False if the user declines to create
        them. Raises AiperfError."""

    @asynccontextmanager
    async def opened(
        self, context: PartContext, shared_parts: Sequence[Work] | None
    ) -> AsyncIterator[Sequence[int] | None]:
        """Connect to the clusters that `find_room` reads, or check and preview the stack that these
        parts share, and remove it at the end. Yields the rounds to run on that stack in order, none
        if nothing is to be created; None without such a stack. Raises AiperfError if nothing was
        created."""
        context.is_counting.set()
        yield None

    async def find_room(
        self, running: Sequence[Work], waiting: Sequence[Sequence[Work]]
    ) -> int | None:
        """Return the index of the first waiting round, each a list of its parts, that fits in
        addition to the running parts; None if none fits. Raises AiperfError."""
        return 0

    @abstractmethod
    async def run(self, work: Work, context: PartContext) -> RunOutcome:
        """Run a part from its start to its removal. Raises AiperfError if nothing was created."""

    @abstractmethod
    async def upload_keys(self, member: Member) -> Mapping[str, str]:
        """Return the credentials of the upload, by environment variable."""

    def image(self, member: Member) -> str | None:
        """Return the image of a member's services; None if they need none."""
        return None

    def more(self, work: Work) -> dict[str, Any]:
        """Return the additional keys of `--json` for a part that was not started."""
        return {}

    def completed(
        self, member: Member, outcome: RunOutcome, parts: Sequence[RunOutcome]
    ) -> RunOutcome:
        """Return the outcome of a member with the facts of its placement. `parts` are the outcomes
        of its parts."""
        return outcome


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """The parts of a config, before any part is started."""

    kind: Kind = "targets"
    """What the members are, if there are several."""
    members: tuple[Member, ...]
    shapes: Mapping[str, tuple[Shape, ...]]
    """The shapes of each member, by its name. All members have the same trials; their shapes differ
    only in the target or cluster."""
    is_driven: bool = False
    """Whether each trial is a round of its own, which a driver chooses after the previous one."""
    is_in_turn: bool = False
    """Whether one stack is changed from shape to shape. A driver creates a new stack for each of
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
        """The numbers of the rounds. The rounds of a driver are not known in advance."""
        return range(1, len(self.shapes[self.first.name]) + 1)


def expand(members: Sequence[Member], where: Where, *, kind: Kind = "targets") -> Expansion:
    """Return the parts of a config with these members. Raises ConfigError.

    A driver is needed if the services of a part cannot choose the next trial: for a search whose
    values need other processes or pods, and for a search or retries over several members.
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
                "experiment.retries: each cluster chooses its trials from the measurements of its "
                "own nodes, so the clusters cannot repeat a trial together; leave it out"
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
