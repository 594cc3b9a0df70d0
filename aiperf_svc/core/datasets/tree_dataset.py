"""An agent trace as a dataset: the index of its trees, and the entries, made on demand.

A trace of 50,000 requests has gigabytes of prompts and does not stay in memory. It is read and
checked once. A tree is read again, and its requests are built, when a worker is about to run it.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.assembly import Source, entry_order, statistics, warmup_share
from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.datasets.session_trees import TracedTree, common_prefix
from aiperf_svc.core.datasets.streamed import starts_of
from aiperf_svc.core.datasets.tree_contents import TreeContents
from aiperf_svc.core.load.session_tree import FirstTrees
from aiperf_svc.protocol.messages.dataset import Conversation
from aiperf_svc.protocol.messages.reports import DatasetReport

_BYTES_PER_TOKEN = 6
_BYTES_PER_REQUEST = 500


class TreeIndex:
    """The index of the trees of a trace."""

    def __init__(self) -> None:
        self.turns = array("i")
        """Requests of each tree."""
        self.sizes = array("q")
        """Approximate bytes of each tree's entry."""
        self.inputs, self.outputs = array("i"), array("i")
        """Recorded tokens of each request; -1: unknown."""
        self.streams = 0
        self.of_requests = array("H")
        """For each request the first request of its stream, of the stream that spawned it and of
        the root, and the depth of its stream. Stream ids are built from these."""
        self.left_out = 0
        self.blocks = self.hit_blocks = 0
        """Blocks of all prompts, and those that an unlimited cache would hit."""

    @property
    def prefix_cache_hit(self) -> float | None:
        """The share of blocks that an unlimited prefix cache would hit, for each tree alone; None
        if the trace has no blocks."""
        return self.hit_blocks / self.blocks if self.blocks else None

    def add(self, tree: TracedTree) -> None:
        distinct, hits, blocks = _prefixes(tree)
        self.turns.append(len(tree.requests))
        self.streams += len(tree.streams)
        self.hit_blocks += hits
        self.blocks += blocks
        texts = 0
        self.of_requests.extend(_streams_of_requests(tree))
        for request in tree.requests:
            self.inputs.append(request.input_tokens)
            self.outputs.append(-1 if request.output_tokens is None else request.output_tokens)
            texts += _BYTES_PER_REQUEST + 4 * len(request.hash_ids)
        texts += distinct * tree.block_size * _BYTES_PER_TOKEN
        self.sizes.append(texts + _message_bytes(tree))


def _streams_of_requests(tree: TracedTree) -> Iterator[int]:
    """Yield the four numbers of `TreeIndex.of_requests` for each request."""
    first: dict[int, int] = {}
    for number, plan in enumerate(tree.plans):
        first.setdefault(plan.stream, number)
    parents, depths = [each.parent for each in tree.streams], [0] * len(tree.streams)
    for stream, parent in enumerate(parents):
        depths[stream] = depths[parent] + 1 if parent >= 0 else 0
    for plan in tree.plans:
        parent = parents[plan.stream]
        yield from (first[plan.stream], first.get(parent, 0), first.get(0, 0), depths[plan.stream])


def _prefixes(tree: TracedTree) -> tuple[int, int, int]:
    """Return the number of distinct block prefixes of a tree, of blocks that repeat an earlier
    request's, and of all blocks.

    The prefixes form a trie. Most prompts continue the previous one in their stream, so only their
    additions are looked up.
    """
    nodes: dict[tuple[int, int], int] = {}
    last: dict[int, tuple[Sequence[int], list[int]]] = {}
    hits = blocks = 0
    for request in tree.requests:
        ids = request.hash_ids
        before, path = last.get(request.plan.stream, ((), []))
        path = path[: common_prefix(before, ids)]
        known = len(nodes)
        for hash_id in ids[len(path) :]:
            key = (path[-1] if path else -1, hash_id)
            path.append(nodes.setdefault(key, len(nodes)))
        blocks += len(ids)
        hits += len(ids) - (len(nodes) - known)
        last[request.plan.stream] = ids, path
    return len(nodes), hits, blocks


def _message_bytes(tree: TracedTree) -> int:
    """Return the size of the distinct messages of a tree."""
    seen = {id(each): each for request in tree.requests for each in request.messages}
    return sum(len(repr(each)) for each in seen.values())


