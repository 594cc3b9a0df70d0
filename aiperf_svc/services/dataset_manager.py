"""Dataset manager: builds the prompts once and serves them in blocks."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from aiperf_svc.adapters.datasets.builder import build_dataset
from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.adapters.storage.atomic_files import write_atomically
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.streamed import StreamedDataset
from aiperf_svc.core.datasets.tree_dataset import TreeDataset
from aiperf_svc.core.endpoints.forced_length import Finding, ForcedLength, may_force_length
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.dataset import (
    Conversation,
    DatasetBlock,
    DatasetBlockRequested,
    DatasetShape,
    DatasetShapeRequested,
    ForcedLengthAsked,
    ForcedLengthDecided,
)
from aiperf_svc.protocol.messages.reports import ForcedLengthReport
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, mono_ns
from aiperf_svc.services.context import RunContext

AHEAD = 16
"""Number of blocks that are created before they are requested."""
KEPT = 64
"""Number of cached blocks of a streamed dataset, of 256 KiB each."""

Header = tuple[str, str, int]


class HeldBlocks:
    """All blocks of an in-memory dataset, as encoded messages."""

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
        return self._blocks[number]

    def close(self) -> None:
        """Do nothing: nothing is running."""


class StreamedBlocks:
    """The blocks of a streamed dataset. A thread creates them on request, and some in advance,
    because workers request consecutive blocks."""

    def __init__(self, dataset: StreamedDataset | TreeDataset, header: Header) -> None:
        self._dataset = dataset
        self._header = header
        # One thread, because each block depends on the previous one.
        self._thread = ThreadPoolExecutor(1, "dataset")
        self._made: OrderedDict[int, Future[bytes]] = OrderedDict()
        """Cached blocks; the most recently used one is last."""

    def __len__(self) -> int:
        return len(self._dataset.starts)

    async def get(self, number: int) -> bytes:
        """Return a block. Raises DatasetError if it cannot be created."""
        for near in range(number, min(number + 1 + AHEAD, len(self))):
            if near not in self._made:
                self._made[near] = self._thread.submit(self._make, near)
        self._made.move_to_end(number)
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        return await asyncio.wrap_future(self._made[number])

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._dataset.close()

    def _make(self, number: int) -> bytes:
        dataset = self._dataset
        return _encoded(dataset, self._header, number, dataset.starts, dataset.block(number))


def blocks_of(
    dataset: BuiltDataset | StreamedDataset | TreeDataset, header: Header
) -> HeldBlocks | StreamedBlocks:
    """Return the blocks of a dataset; `header` contains the first fields of the messages."""
    if isinstance(dataset, BuiltDataset):
        return HeldBlocks(dataset, header)
    return StreamedBlocks(dataset, header)


def _encoded(
    dataset: BuiltDataset | StreamedDataset | TreeDataset,
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
            is_streamed=not isinstance(dataset, BuiltDataset),
        )
    )


class DatasetManager(BaseService):
    """Serves blocks on request as soon as the dataset is built."""

    service = Service.DATASET_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._shape: DatasetShape | None = None
        self._ready = asyncio.Event()
        self._blocks: HeldBlocks | StreamedBlocks | None = None
        self._forced_length = ForcedLength(is_used=False)
        self._socket = bus.connect(zmq.REP, Port.DATASET_BACK)
        self.work = {RunState.CONFIGURING: self._build}

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._serve()]

    async def _build(self) -> None:
        built = await build_dataset(self.context.inference, progress=self._set_progress)
        # Workers request only blocks, so the entries are not kept.
        self._blocks = blocks_of(built, self.header)
        self._shape = DatasetShape(
            *self.header,
            entry_count=built.entry_count,
            warmup_entries=built.warmup_entries,
            turns=built.turns,
            due_ns=built.due_ns,
            streams=built.streams,
            first_turns=built.first_turns if isinstance(built, TreeDataset) else b"",
        )
        is_forced = may_force_length(self.context.inference) and built.asks_lengths
        self._forced_length = ForcedLength(is_used=is_forced)
        self.dataset = built.report
        if isinstance(built, BuiltDataset):
            self._write_inputs(built)
        else:
            self.log.info("inputs.json is not written: the requests are made during the load")
        self.progress_text = ""
        self._ready.set()

    async def close(self) -> None:
        await super().close()
        if self._blocks is not None:
            self._blocks.close()

    def _write_inputs(self, built: BuiltDataset) -> None:
        """Write inputs.json if this process can reach the folder of the results."""

        def write(part: Path) -> None:
            with part.open("wb") as file:
                file.writelines(built.inputs_json())

        try:
            write_atomically(self.context.artifacts / "inputs.json", write)
        except EnvironmentProblem as error:
            self.log.warning("%s", error)

    def _set_progress(self, text: str) -> None:
        self.progress_text = text
        self.beat()

    async def _serve(self) -> None:
        await self._ready.wait()
        await receive_each(self._socket, self._response)

    async def _response(self, message: AnyMessage, _frame: bytes) -> None:
        assert self._shape is not None
        assert self._blocks is not None
        match message:
            case DatasetBlockRequested(block=number) if 0 <= number < len(self._blocks):
                await self._socket.send(await self._block(number))
            case DatasetShapeRequested():
                await self._socket.send(encode(self._shape))
            case ForcedLengthAsked():
                await self._socket.send(encode(self._decide_forced_length(message)))
            case _:
                # A REP socket must reply; an empty block means that the block does not exist.
                self.log.warning("no response for %s", message)
                await self._socket.send(b"")

    async def _block(self, number: int) -> bytes:
        """Return a block; empty if it cannot be created, which ends the run."""
        assert self._blocks is not None
        try:
            return await self._blocks.get(number)
        except AiperfError as error:
            self.fail(str(error), error.exit_code)
            return b""

    def _decide_forced_length(self, request: ForcedLengthAsked) -> ForcedLengthDecided:
        forced = self._forced_length
        if request.finding:
            forced.handle_finding(Finding(request.finding), request.said)
            assert forced.finding is not None
            assert self.dataset is not None
            before = self.dataset.forced_output_length
            requests = request.requests + (before.requests if before else 0)
            found = ForcedLengthReport(forced.finding, forced.said, requests)
            self.dataset = msgspec.structs.replace(self.dataset, forced_output_length=found)
            self.beat()
        return ForcedLengthDecided(*self.header, decision=forced.decide(request.sender, mono_ns()))
