"""State machine for one session tree: events in, instructions out, no I/O and no clock.

A session tree is the work of an agent for one task: a root stream of requests, the streams that it
spawns, and theirs. A request waits until the requests in its `after` have ended, and then for its
delay. These edges express everything else: the turns of a stream follow each other, the first
request of a spawned stream waits for the request that spawned it, a join waits for the last request
of each child, and no turn waits for a background stream.

A failed request cancels those that wait for it, directly or indirectly. The other streams continue,
and the tree counts as failed. It ends when nothing is in flight and nothing remains.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np

from aiperf_svc.config.load_shapes import Agentic
from aiperf_svc.protocol.messages.dataset import PlannedRequest

_KEY = 0x7EE5
"""Key that separates these random numbers from others with the same seed."""


class Position(NamedTuple):
    """A position in the recorded time of a tree."""

    done: int = 0
    """Number of requests before it."""
    at_ns: int = -1
    """Time from the tree's start; -1: the tree has no times."""


class TreeStarted(msgspec.Struct, frozen=True):
    """Event: the tree begins. Requests before the position are not sent."""

    at_ns: int
    position: Position = Position()
    longest_pause_ns: int | None = None
    """Maximum pause before the first requests after the position; None: as recorded."""


class RequestEnded(msgspec.Struct, frozen=True):
    """Event: a request has ended."""

    number: int
    at_ns: int
    is_completed: bool = True


class TreeStopped(msgspec.Struct, frozen=True):
    """Event: no further request may be sent."""

    unsent: tuple[int, ...] = ()
    """Scheduled requests that were not sent."""


class ScheduleRequest(msgspec.Struct, frozen=True):
    """Instruction: send this request at this time."""

    number: int
    due_ns: int


class EndTree(msgspec.Struct, frozen=True):
    """Instruction, always the last one: the tree has ended."""

    is_complete: bool
    """All its requests were sent and completed."""


Event = TreeStarted | RequestEnded | TreeStopped
Instruction = ScheduleRequest | EndTree


class _State(IntEnum):
    WAITING = 0
    """Waits for other requests."""
    SCHEDULED = 1
    """Waits for its time, or is in flight."""
    ENDED = 2
    NEVER = 3
    """Cancelled, or cut by the stop or the limit."""