class TreeDataset:
    """All entries of a run, made block by block. Only the warmup uses the last
    `warmup_entries`."""

    due_ns = b""

    def __init__(
        self,
        config: BenchmarkConfig,
        index: TreeIndex,
        source: Source,
        counter: TokenCounter | None,
        *,
        read: Callable[[int], TracedTree],
        close: Callable[[], None],
    ) -> None:
        """`read` returns the tree of an entry; `close` is called when no more are needed. Raises
        DatasetError if there is no entry."""
        self.close = close
        self._read = read
        self._contents = TreeContents(config, counter)
        self.entry_count = len(index.turns)
        self.warmup_entries = warmup_share(config, source, self.entry_count)
        self._order = entry_order(config, self.entry_count, self.warmup_entries)
        turns = np.frombuffer(index.turns, dtype=np.int32)[self._order]
        self.turns = turns.astype("<u2").tobytes()
        self.first_turns = np.array(self._first_turns(config), dtype="<u2").tobytes()
        self.streams = _in_order(index, self._order)
        self.starts: NDArray[np.uint32] = starts_of(
            np.frombuffer(index.sizes, dtype=np.int64)[self._order]
        )
        self.report = _report(config, index, source, counter, self.warmup_entries)

    def _first_turns(self, config: BenchmarkConfig) -> list[int]:
        """Return the remaining requests of each user's first tree, which begins in its middle, up
        to the load's number of requests; empty for loads without such a number."""
        load, found = config.load, list[int]()
        if load.agentic is None or load.requests is None:
            return found
        first_trees = FirstTrees(load.agentic, config.random_seed)
        for index in range(load.concurrency or 0):
            tree = self._read(int(self._order[index % self.entry_count]))
            plans = [self._contents.plan(request) for request in tree.requests]
            found.append(len(plans) - first_trees.position(index, plans).done)
            if sum(found) >= load.requests:
                break
        return found

    @property
    def asks_lengths(self) -> bool:
        """Whether a request asks for a number of output tokens."""
        return self.report.output_tokens is not None

    def block(self, number: int) -> tuple[Conversation, ...]:
        """Make the entries of a block. Raises DatasetError that names file and record."""
        ends = np.append(self.starts, self.entry_count)
        numbers = self._order[int(ends[number]) : int(ends[number + 1])].tolist()
        return tuple(self._contents.entry(self._read(each), each) for each in numbers)


def _in_order(index: TreeIndex, order: NDArray[np.int64]) -> bytes:
    """Return the numbers of `TreeIndex.of_requests` in the order of the entries, as uint16."""
    numbers = np.frombuffer(index.of_requests, dtype=np.uint16).reshape(-1, 4)
    ends = np.cumsum(np.frombuffer(index.turns, dtype=np.int32))
    trees = np.split(numbers, ends[:-1])
    return np.concatenate([trees[number] for number in order.tolist()]).astype("<u2").tobytes()


def _report(
    config: BenchmarkConfig,
    index: TreeIndex,
    source: Source,
    counter: TokenCounter | None,
    warmup_entries: int,
) -> DatasetReport:
    """Describe the dataset without its requests, so bytes and checksum are unknown."""
    inputs = np.frombuffer(index.inputs, dtype=np.int32)
    outputs = np.frombuffer(index.outputs, dtype=np.int32)
    return DatasetReport(
        kind=config.dataset.kind.value,
        source=source.name,
        source_sha256=source.sha256 or None,
        sha256=None,
        entries=len(index.turns),
        distinct_entries=None,
        turns=len(inputs),
        left_out=index.left_out,
        bytes=None,
        tokenizer=counter.name if counter is not None else None,
        input_tokens=statistics(inputs[inputs >= 0]) if counter is not None else None,
        output_tokens=statistics(outputs[outputs >= 0]),
        warmup_entries=warmup_entries,
        streams=index.streams,
        theoretical_prefix_cache_hit=index.prefix_cache_hit,
        has_random_text=source.has_random_text,
    )


def check_contents(config: BenchmarkConfig, tree: TracedTree) -> None:
    """Build the requests of a tree without counting their tokens. Raises DatasetError for a prompt
    that the endpoint does not support."""
    one = msgspec.structs.replace(tree, requests=tree.requests[:1])
    TreeContents(config, None).entry(one, 0)
