"""Session trees, as produced by the readers of agent traces: the content of each request, and the
requests that it waits for.

A reader of one format is one module (`weka_trace`, `dag_jsonl`, `otel_trace`). It yields trees
whose requests only wait for earlier ones. If a trace has times but no structure, its edges are
derived from the times (`recorded_order`). `tree_contents` builds the bytes of the requests, and
`core.load.session_tree` decides when each is sent.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiperf_svc.core.datasets.multi_turn import MAX_TURNS, ROLES
from aiperf_svc.core.endpoints.history import is_arguments
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import PlannedRequest, Stream

MAX_TIME_S: Final = 365 * 86_400.0
"""Maximum recorded time within a tree. A longer time is probably in the wrong unit."""


class ResponseOf(msgspec.Struct, frozen=True):
    """Placeholder in a prompt for the live response of an earlier request."""

    request: int


Message = Mapping[str, Any] | ResponseOf


class TreeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a tree. Its prompt is `messages`, or blocks of tokens named by `hash_ids`."""

    plan: PlannedRequest
    messages: tuple[Message, ...] = ()
    hash_ids: Sequence[int] = ()
    input_tokens: int = -1
    """Recorded tokens of the prompt; -1: unknown. Only this request has the tokens after its
    blocks."""
    output_tokens: int | None = None
    members: Mapping[str, Any] = {}
    """Additional members of the request's body, such as `tools`."""

    @property
    def has_hash_ids(self) -> bool:
        """Whether the prompt consists of blocks."""
        return not self.messages


class TracedTree(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    place: str
    """Position in the file, for errors."""
    streams: tuple[Stream, ...]
    requests: tuple[TreeRequest, ...]
    block_size: int = 0
    """Tokens for each hash id."""

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a request, its output included."""
        return max(each.input_tokens + (each.output_tokens or 0) for each in self.requests)

    @property
    def plans(self) -> tuple[PlannedRequest, ...]:
        """When each request may be sent."""
        return tuple(request.plan for request in self.requests)


class Interval(msgspec.Struct, frozen=True):
    """When a recorded request was in flight, in seconds from the start of its tree."""

    stream: int
    start_s: float
    end_s: float
    pause_s: float | None = None
    """Recorded pause of the client before it, if it replaces the one computed from the times."""


def recorded_order(intervals: Sequence[Interval]) -> list[PlannedRequest]:
    """Return which requests each request waits for. `intervals` are sorted by start.

    A request waits for the previous request of its stream. In every other stream it waits for the
    latest request that ended before it started, unless this dependency already follows from
    another one. Overlapping requests do not wait for each other. This is the rule of AIPerf's
    replay of agent traces (`timing/replay_dependencies.py` in 0.13).
    """
    plans: list[PlannedRequest] = []
    last: dict[int, int] = {}
    """Last request of each stream."""
    ends: dict[int, list[tuple[float, int]]] = {}
    """Ends and numbers of each stream's requests, the latest end last."""
    for number, each in enumerate(intervals):
        frontier = []
        for stream, ended in ends.items():
            if stream == each.stream:
                continue
            at = len(ended) - 1
            while at >= 0 and not _had_ended(intervals[ended[at][1]], each):
                at -= 1
            if at >= 0:
                frontier.append(ended[at][1])
        before = last.get(each.stream)
        if before is not None:
            frontier.append(before)
        after = _without_implied(frontier, intervals)
        if before is not None and before not in after:
            after.append(before)
        until_s = max((intervals[other].end_s for other in after), default=0.0)
        pause_s = max(0.0, each.start_s - until_s) if each.pause_s is None else each.pause_s
        plans.append(
            PlannedRequest(
                after=tuple(sorted(after)),
                delay_ns=round(pause_s * 1e9),
                start_ns=round(each.start_s * 1e9),
                stream=each.stream,
            )
        )
        last[each.stream] = number
        insort(ends.setdefault(each.stream, []), (each.end_s, number))
    return plans


def _had_ended(other: Interval, each: Interval) -> bool:
    return other.start_s < each.start_s and other.end_s <= each.start_s


def _without_implied(numbers: list[int], intervals: Sequence[Interval]) -> list[int]:
    """Drop requests that ended before the latest of these requests started. It depends on them."""
    if len(numbers) < 2:
        return numbers
    latest = max(numbers, key=lambda number: intervals[number].start_s)
    start_s = intervals[latest].start_s
    return [each for each in numbers if each == latest or intervals[each].end_s > start_s]


def checked_tree(tree: TracedTree) -> TracedTree:
    """Return a tree that can be replayed. The parent of a stream becomes its nearest ancestor with
    requests, since a stream's id is that of its first request. Raises DatasetError that names
    the position."""
    if not tree.requests:
        raise DatasetError(f"{tree.place}: no requests; expected a session with requests")
    if len(tree.requests) > MAX_TURNS:
        raise DatasetError(
            f"{tree.place}: {len(tree.requests):,} requests; expected at most {MAX_TURNS:,}"
        )
    sending, streams = {plan.stream for plan in tree.plans}, list[Stream]()
    for stream in tree.streams:
        parent = stream.parent
        if parent >= 0 and parent not in sending:
            parent = streams[parent].parent
        streams.append(msgspec.structs.replace(stream, parent=parent))
    return msgspec.structs.replace(tree, streams=tuple(streams))


def time_problem(name: str, value: float) -> str:
    """Return the problem of a recorded time in seconds; empty if there is none."""
    if value != value or not 0 <= value <= MAX_TIME_S:
        return f"`{name}` {value:g} is not between 0 and {MAX_TIME_S:,.0f} seconds"
    return ""


def message_problem(messages: Sequence[Any]) -> str:
    """Return the problem of messages of the chat API; empty if there is none."""
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return f"`{name}` has no `role`"
        role = message["role"]
        if role not in ROLES:
            return f"`{name}.role` {role!r}: expected {', '.join(ROLES)}"
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            return f"`{name}` of role tool has no `tool_call_id`"
        calls = message.get("tool_calls") or ()
        if not isinstance(calls, Sequence):
            return f"`{name}.tool_calls` is not a list"
        for number, call in enumerate(calls):
            if problem := _call_problem(call):
                return f"`{name}.tool_calls[{number}]` {problem}"
    return ""


def _call_problem(call: Any) -> str:
    if not isinstance(call, Mapping) or not (isinstance(call.get("id"), str) and call["id"]):
        return "has no `id`"
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return "has no `function.name`"
    arguments = function.get("arguments")
    if isinstance(arguments, str) and is_arguments(arguments):
        return ""
    return f"has `arguments` that are not JSON: {str(arguments)[:80]!r}"


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix of two lists."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    # C code compares slices, so a bisection is faster than a loop.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
