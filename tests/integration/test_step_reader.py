"""The record processor of a rank benchmark keeps working while it reads the output of a step."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.messaging.bus import Bus, decode
from aiperf_svc.protocol.messages.steps import StepRecord
from aiperf_svc.services.ranks.step_reader import StepReader
from aiperf_svc.services.ranks.step_results import StepResults
from aiperf_svc.workloads.command import WORKLOAD
from aiperf_svc.workloads.steps import Output, Reading, Step
from tests.support import fake_steps

WAIT_S = 30.0


class Records:
    """A socket that records sent messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, frame: bytes) -> None:
        self.messages.append(decode(frame))


async def test_record_is_awaited_while_output_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(_self: object, _config: object, _step: Step, _outputs: Sequence[Output]) -> Reading:
        begun.set()
        assert may_end.wait(WAIT_S)
        return Reading(values={"m": 1.0})

    monkeypatch.setattr(type(WORKLOAD), "read", read)
    context = fake_steps.context_of("record-processor-0", tmp_path)
    bus = Bus(context.addresses)
    reader = StepReader(context, bus)
    reader._records = records = cast(Any, Records())
    results = StepResults(context, bus)
    handled = asyncio.create_task(reader._handle_output(fake_steps.last_piece(), b""))
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    results._last_arrival_mono_ns = 0
    results.on_heartbeat(reader._heartbeat())
    assert results._last_arrival_mono_ns > 0
    may_end.set()
    await handled
    results._last_arrival_mono_ns = 0
    results.on_heartbeat(reader._heartbeat())
    assert results._last_arrival_mono_ns == 0
    await bus.close(linger_ms=0)
    _, record = records.messages
    assert isinstance(record, StepRecord)
    assert record.problem == ""
    assert msgspec.json.decode(record.reading, type=Reading).values == {"m": 1.0}