class SessionTree:
    """Decides when each request of one session tree is due."""

    def __init__(self, requests: Sequence[PlannedRequest], *, limit: int = 0) -> None:
        """`limit` is the maximum number of requests to send; 0: all."""
        self._requests = requests
        self._limit = limit or len(requests)
        self._states = [_State.WAITING] * len(requests)
        self._missing = [len(request.after) for request in requests]
        """Number of requests that each request still waits for."""
        self._ready_ns = [0] * len(requests)
        """Latest end so far among the requests that each one waits for."""
        self._waiting: list[list[int]] = [[] for _ in requests]
        """Requests that wait for each one."""
        for number, request in enumerate(requests):
            for before in request.after:
                self._waiting[before].append(number)
        self._open = 0
        """Number of scheduled requests."""
        self._left = len(requests)
        """Number of requests that are neither sent nor cut."""
        self._is_whole = True

    @property
    def has_more(self) -> bool:
        """Whether a request remains to be scheduled."""
        return self._left > 0

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions to carry out."""
        match event:
            case TreeStarted():
                return self._start(event)
            case RequestEnded():
                return self._end(event)
            case TreeStopped(unsent=unsent):
                self._is_whole = self._is_whole and not self._left and not unsent
                for number in unsent:
                    self._states[number] = _State.NEVER
                self._open -= len(unsent)
                self._cut()
                return self._end_if_empty()

    def _start(self, started: TreeStarted) -> list[Instruction]:
        requests = self._requests
        done, zero_ns = started.position
        for number in range(done):
            self._states[number] = _State.ENDED
            self._left -= 1
            for waiting in self._waiting[number]:
                self._missing[waiting] -= 1
        instructions: list[Instruction] = []
        for number in range(done, len(requests)):
            if self._missing[number]:
                continue
            request = requests[number]
            if not done:
                pause_ns = request.delay_ns
            else:
                pause_ns = max(0, request.start_ns - zero_ns) if zero_ns >= 0 else 0
                if started.longest_pause_ns is not None:
                    pause_ns = min(pause_ns, started.longest_pause_ns)
            instructions += self._schedule(number, started.at_ns + pause_ns)
        return [*instructions, *self._end_if_empty()]

    def _end(self, ended: RequestEnded) -> list[Instruction]:
        number = ended.number
        assert self._states[number] is _State.SCHEDULED, f"request {number} was not sent"
        self._states[number] = _State.ENDED
        self._open -= 1
        instructions: list[Instruction] = []
        if not ended.is_completed:
            self._is_whole = False
            self._cancel_after(number)
        else:
            for waiting in self._waiting[number]:
                if self._states[waiting] is not _State.WAITING:
                    continue
                self._missing[waiting] -= 1
                self._ready_ns[waiting] = max(self._ready_ns[waiting], ended.at_ns)
                if not self._missing[waiting]:
                    due_ns = self._ready_ns[waiting] + self._requests[waiting].delay_ns
                    instructions += self._schedule(waiting, due_ns)
        return [*instructions, *self._end_if_empty()]

    def _schedule(self, number: int, due_ns: int) -> list[Instruction]:
        if self._limit == 0:
            return []
        self._limit -= 1
        self._states[number] = _State.SCHEDULED
        self._open += 1
        self._left -= 1
        if self._limit == 0:
            self._cut()
        return [ScheduleRequest(number, due_ns)]

    def _cut(self) -> None:
        """Cut all requests that are not scheduled."""
        for number, state in enumerate(self._states):
            if state is _State.WAITING:
                self._states[number] = _State.NEVER
        self._left = 0

    def _cancel_after(self, failed: int) -> None:
        """Cancel the requests that wait for one, directly or indirectly."""
        unseen = [failed]
        while unseen:
            for number in self._waiting[unseen.pop()]:
                if self._states[number] is _State.WAITING:
                    self._states[number] = _State.NEVER
                    self._left -= 1
                    unseen.append(number)

    def _end_if_empty(self) -> list[Instruction]:
        return [] if self._open or self._left else [EndTree(self._is_whole)]


def position_at(requests: Sequence[PlannedRequest], share: float) -> Position:
    """Return the position at a share of a tree's recorded time, or of its requests if it has no
    times. At least one request comes after it."""
    span_ns = max((request.start_ns for request in requests), default=-1)
    if span_ns <= 0 or any(request.start_ns < 0 for request in requests):
        return Position(min(int(share * len(requests)), len(requests) - 1))
    at_ns = round(share * span_ns)
    done = next(n for n, request in enumerate(requests) if request.start_ns >= at_ns)
    return Position(min(done, len(requests) - 1), at_ns)


class FirstTrees:
    """Selects where each user's first tree begins, and the requests that fill the cache before."""

    def __init__(self, agentic: Agentic, seed: int) -> None:
        self._start, self._warmup_requests = agentic.start, agentic.warmup_requests
        self._seed = seed

    def position(self, index: int, requests: Sequence[PlannedRequest]) -> Position:
        """Return where the tree of a credit begins."""
        begin = self._begin(index, requests)
        done = self._warmed(begin.done, requests)
        at_ns = begin.at_ns
        if at_ns >= 0 and done:
            at_ns = max(at_ns, requests[done - 1].start_ns)
        return Position(done, at_ns)

    def warmup(
        self, index: int, requests: Sequence[PlannedRequest]
    ) -> tuple[list[int], list[PlannedRequest]]:
        """Return the numbers of the requests for one token of a credit's tree, and when they are
        sent: the last ones of its streams at once, then the others one after another."""
        begin = self._begin(index, requests).done
        last = last_of_streams(requests, begin)
        further = range(begin, self._warmed(begin, requests))
        plans = [PlannedRequest()] * len(last)
        for place in range(len(last), len(last) + len(further)):
            is_first = place == len(last)
            plans.append(PlannedRequest(tuple(range(place)) if is_first else (place - 1,)))
        return [*last, *further], plans

    def _begin(self, index: int, requests: Sequence[PlannedRequest]) -> Position:
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(_KEY, index)))
        return position_at(requests, float(rng.uniform(self._start.min, self._start.max)))

    def _warmed(self, done: int, requests: Sequence[PlannedRequest]) -> int:
        return min(done + self._warmup_requests, len(requests) - 1)


def last_of_streams(requests: Sequence[PlannedRequest], done: int) -> list[int]:
    """Return the last of the first `done` requests in each stream with remaining requests, in the
    order of the requests: the cached prompts of the streams that continue."""
    last = {request.stream: number for number, request in enumerate(requests[:done])}
    going_on = {request.stream for request in requests[done:]}
    return sorted(number for stream, number in last.items() if stream in going_on)
