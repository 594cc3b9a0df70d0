"""Decides when each part of a session begins and when the loads of a round start.

A part is one set of services with its own lifetime: processes on this machine, a stack, or the pods
of a stack for one of the shapes that share it. The parts of a round measure the same trials, one
part for each target or cluster, and their loads start at the same time. Rounds follow each other,
or run at the same time as far as a limit and the cluster allow. Events go in, instructions come
out; `runner/session.py` carries them out.

    waiting ──> running ──> closing ──> over       a round
       └────────────────────────────────> over      skipped: interrupt, time limit, failure

The rounds are known from the start. Or a driver (a search, or repeats of trials) names the trial of
the next round when the last one has ended.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    TrialEnded,
)

STOPPED = "stopped by the user before it began"
AFTER_END = "not started: the experiment had ended"
OUT_OF_TIME = "not started: --timeout had expired"


class Part(NamedTuple):
    round: int
    member: str = ""
    """Name of its target or cluster; empty if there is only one."""


# --- events --------------------------------------------------------------------------------------


class Interrupted(NamedTuple):
    """Event: the user has interrupted the session. Running parts are interrupted themselves."""


class OutOfTime(NamedTuple):
    """Event: the time limit of the session has passed."""


class RoomFound(NamedTuple):
    """Event: the answer to `FindRoom`."""

    round: int | None
    """A round that fits in addition to the running ones; None: none fits, or it is unknown."""


class RoomFailed(NamedTuple):
    """Event: the available room cannot be determined."""

    reason: str


class LookAgain(NamedTuple):
    """Event: time has passed since a cluster had no room."""


class PartAwaited(NamedTuple):
    """Event: a part has passed the start of all trials before this one."""

    part: Part
    trial: int


class PartReady(NamedTuple):
    """Event: a part waits for the start of a trial."""

    part: Part
    trial: int


class PartEnded(NamedTuple):
    """Event: a part is gone."""

    part: Part
    has_failed: bool = False
    is_last: bool = False
    """No other part may follow: its stack remains, or another user has taken over the stack of all
    parts."""


class RoundClosed(NamedTuple):
    """Event: the results of a round are in their folder."""

    round: int
    trial: TrialEnded | None = None
    """Data for the driver."""


Event = (
    Interrupted
    | OutOfTime
    | RoomFound
    | RoomFailed
    | LookAgain
    | PartAwaited
    | PartReady
    | PartEnded
    | RoundClosed
)


# --- instructions --------------------------------------------------------------------------------


class StartPart(NamedTuple):
    """Instruction: start a part."""

    part: Part
    trial: BeginTrial | None = None
    """The only trial that it runs, if a driver named it."""


class SkipPart(NamedTuple):
    """Instruction: record that a part does not begin."""

    part: Part
    reason: str
    has_failed: bool = False


class FindRoom(NamedTuple):
    """Instruction: find out which waiting round fits in addition to the running ones."""

    running: tuple[int, ...]
    waiting: tuple[int, ...]


class WaitForRoom(NamedTuple):
    """Instruction: send `LookAgain` after a while."""


class AssignStart(NamedTuple):
    """Instruction: assign a common start time to the parts of a round that wait for a trial."""

    round: int
    trial: int


class CloseRound(NamedTuple):
    """Instruction: move the results of a round to their folder. All of its parts have ended."""

    round: int


class EndSession(NamedTuple):
    """Instruction: nothing follows."""

    end: EndExperiment | None = None
    """How the driver's trials ended."""


Instruction = StartPart | SkipPart | FindRoom | WaitForRoom | AssignStart | CloseRound | EndSession


