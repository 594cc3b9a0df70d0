"""A worker's cache of the dataset: which blocks are fetched, kept and requested."""

from array import array
from typing import Any

import pytest

from aiperf_svc.adapters.inference import entry_cache
from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.core.load.entry_order import EntryOrder
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.dataset import Conversation, DatasetBlock, Turn

BLOCKS, BODY = 10, 1_000
LENGTHS = (1, 7, 2, 6, 3, 5, 4, 4, 3, 5)
"""Entries of each block. Long prompts make short blocks."""
ENTRIES = sum(LENGTHS)
FIRST = [sum(LENGTHS[:number]) for number in range(BLOCKS)]


class Server:
    """Serves the blocks that a cache requests, one at a time, as a worker does."""

    def __init__(self, *, is_streamed: bool = False, **options: Any) -> None:
        self.is_streamed = is_streamed
        self.requested: list[int] = []
        target = Target((), None, "", 0, 0, True, b"POST / HTTP/1.1\r\n")
        self.cache = EntryCache(target, self.requested.append, **options)

    def respond_to_all(self, *, at_most: int = 100) -> int:
        """Respond until nothing is requested any more. Return the number of served blocks."""
        loaded = 0
        while self.requested and loaded < at_most:
            self.cache.put(block(self.requested.pop(0), is_streamed=self.is_streamed))
            self.cache.fetch_fitting()
            loaded += 1
        return loaded


def block(number: int, *, is_streamed: bool = False) -> DatasetBlock:
    turn = Turn(messages=b"x" * BODY)
    return DatasetBlock(
        "run",
        "dataset-manager",
        1,
        block=number,
        block_count=BLOCKS,
        entry_count=ENTRIES,
        warmup_entries=0,
        first_entry=FIRST[number],
        conversations=(Conversation("", (turn,)),) * LENGTHS[number],
        starts=array("I", FIRST).tobytes() if number == 0 else b"",
        is_streamed=is_streamed,
    )


def test_fitting_dataset_is_fetched_once() -> None:
    server = Server()
    server.cache.fetch_fitting()
    assert server.respond_to_all() == BLOCKS
    assert server.cache.is_ready
    found = server.cache.find(int(Phase.PROFILING), 39)
    assert found is not None
    assert found.number == 39


def test_reordered_entries_are_found_by_their_order() -> None:
    order = EntryOrder("random", ENTRIES, 1)
    server = Server(order_of=lambda count: EntryOrder("random", count, 1))
    server.cache.fetch_fitting()
    server.respond_to_all()
    phase = int(Phase.PROFILING)
    assert server.cache.whole(phase) is None
    found = [server.cache.find(phase, index) for index in range(2 * ENTRIES)]
    assert [entry and entry.number for entry in found] == order.entries(2 * ENTRIES).tolist()


def test_large_dataset_is_ready_with_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "CACHE_BYTES", 12 * BODY)
    server = Server()
    server.cache.fetch_fitting()
    assert server.respond_to_all() < BLOCKS
    assert server.cache.is_ready


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a full cache of a dataset that does not fit."""
    monkeypatch.setattr(entry_cache, "CACHE_BYTES", 12 * BODY)
    monkeypatch.setattr(entry_cache, "AHEAD_BYTES", 12 * BODY)
    server = Server()
    server.cache.fetch_fitting()
    server.respond_to_all()
    return server


def test_credits_find_their_entries_in_a_large_dataset(small: Server) -> None:
    for index in range(2 * ENTRIES):
        found = small.cache.find(int(Phase.PROFILING), index)
        assert found is not None
        assert found.number == index % ENTRIES
        small.respond_to_all()


def test_blocks_are_fetched_ahead_and_dropped_behind(small: Server) -> None:
    held = []
    for index in range(ENTRIES):
        assert small.cache.find(int(Phase.PROFILING), index) is not None
        small.respond_to_all()
        held.append(sum(map(len, small.cache._blocks.values())))
    assert min(held) >= 12
    # In addition there are the block in use, the last fetched block, and the next one.
    assert max(held) <= 12 + 3 * max(LENGTHS)


def test_credit_far_ahead_waits_once(small: Server) -> None:
    assert small.cache.find(int(Phase.PROFILING), FIRST[7]) is None
    assert small.requested == [7]
    assert small.respond_to_all() > 1
    for index in range(FIRST[7], ENTRIES):
        assert small.cache.find(int(Phase.PROFILING), index) is not None
        small.respond_to_all()


def test_streamed_dataset_is_never_fetched_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "AHEAD_BYTES", 12 * BODY)
    server = Server(is_streamed=True)
    server.cache.fetch_fitting()
    assert 1 < server.respond_to_all() < BLOCKS
    assert server.cache.is_ready
