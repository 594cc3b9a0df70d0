"""Ctrl-C and similar signals are counted during a run, and handled as before after it."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from aiperf_svc.runner.signals import SIGNALS, Interrupts, run


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
async def test_every_stop_signal_is_counted() -> None:
    with Interrupts() as interrupts:
        for number in SIGNALS:
            signal.raise_signal(number)
        await interrupts.reached(len(SIGNALS))
    assert interrupts.count == len(SIGNALS)


@pytest.mark.usefixtures("handlers")
async def test_signal_handlers_are_restored() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Interrupts():
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


@pytest.mark.usefixtures("handlers")
async def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        await interrupts.reached(1)
    assert interrupts.count == 1


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_in_a_callback_ends_work_afterwards(number: signal.Signals) -> None:
    complaints: list[dict[str, Any]] = []
    resolved = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        response = loop.create_future()

        def resolve() -> None:
            assert not response.done()
            signal.raise_signal(number)
            response.set_result(None)
            resolved.append(True)

        loop.call_soon(resolve)
        await response
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run(work())
    assert resolved
    assert complaints == []


@pytest.mark.usefixtures("handlers")
def test_signals_end_work_again_after_counting() -> None:
    async def work() -> None:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            await interrupts.reached(1)
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run(work())


@pytest.mark.usefixtures("handlers")
def test_finished_work_restores_handlers() -> None:
    async def work() -> int:
        return 7

    before = {number: signal.getsignal(number) for number in SIGNALS}
    assert run(work()) == 7
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


async def test_work_that_ends_first_returns_its_result() -> None:
    async def work() -> int:
        return 7

    assert await Interrupts().result_of(work()) == 7


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> int:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await Interrupts().result_of(work())


async def test_work_is_cancelled_at_its_interrupt_limit() -> None:
    interrupts, ended = Interrupts(), asyncio.Event()

    async def work() -> None:
        try:
            interrupts.add()
            await asyncio.Event().wait()
        finally:
            ended.set()

    await interrupts.result_of(work())
    assert ended.is_set()
    task = asyncio.create_task(work())
    assert not await interrupts.wait_for(task, before=2)
    assert task.cancelled()
