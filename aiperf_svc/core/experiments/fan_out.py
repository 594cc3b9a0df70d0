"""Decides how many indexes of each Job may run, the outcome of shapes without results, and when an
experiment in Jobs has ended.

Kubernetes runs the indexes and counts their failures. Each index is a shape of the experiment, and
each Job contains the shapes whose pods have the same template. The collector reports received data
and the cluster's state, and carries out the instructions.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiperf_svc.plan.fan_out import shares
from aiperf_svc.protocol.run_states import RunState

LOST = "its pod succeeded, but its results were lost with the collector's pod"
UNKNOWN = "its pods failed; see their logs and events"
FAILED_SHAPE = "experiment.on_failure: stop, and"


class JobShapes(NamedTuple):
    """A Job, and the shapes that its indexes run, in their order."""

    name: str
    shapes: tuple[int, ...]


class JobSeen(NamedTuple):
    """Event: the status of a Job in the cluster."""

    name: str
    completed: frozenset[int]
    """Indexes whose pods succeeded."""
    failed: frozenset[int]
    """Indexes that will not be retried."""
    pods: int
    """Pods of the Job that have not ended."""
    problem: str = ""
    """Why the Job as a whole failed; empty if it did not. Pods that have not ended may still
    send their trials."""


class ShapeEnded(NamedTuple):
    """Event: the outcomes of a shape's trials have arrived."""

    shape: int
    has_failed: bool


class ShapeTried(NamedTuple):
    """Event: an attempt at a shape has failed, and another may follow."""

    shape: int
    reason: str


class JobFailed(NamedTuple):
    """Event: the pods of a Job cannot start."""

    name: str
    reason: str


class Cancelled(NamedTuple):
    """Event: the user has stopped the experiment."""

    reason: str


class OutOfTime(NamedTuple):
    """Event: the stack will delete itself soon."""

    reason: str


class SetParallelism(NamedTuple):
    """Instruction: let this many indexes of a Job run at the same time. Zero ends running ones."""

    name: str
    parallelism: int


class FailShape(NamedTuple):
    """Instruction: record trials of a shape without an outcome as failed."""

    shape: int
    reason: str


class Finish(NamedTuple):
    """Instruction: write the results; nothing follows."""

    state: RunState
    reason: str


Event = JobSeen | ShapeEnded | ShapeTried | JobFailed | Cancelled | OutOfTime
Instruction = SetParallelism | FailShape | Finish


class FanOut:
    def __init__(
        self, jobs: Sequence[JobShapes], *, limit: int | None, stops_on_failure: bool
    ) -> None:
        """`limit` is how many indexes may run at the same time; None: as many as the cluster has
        room for."""
        self._jobs = {job.name: job for job in jobs}
        self._limit = limit
        self._stops_on_failure = stops_on_failure
        self._left = {job.name: len(job.shapes) for job in jobs}
        """Indexes of each Job that the cluster has not finished."""
        self._pods: dict[str, int] = {}
        """Pods of each Job that have not ended, once the cluster has reported them."""
        self._shares: dict[str, int] = {}
        self._closed: set[str] = set()
        """Jobs that may not run anything."""
        self._open = {shape for job in jobs for shape in job.shapes}
        """Shapes without an outcome."""
        self._reasons: dict[int, str] = {}
        """Why the last attempt at each shape failed."""
        self._end: Finish | None = None
        """How the experiment ends early."""
        self._is_over = False

    @property
    def is_ending(self) -> bool:
        """True if the experiment ends early and nothing is retried."""
        return self._end is not None

    def begin(self) -> list[Instruction]:
        return self._next()

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event and return the instructions to carry out."""
        found: list[Instruction] = []
        match event:
            case JobSeen():
                found = self._handle_status(event)
            case ShapeEnded(shape, has_failed):
                self._end_shape(shape, has_failed)
            case ShapeTried(shape, reason):
                self._reasons[shape] = reason
            case JobFailed(name, reason):
                self._closed.add(name)
                found = self._fail(self._jobs[name].shapes, reason)
            case Cancelled(reason):
                self._stop(Finish(RunState.CANCELLED, reason))
            case OutOfTime(reason):
                self._stop(Finish(RunState.FAILED, reason))
        return [*found, *self._next()]

    def _handle_status(self, seen: JobSeen) -> list[Instruction]:
        shapes = self._jobs[seen.name].shapes
        self._left[seen.name] = len(shapes) - len(seen.completed | seen.failed)
        self._pods[seen.name] = seen.pods
        found = self._fail((shapes[index] for index in sorted(seen.completed)), LOST)
        for index in sorted(seen.failed):
            reason = self._reasons.get(shapes[index], UNKNOWN)
            found += self._fail((shapes[index],), reason)
        if seen.problem:
            self._closed.add(seen.name)
            if not seen.pods:
                found += self._fail(shapes, seen.problem)
        return found

    def _fail(self, shapes: Iterable[int], reason: str) -> list[Instruction]:
        found: list[Instruction] = []
        # Shapes stopped by the user have not failed.
        is_stopped = self._end is not None and self._end.state is RunState.CANCELLED
        for shape in shapes:
            if shape in self._open and not is_stopped:
                self._end_shape(shape, has_failed=True)
                found.append(FailShape(shape, reason))
        return found

    def _end_shape(self, shape: int, has_failed: bool) -> None:
        self._open.discard(shape)
        if has_failed and self._stops_on_failure:
            self._stop(Finish(RunState.FAILED, f"{FAILED_SHAPE} shape {shape} failed"))

    def _stop(self, end: Finish) -> None:
        self._end = self._end or end
        self._closed.update(self._jobs)

    def _next(self) -> list[Instruction]:
        if self._is_over:
            return []
        found: list[Instruction] = []
        remaining = {name: 0 if name in self._closed else n for name, n in self._left.items()}
        for name, share in shares(remaining, self._limit).items():
            if self._shares.get(name, 0) != share:
                self._shares[name] = share
                found.append(SetParallelism(name, share))
        # Shapes that were running when the experiment was stopped still send their trials.
        is_still = all(self._pods.get(name, 1) == 0 for name in self._jobs)
        if not self._open or (self._end is not None and is_still):
            self._is_over = True
            found.append(self._end if self._open and self._end else self._finish())
        return found

    def _finish(self) -> Finish:
        if self._end is not None and self._end.state is RunState.FAILED:
            return self._end
        return Finish(RunState.DONE, "")


def read_indexes(text: str) -> frozenset[int]:
    """Return the indexes of a Job's status: `1,3-5,7`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
