"""State machine for one session tree: events in, instructions out, no I/O and no clock.

A session tree is what an agent does for one task: a root stream of requests, the streams that it
spawns, and theirs. A request waits until the requests in its `after` have ended, and then for its
delay. With these edges everything else is said: the turns of a stream follow each other, the first
request of a spawned stream waits for the one that spawned it, a join waits for the last request of
each child, and a background stream is one that nobody waits for.

A request that fails cancels those that wait for it, directly or through others. The other streams
go on, and the tree counts as failed. It ends when nothing is in flight and nothing is left.
"""

from collections.abc import Sequence
from enum import IntEnum

import msgspec


class PlannedRequest(msgspec.Struct, frozen=True):
    """When one request of a tree may be sent. Requests only wait for those before them."""

    after: tuple[int, ...] = ()
    """Numbers of the requests whose ends it waits for."""
    delay_ns: int = 0
    """Pause after the last of these ends, or after the start of the tree if there are none."""
    start_ns: int = -1
    """Recorded time of the request from the start of the tree; -1: unknown."""
    stream: int = 0


class TreeStarted(msgspec.Struct, frozen=True):
    """Event: the tree begins, after its first `done` requests, which are not sent."""

    at_ns: int
    done: int = 0


class RequestEnded(msgspec.Struct, frozen=True):
    """Event: a request has ended."""

    number: int
    at_ns: int
    is_completed: bool = True


class TreeStopped(msgspec.Struct, frozen=True):
    """Event: no further request may be sent."""


class ScheduleRequest(msgspec.Struct, frozen=True):
    """Instruction: send this request at this time."""

    number: int
    due_ns: int


class CancelRequests(msgspec.Struct, frozen=True):
    """Instruction: these requests, which wait for one that failed, are never sent."""

    numbers: tuple[int, ...]


class EndTree(msgspec.Struct, frozen=True):
    """Instruction, always the last one: the tree has ended."""

    is_complete: bool
    """All its requests were sent and completed."""


Event = TreeStarted | RequestEnded | TreeStopped
Instruction = ScheduleRequest | CancelRequests | EndTree


class _State(IntEnum):
    WAITING = 0
    """For other requests."""
    SCHEDULED = 1
    """For its time, or in flight."""
    ENDED = 2
    NEVER = 3
    """Cancelled, or cut by the stop or the limit."""


class SessionTree:
    """Decides when each request of one session tree is due."""

    def __init__(self, requests: Sequence[PlannedRequest], *, limit: int = 0) -> None:
        """`limit` is the most requests that are sent; 0: all."""
        self._requests = requests
        self._limit = limit or len(requests)
        self._states = [_State.WAITING] * len(requests)
        self._missing = [len(request.after) for request in requests]
        """Number of requests that each still waits for."""
        self._ready_ns = [0] * len(requests)
        """Latest of the ends so far that each waits for."""
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
        """Whether a request is still to be scheduled."""
        return self._left > 0

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions that follow from it."""
        match event:
            case TreeStarted():
                return self._start(event)
            case RequestEnded():
                return self._end(event)
            case TreeStopped():
                self._is_whole = self._is_whole and not self._left
                self._cut()
                return self._end_if_empty()

    def _start(self, started: TreeStarted) -> list[Instruction]:
        requests = self._requests
        zero_ns = -1
        for number in range(started.done):
            self._states[number] = _State.ENDED
            self._left -= 1
            zero_ns = max(zero_ns, requests[number].start_ns)
            for waiting in self._waiting[number]:
                self._missing[waiting] -= 1
        instructions: list[Instruction] = []
        for number in range(started.done, len(requests)):
            if self._missing[number]:
                continue
            request = requests[number]
            if not started.done:
                pause_ns = request.delay_ns
            elif zero_ns < 0 or request.start_ns < 0:
                pause_ns = 0
            else:
                pause_ns = max(0, request.start_ns - zero_ns)
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
            if cancelled := self._cancel_after(number):
                instructions.append(CancelRequests(cancelled))
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
        """Send nothing more of what is not scheduled."""
        for number, state in enumerate(self._states):
            if state is _State.WAITING:
                self._states[number] = _State.NEVER
        self._left = 0

    def _cancel_after(self, failed: int) -> tuple[int, ...]:
        """Cancel what waits for a request, and return it."""
        found: set[int] = set()
        unseen = [failed]
        while unseen:
            for number in self._waiting[unseen.pop()]:
                if self._states[number] is _State.WAITING:
                    self._states[number] = _State.NEVER
                    self._left -= 1
                    found.add(number)
                    unseen.append(number)
        return tuple(sorted(found))

    def _end_if_empty(self) -> list[Instruction]:
        return [] if self._open or self._left else [EndTree(self._is_whole)]


def requests_before(requests: Sequence[PlannedRequest], share: float) -> int:
    """Return how many requests lie before a share of a tree's recorded time, or of its requests if
    it has no times. At least one is left."""
    span_ns = max((request.start_ns for request in requests), default=-1)
    if span_ns <= 0 or any(request.start_ns < 0 for request in requests):
        return min(int(share * len(requests)), len(requests) - 1)
    at_ns = share * span_ns
    done = next(n for n, request in enumerate(requests) if request.start_ns >= at_ns)
    return min(done, len(requests) - 1)


def last_of_streams(requests: Sequence[PlannedRequest], done: int) -> list[int]:
    """Return the last of the first `done` requests of each stream that has requests left, in the
    order of the requests: what a server would have in its cache of the streams that go on."""
    last = {request.stream: number for number, request in enumerate(requests[:done])}
    going_on = {request.stream for request in requests[done:]}
    return sorted(number for stream, number in last.items() if stream in going_on)
