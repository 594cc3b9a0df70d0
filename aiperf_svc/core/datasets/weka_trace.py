"""Reads agent traces in the format of Weka's KV-cache tester: one JSON object per session.

    {"id", "models", "block_size", "hash_id_scope": "local", "tool_tokens", "system_tokens",
     "requests": [...]}

A request has `t` (seconds), `type` n or s (streamed), `model`, `in` and `out` (tokens), `hash_ids`,
`api_time` (seconds until its response had ended), and optionally `think_time`. An element of type
`subagent` has `agent_id`, `t` and its own `requests`. Their `t` counts from the session's start,
unless it is before that of the subagent.

A trace may lack the agent of a request. Then the requests of one list form several streams. A
request that begins with all blocks of a stream's last request, with the same model, continues that
stream. One that shares fewer blocks also continues it if no later request returns to the longer
prefix, since the context was then shortened. Any other request begins a new stream.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from aiperf_svc.core.datasets.base import decode_line
from aiperf_svc.core.datasets.session_trees import (
    Interval,
    TracedTree,
    TreeRequest,
    checked_tree,
    common_prefix,
    recorded_order,
    time_problem,
)
from aiperf_svc.core.datasets.synthetic import MAX_INPUT_TOKENS
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import Stream

EXPECTED = (
    'an object such as {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", '
    '"requests": [{"t": 0, "type": "s", "model": "m", "in": 100, "out": 9, "hash_ids": [1, 2]}]}'
)


class _Request(msgspec.Struct):
    t: float
    type: Literal["n", "s", "subagent"]
    model: str = ""
    input: int = msgspec.field(default=0, name="in")
    output: int = msgspec.field(default=0, name="out")
    hash_ids: list[int] = []
    api_time: float | None = None
    think_time: float | None = None
    agent_id: str = ""
    requests: list["_Request"] | None = None


class _Trace(msgspec.Struct):
    id: str
    block_size: int
    hash_id_scope: str
    requests: list[_Request]


_decoder = msgspec.json.Decoder(_Trace)


class _Item(msgspec.Struct):
    """A request with its stream."""

    request: _Request
    name: str
    stream: int
    start_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + (self.request.api_time or 0.0)


def read_tree(content: bytes, place: str, *, think_time_only: bool = False) -> TracedTree:
    """Return the session of a trace. With `think_time_only`, a known recorded `think_time` is the
    pause before a request. Raises DatasetError that names the position."""
    trace: _Trace = decode_line(content, _decoder, place=place, expected=EXPECTED)
    place = f"{place}: trace {trace.id!r}"
    if trace.hash_id_scope != "local":
        raise DatasetError(
            f"{place}: `hash_id_scope` {trace.hash_id_scope!r} is not supported; expected local: "
            "hash ids that mean the same in no other trace"
        )
    if not 1 <= trace.block_size <= 1_000_000:
        raise DatasetError(f"{place}: `block_size` {trace.block_size}: expected 1 to 1,000,000")
    reader = _Reader(trace, place)
    reader.add(trace.requests, "requests", 0)
    items = sorted(reader.items, key=lambda item: item.start_s)
    intervals = [
        Interval(
            item.stream,
            item.start_s,
            item.end_s,
            item.request.think_time if think_time_only else None,
        )
        for item in items
    ]
    return checked_tree(
        TracedTree(
            id=trace.id,
            place=place,
            streams=tuple(reader.streams),
            block_size=trace.block_size,
            requests=tuple(
                TreeRequest(
                    plan=plan,
                    hash_ids=item.request.hash_ids,
                    input_tokens=item.request.input,
                    # Servers refuse a request for zero tokens.
                    output_tokens=max(1, item.request.output),
                )
                for plan, item in zip(recorded_order(intervals), items, strict=True)
            ),
        )
    )


class _Reader:
    """Collects the requests of a trace and finds their streams."""

    def __init__(self, trace: _Trace, place: str) -> None:
        self._block_size = trace.block_size
        self._place = place
        self.streams = [Stream("root")]
        self.items: list[_Item] = []

    def add(
        self, requests: Sequence[_Request], name: str, stream: int, *, begin_s: float = 0.0
    ) -> None:
        """Add the requests of a list, whose first stream is `stream`, and those of its
        subagents."""
        found: list[_Item] = []
        for number, each in enumerate(requests):
            where = f"{name}[{number}]"
            self._check(each, where)
            start_s = begin_s + each.t if each.t < begin_s else each.t
            if each.type != "subagent":
                if each.input:
                    found.append(_Item(each, where, stream, start_s))
                continue
            if stream:
                raise self._error(where, "a subagent within a subagent")
            if not each.agent_id:
                raise self._error(where, "a subagent without `agent_id`")
            if each.requests is None:
                raise self._error(where, "a subagent without `requests`")
            child = len(self.streams)
            self.streams.append(Stream(each.agent_id, stream))
            self.add(each.requests, f"{where}.requests", child, begin_s=start_s)
        found.sort(key=lambda item: item.start_s)
        self._split(found, stream)

    def _check(self, each: _Request, where: str) -> None:
        """Raise DatasetError for an impossible request."""
        for name in ("t", "api_time", "think_time"):
            value = getattr(each, name)
            if value is not None and (problem := time_problem(name, value)):
                raise self._error(where, problem)
        if not 0 <= each.input <= MAX_INPUT_TOKENS or not 0 <= each.output < 2**31:
            raise self._error(
                where,
                f"{each.input:,} tokens in and {each.output:,} out; expected 0 to "
                f"{MAX_INPUT_TOKENS:,}",
            )
        max_blocks = -(-each.input // self._block_size)
        if len(each.hash_ids) > max_blocks:
            raise self._error(
                where,
                f"{len(each.hash_ids):,} hash ids for {each.input:,} tokens, where blocks of "
                f"{self._block_size:,} are {max_blocks:,}",
            )

    def _error(self, where: str, wrong: str) -> DatasetError:
        return DatasetError(f"{self._place}: {where}: {wrong}")

    def _split(self, items: Sequence[_Item], stream: int) -> None:
        """Assign the requests of one list, in order of their times, to the streams identified by
        their hash ids."""
        tails: dict[int, _Item] = {}
        for number, item in enumerate(items):
            if item.request.hash_ids:
                if tails:
                    item.stream = _continued(item, tails, items[number + 1 :])
                if item.stream < 0:
                    item.stream = len(self.streams)
                    self.streams.append(Stream(item.name, stream))
                tails[item.stream] = item
            self.items.append(item)


def _continued(item: _Item, tails: dict[int, _Item], later: Sequence[_Item]) -> int:
    """Return the stream that a request continues; -1: none."""
    ids, best, shared = item.request.hash_ids, -1, 0
    for stream, tail in tails.items():
        if tail.request.model != item.request.model or tail.end_s > item.start_s + 1e-6:
            continue
        common = common_prefix(tail.request.hash_ids, ids)
        if common > shared:
            best, shared = stream, common
    if best < 0:
        return -1
    before = tails[best].request.hash_ids
    comes_back = shared < len(before) and any(
        len(each.request.hash_ids) >= len(before)
        and each.request.model == item.request.model
        and each.request.hash_ids[: len(before)] == before
        for each in later
    )
    return -1 if comes_back else best
