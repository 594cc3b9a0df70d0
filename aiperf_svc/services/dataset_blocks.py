"""The blocks of a dataset, as encoded messages.

A dataset that is held has all its blocks at once. Those of a streamed one are made in a thread,
some of them ahead, since workers ask for one block after the other.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.streamed import StreamedDataset
from aiperf_svc.protocol.messages.dataset import Conversation, DatasetBlock

AHEAD = 16
"""Number of blocks that are made before they are asked for."""
KEPT = 64
"""Number of blocks of a streamed dataset that are kept, of 256 KiB each."""

Header = tuple[str, str, int]


class HeldBlocks:
    """All blocks of a dataset."""

    def __init__(self, dataset: BuiltDataset, header: Header) -> None:
        blocks = dataset.blocks()
        starts = np.cumsum([0, *map(len, blocks)], dtype=np.uint32)[:-1]
        self._blocks = [
            _encoded(dataset, header, number, starts, entries)
            for number, entries in enumerate(blocks)
        ]

    def __len__(self) -> int:
        return len(self._blocks)

    async def get(self, number: int) -> bytes:
        """Return a block."""
        return self._blocks[number]

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


class StreamedBlocks:
    """The blocks of a dataset that makes them when they are asked for."""

    def __init__(self, dataset: StreamedDataset, header: Header) -> None:
        self._dataset = dataset
        self._header = header
        # One thread: making a block uses what was made for the one before.
        self._thread = ThreadPoolExecutor(1, "dataset")
        self._made: OrderedDict[int, Future[bytes]] = OrderedDict()
        """The block used last is at the end."""

    def __len__(self) -> int:
        return len(self._dataset.starts)

    async def get(self, number: int) -> bytes:
        """Return a block. Raises DatasetError if it cannot be made."""
        for near in range(number, min(number + 1 + AHEAD, len(self))):
            if near not in self._made:
                self._made[near] = self._thread.submit(self._make, near)
        self._made.move_to_end(number)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        return await asyncio.wrap_future(self._made[number])

    def close(self) -> None:
        """Stop making blocks."""
        self._thread.shutdown(cancel_futures=True)
        self._dataset.close()

    def _make(self, number: int) -> bytes:
        dataset = self._dataset
        return _encoded(dataset, self._header, number, dataset.starts, dataset.block(number))


def blocks_of(
    dataset: BuiltDataset | StreamedDataset, header: Header
) -> HeldBlocks | StreamedBlocks:
    """Return the blocks of a dataset; `header` are the first fields of the messages."""
    if isinstance(dataset, BuiltDataset):
        return HeldBlocks(dataset, header)
    return StreamedBlocks(dataset, header)


def _encoded(
    dataset: BuiltDataset | StreamedDataset,
    header: Header,
    number: int,
    starts: NDArray[np.uint32],
    entries: tuple[Conversation, ...],
) -> bytes:
    return encode(
        DatasetBlock(
            *header,
            block=number,
            block_count=len(starts),
            entry_count=dataset.entry_count,
            warmup_entries=dataset.warmup_entries,
            first_entry=int(starts[number]),
            conversations=entries,
            starts=starts.astype("<u4").tobytes() if number == 0 else b"",
            is_streamed=isinstance(dataset, StreamedDataset),
        )
    )
