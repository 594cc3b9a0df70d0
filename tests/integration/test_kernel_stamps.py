"""Receive timestamps exist from the first response on."""

import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from aiperf_svc.adapters.inference import pool
from aiperf_svc.adapters.inference.pool import SO_TIMESTAMPNS, KernelStamps


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def has_stamp(listener: socket.socket) -> bool:
    """Return whether the first bytes of a new connection are stamped."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            server.send(b"x")
            ancillary = client.recvmsg(1, 64)[1]
    return any(kind == SO_TIMESTAMPNS for _, kind, _ in ancillary)


def test_first_bytes_are_stamped_after_each_start(listener: socket.socket) -> None:
    for _ in range(200):
        with closing(KernelStamps()) as stamps:
            assert stamps.has_started
            assert has_stamp(listener)


def test_unscheduled_process_checks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(KernelStamps()) as running:
        assert running.has_started
        seconds = count()
        monkeypatch.setattr(pool, "monotonic_ns", lambda: next(seconds) * 10**9)
        with closing(KernelStamps()) as stamps:
            assert stamps.has_started


def test_a_machine_without_loopback_is_measured_without_stamps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with closing(KernelStamps()) as stamps:
        assert not stamps.has_started
