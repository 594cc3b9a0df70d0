"""Dataset manager: builds the prompts once and serves them in blocks."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.datasets.builder import build_dataset
from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.adapters.storage.atomic_files import write_atomically
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.endpoints.forced_length import Finding, ForcedLength, may_force_length
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.dataset import (
    DatasetBlockRequested,
    DatasetShape,
    DatasetShapeRequested,
    ForcedLengthAsked,
    ForcedLengthDecided,
)
from aiperf_svc.protocol.messages.reports import DatasetReport, ForcedLengthReport
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, mono_ns
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.dataset_blocks import HeldBlocks, StreamedBlocks, blocks_of


class DatasetManager(BaseService):
    """Serves requests for blocks as soon as the dataset is built."""

    service = Service.DATASET_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._shape: DatasetShape | None = None
        self._ready = asyncio.Event()
        self._blocks: HeldBlocks | StreamedBlocks | None = None
        self._report: DatasetReport | None = None
        self._progress = ""
        self._forced_length = ForcedLength(is_used=False)
        self._socket = bus.connect(zmq.REP, Port.DATASET_BACK)
        self.work = {RunState.CONFIGURING: self._build}

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._serve()]

    def dataset(self) -> DatasetReport | None:
        return self._report

    def progress_text(self) -> str:
        return self._progress

    async def _build(self) -> None:
        built = await build_dataset(self.context.inference, progress=self._take_progress)
        # The entries themselves go: the blocks are all that is asked for.
        self._blocks = blocks_of(built, self.header)
        self._shape = DatasetShape(
            *self.header,
            entry_count=built.entry_count,
            warmup_entries=built.warmup_entries,
            turns=built.turns,
            due_ns=built.due_ns,
        )
        is_forced = may_force_length(self.context.inference) and built.asks_lengths
        self._forced_length = ForcedLength(is_used=is_forced)
        self._report = built.report
        if isinstance(built, BuiltDataset):
            self._write_inputs(built)
        else:
            self.log.info("inputs.json is left out: the requests are made during the load")
        self._progress = ""
        self._ready.set()

    async def close(self) -> None:
        await super().close()
        if self._blocks is not None:
            self._blocks.close()

    def _write_inputs(self, built: BuiltDataset) -> None:
        """inputs.json, when this process can reach the folder of the results."""

        def write(part: Path) -> None:
            with part.open("wb") as file:
                file.writelines(built.inputs_json())

        try:
            write_atomically(self.context.artifacts / "inputs.json", write)
        except EnvironmentProblem as error:
            self.log.warning("%s", error)

    def _take_progress(self, text: str) -> None:
        self._progress = text
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
                # A REP socket must reply; an empty block says that there is none.
                self.log.warning("no response for %s", message)
                await self._socket.send(b"")

    async def _block(self, number: int) -> bytes:
        """Return a block; empty if it cannot be made, which ends the run."""
        assert self._blocks is not None
        try:
            return await self._blocks.get(number)
        except AiperfError as error:
            self.fail(str(error), error.exit_code)
            return b""

    def _decide_forced_length(self, asked: ForcedLengthAsked) -> ForcedLengthDecided:
        forced = self._forced_length
        if asked.finding:
            forced.handle_finding(Finding(asked.finding), asked.said)
            assert forced.finding is not None
            assert self._report is not None
            before = self._report.forced_output_length
            requests = asked.requests + (before.requests if before else 0)
            found = ForcedLengthReport(forced.finding, forced.said, requests)
            self._report = msgspec.structs.replace(self._report, forced_output_length=found)
            self.beat()
        return ForcedLengthDecided(*self.header, decision=forced.decide(asked.sender, mono_ns()))