class Schedule:
    def __init__(
        self,
        rounds: Iterable[int],
        members: Sequence[str] = ("",),
        *,
        limit: int = 1,
        asks_for_room: bool = False,
        stops_on_failure: bool = False,
        driver: ExperimentMachine | None = None,
    ) -> None:
        """`limit` is the maximum number of concurrent rounds. With `asks_for_room`, each round
        except the first starts only if the cluster has room for it."""
        self._members = tuple(members)
        self._limit, self._asks_for_room = limit, asks_for_room
        self._stops_on_failure, self._driver = stops_on_failure, driver
        self._waiting = list(rounds)
        self._running: dict[int, set[Part]] = {}
        """Unfinished parts of each round; empty while its results are being moved."""
        self._awaited: dict[Part, int] = {}
        """First trial whose start each part has not yet passed."""
        self._ready: set[tuple[int, int]] = set()
        """Rounds and trials that a part waits for."""
        self._started_trials: set[tuple[int, int]] = set()
        self._is_looking = False
        """Whether a response about the room is outstanding."""
        self._is_stopped = self._is_over = False

    def begin(self) -> list[Instruction]:
        if self._driver is not None:
            return self._follow(self._driver.begin())
        return self._next()

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event and return the instructions to carry out."""
        match event:
            case Interrupted():
                return self._stop(STOPPED)
            case OutOfTime():
                return self._stop(OUT_OF_TIME)
            case RoomFound(round_):
                return self._handle_room(round_)
            case RoomFailed(reason):
                self._is_looking = False
                return self._skip(reason, has_failed=True)
            case LookAgain():
                return self._next()
            case PartAwaited(part, trial):
                if part in self._awaited:
                    self._awaited[part] = trial
                return self._starts(part.round)
            case PartReady(part, trial):
                self._ready.add((part.round, trial))
                return self._starts(part.round)
            case PartEnded():
                return self._end_part(event)
            case RoundClosed():
                return self._close(event)

    # --- when a round begins ---------------------------------------------------------------------

    def _next(self) -> list[Instruction]:
        """Start every round that may begin."""
        found: list[Instruction] = []
        while self._waiting and len(self._running) < self._limit:
            # The preflight checks of a part that runs alone find what it lacks.
            if self._asks_for_room and self._running:
                if not self._is_looking:
                    self._is_looking = True
                    found.append(FindRoom(tuple(self._running), tuple(self._waiting)))
                return found
            found += self._start(self._waiting.pop(0))
        return found + self._end_if_over()

    def _handle_room(self, round_: int | None) -> list[Instruction]:
        self._is_looking = False
        if round_ is None:
            if not self._waiting:
                return self._end_if_over()
            # The last running round may have ended meanwhile.
            return [WaitForRoom()] if self._running else self._next()
        if round_ not in self._waiting or len(self._running) >= self._limit:
            return self._next()
        self._waiting.remove(round_)
        return [*self._start(round_), *self._next()]

    def _start(self, round_: int, trial: BeginTrial | None = None) -> list[Instruction]:
        parts = [Part(round_, member) for member in self._members]
        self._running[round_] = set(parts)
        self._awaited |= dict.fromkeys(parts, 1)
        return [StartPart(part, trial) for part in parts]

    # --- when its loads start --------------------------------------------------------------------

    def _starts(self, round_: int) -> list[Instruction]:
        """Assign the start of each trial that all parts of a round wait for."""
        own = [trial for part, trial in self._awaited.items() if part.round == round_]
        first = min(own, default=None)
        found = [
            key
            for key in sorted(self._ready - self._started_trials)
            if key[0] == round_ and (first is None or first > key[1])
        ]
        self._started_trials.update(found)
        return [AssignStart(*key) for key in found]

    # --- when it ends ----------------------------------------------------------------------------

    def _end_part(self, ended: PartEnded) -> list[Instruction]:
        part, found = ended.part, list[Instruction]()
        self._awaited.pop(part, None)
        if ended.is_last and self._driver is not None:
            self._driver.cancel(AFTER_END)
        if ended.is_last or (ended.has_failed and self._stops_on_failure):
            found = self._skip(AFTER_END)
        unfinished = self._running[part.round]
        unfinished.discard(part)
        return found + (self._starts(part.round) if unfinished else [CloseRound(part.round)])

    def _close(self, closed: RoundClosed) -> list[Instruction]:
        del self._running[closed.round]
        if self._driver is not None:
            assert closed.trial is not None
            return self._follow(self._driver.handle(closed.trial))
        return self._next()

    def _follow(self, instruction: BeginTrial | EndExperiment) -> list[Instruction]:
        """Follow the driver's instruction."""
        if isinstance(instruction, BeginTrial):
            return self._start(instruction.serial, instruction)
        self._is_over = True
        return [EndSession(instruction)]

    def _stop(self, reason: str) -> list[Instruction]:
        """Let no other round begin."""
        if self._driver is not None:
            self._driver.cancel(reason)
        found = self._skip(reason)
        return found + self._end_if_over()

    def _skip(self, reason: str, *, has_failed: bool = False) -> list[Instruction]:
        skipped = [Part(round_, member) for round_ in self._waiting for member in self._members]
        self._waiting.clear()
        return [SkipPart(part, reason, has_failed) for part in skipped]

    def _end_if_over(self) -> list[Instruction]:
        if self._waiting or self._running or self._is_over or self._driver is not None:
            return []
        self._is_over = True
        return [EndSession()]
