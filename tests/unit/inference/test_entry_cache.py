"""A worker's part of the dataset: what is fetched, what is kept, what is asked for."""

from array import array

import pytest

from aiperf_svc.adapters.inference import entry_cache
from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import Conversation, DatasetBlock, Turn

BLOCKS, BODY = 10, 1_000
LENGTHS = (1, 7, 2, 6, 3, 5, 4, 4, 3, 5)
"""Entries of each block: long prompts make short blocks."""
ENTRIES = sum(LENGTHS)
FIRST = [sum(LENGTHS[:number]) for number in range(BLOCKS)]


class Server:
    """Serves what a cache asks for, one block at a time, as a worker does."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        target = Target((), None, "", 0, 0, True, b"POST / HTTP/1.1\r\n")
        self.cache = EntryCache(target, self.asked.append)

    def respond_to_all(self, *, at_most: int = 100) -> int:
        """Until nothing is asked for any more; how many blocks were given."""
        given = 0
        while self.asked and given < at_most:
            self.cache.put(block(self.asked.pop(0)))
            self.cache.fetch_what_fits()
            given += 1
        return given


def block(number: int) -> DatasetBlock:
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
        starts=array("I", FIRST).tobytes(),
    )


def test_a_dataset_that_fits_is_fetched_whole_and_once() -> None:
    server = Server()
    server.cache.fetch_what_fits()
    assert server.respond_to_all() == BLOCKS
    assert server.cache.is_ready
    found = server.cache.find(int(Phase.PROFILING), 39)
    assert found is not None
    assert found.number == 39


def test_a_dataset_larger_than_the_cache_is_ready_when_the_cache_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_cache, "CACHE_BYTES", 12 * BODY)
    server = Server()
    server.cache.fetch_what_fits()
    assert server.respond_to_all() < BLOCKS
    assert server.cache.is_ready


def test_every_credit_finds_its_own_entry_in_a_dataset_larger_than_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_cache, "CACHE_BYTES", 12 * BODY)
    server = Server()
    server.cache.fetch_what_fits()
    server.respond_to_all()
    missed = 0
    for index in range(2 * ENTRIES):
        found = server.cache.find(int(Phase.PROFILING), index)
        if found is None:
            missed += 1
            assert server.respond_to_all() == 1
            found = server.cache.find(int(Phase.PROFILING), index)
        assert found is not None
        assert found.number == index % ENTRIES
    assert missed >= BLOCKS


def test_a_grant_fetches_exactly_the_blocks_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "CACHE_BYTES", 1 * BODY)
    server = Server()
    server.cache.fetch_what_fits()
    server.respond_to_all()
    server.cache.prefetch(int(Phase.PROFILING), FIRST[5] - 1, FIRST[7])
    assert server.asked == [4, 5, 6, 7]
