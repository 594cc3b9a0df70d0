"""Turns of a conversation stay on one of several targets, and errors count for the right one."""

import socket
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services import target_lookup
from aiperf_svc.services.sessions import Session
from tests.support.in_one_loop import config, results_of
from tests.support.small_configs import small_config


class NotingTarget:
    """The client of one target."""

    def __init__(self) -> None:
        self.in_flight = self.sent = 0
        self.addresses = SimpleNamespace(has_up=True)

    def send(self, _: Request) -> None:
        self.sent += 1


def least_in_flight() -> tuple[SeveralTargets, list[NotingTarget]]:
    target = resolve_target(
        small_config("http://127.0.0.1:1", load={"concurrency": 2, "requests": 1})
    )
    made = SeveralTargets(
        [target, target],
        shift=0,
        strategy="least_in_flight",
        on_end=lambda *_: None,
        on_timer=lambda _: None,
        on_batch=lambda *_: None,
        poll_every_ns=1,
    )
    made.close()
    parts = [NotingTarget(), NotingTarget()]
    made.parts = parts  # type: ignore[assignment]
    return made, parts


def conversation(index: int) -> Session:
    entry: Any = None
    return Session(index, entry, 3, 0, 0)


def turn(number: int, session: Session) -> Request:
    flags = int(Flag.LAST_TURN) if number == session.turns - 1 else 0
    prepared = PreparedTurn(b"", b"", 0, number)
    return Request(prepared, b"", Phase.PROFILING, session.index, 0, flags, session)


@pytest.mark.parametrize("index", [0, 1])
def test_conversation_stays_at_its_least_busy_target(index: int) -> None:
    several, (first, second) = least_in_flight()
    session = conversation(index)
    first.in_flight = 5
    for number in range(3):
        several.send(turn(number, session))
        second.in_flight += 10
    assert (first.sent, second.sent) == (0, 3)


def test_stopped_conversations_use_no_memory() -> None:
    several, _ = least_in_flight()
    several.send(turn(0, conversation(1)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for index in range(5_000):
            several.send(turn(0, conversation(index)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


async def test_errors_are_counted_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The targets were up when the worker probed them.
    monkeypatch.setattr(target_lookup, "refuses", lambda _target: False)
    with socket.socket() as first, socket.socket() as second:
        urls = []
        for held in (first, second):  # Nothing listens on these ports now.
            held.bind(("127.0.0.1", 0))
            urls.append(f"127.0.0.1:{held.getsockname()[1]}")
        settings = config(f"http://{urls[0]}", concurrency=2, requests=20)
        settings["endpoint"]["urls"] = [f"http://{urls[1]}"]
        summary = await results_of(settings, tmp_path)
    counts = {
        error["error_details"]["message"].partition(": ")[0]: error["count"]
        for error in summary["error_summary"]
    }
    assert counts == dict.fromkeys(urls, 10)
