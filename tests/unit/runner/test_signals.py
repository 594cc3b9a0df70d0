"""Ctrl-C and its relatives are counted while a run lasts, and are as before after it."""

import signal
from collections.abc import Iterator

import pytest

from aiperf_svc.runner.signals import SIGNALS, Interrupts


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
async def test_every_signal_that_asks_for_a_stop_is_counted() -> None:
    with Interrupts() as interrupts:
        for number in SIGNALS:
            signal.raise_signal(number)
        await interrupts.reached(len(SIGNALS))
    assert interrupts.count == len(SIGNALS)


@pytest.mark.usefixtures("handlers")
async def test_what_a_signal_did_before_it_does_again_after_the_run() -> None:
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
