"""Under load, urgent sockets are read before the others."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from time import time_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference import response_reader
from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.connection import Connection
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.adapters.inference.response_reader import READS_AT_ONCE
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import Flag
from tests.support.small_configs import small_config

STREAMS = 3 * READS_AT_ONCE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"
WAIT_S = 10


class Table:
    """A client and the other ends of its connections in one thread, driven by calls."""

    def __init__(self, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=STREAMS + 1))
        port = listener.getsockname()[1]
        self.target = resolve_target(small_config(f"http://127.0.0.1:{port}"))
        self.ends: list[tuple[int, int]] = []
        self.client = InferenceClient(
            self.target,
            on_end=lambda request, outcome: self.ends.append((request.index, outcome)),
            on_timer=lambda now: None,
            on_batch=lambda *batch: None,
            poll_every_ns=10**6,
        )
        stack.callback(self.client.close)
        self.servers: list[socket.socket] = []
        for index in range(STREAMS + 1):
            self._send(index)
            self.run()  # connected, and written
            server = stack.enter_context(listener.accept()[0])
            server.settimeout(WAIT_S)
            server.recv(65_536)
            self.servers.append(server)

    def _send(self, index: int) -> None:
        turn = PreparedTurn(*self.target.request(b"{}"), 0, 0)
        self.client.send(Request(turn, b"id", 1, index, time_ns(), int(Flag.LAST_TURN)))

    def run(self) -> None:
        """Process one wake-up if something is readable."""
        assert select.select([self.client.fd], [], [], WAIT_S)[0]
        self.client.run_ready()


def index_of(conn: Connection) -> int:
    """Return the index of the connection's request."""
    assert conn.request is not None
    return conn.request.index


@pytest.fixture
def table() -> Iterator[Table]:
    with ExitStack() as stack:
        yield Table(stack)


def test_first_token_does_not_wait_for_all_streams(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(STREAMS):
        for part in (HEAD, CHUNK, CHUNK, CHUNK):
            table.servers[index].sendall(part)
            table.run()
    order: list[int] = []
    late = STREAMS
    take_ready = response_reader.take_ready  # type: ignore[attr-defined]

    def note(
        events: list[tuple[int, int]], at: int, stop: int, by_fd: dict[int, Connection], *rest: Any
    ) -> Any:
        order.extend(index_of(by_fd[fd]) for fd, _ in events[at:stop] if fd in by_fd)
        if len(order) == 2 * READS_AT_ONCE:
            table.servers[late].sendall(HEAD + CHUNK)
        return take_ready(events, at, stop, by_fd, *rest)

    monkeypatch.setattr(response_reader, "take_ready", note)
    for index in range(STREAMS):
        table.servers[index].sendall(CHUNK)
    table.run()
    assert sorted(order) == list(range(STREAMS + 1))
    assert order.index(late) == 2 * READS_AT_ONCE


def test_arrivals_during_a_pause_are_uncertain(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, in_its_middle = table.servers[:2]
    begun.sendall(HEAD)
    table.run()
    for part in (HEAD, CHUNK, CHUNK, CHUNK, CHUNK):
        in_its_middle.sendall(part)
        table.run()
    read: list[tuple[int, int]] = []
    take_ready = response_reader.take_ready  # type: ignore[attr-defined]

    def note(
        events: list[tuple[int, int]],
        at: int,
        stop: int,
        by_fd: dict[int, Connection],
        polled_wall_ns: int,
        *rest: Any,
    ) -> Any:
        read.extend(
            (index_of(by_fd[fd]), polled_wall_ns) for fd, _ in events[at:stop] if fd in by_fd
        )
        return take_ready(events, at, stop, by_fd, polled_wall_ns, *rest)

    monkeypatch.setattr(response_reader, "take_ready", note)
    table.client.hold_back()
    held_wall_ns = time_ns()
    begun.sendall(CHUNK)
    in_its_middle.sendall(CHUNK)
    # The start of a response is read nevertheless.
    table.servers[2].sendall(HEAD + CHUNK)
    table.run()
    assert [index for index, _ in read] == [2]
    table.client.resume()
    read.clear()
    table.run()
    assert sorted(index for index, _ in read) == [0, 1]
    assert all(polled_wall_ns < held_wall_ns for _, polled_wall_ns in read)
    assert table.client.held_back_ns > 0


def test_connection_alternates_long_and_short_responses(table: Table) -> None:
    server = table.servers[0]
    for number in range(1, 4):
        for part in (HEAD, *[CHUNK] * 6, END):
            server.sendall(part)
            table.run()
        assert table.ends == [(0, Outcome.COMPLETED)] * (2 * number - 1)
        table._send(0)
        server.recv(65_536)
        server.sendall(HEAD + CHUNK + END)
        table.run()
        assert len(table.ends) == 2 * number
        table._send(0)
        server.recv(65_536)
    assert len(table.client._pool.by_fd) == STREAMS + 1


def test_split_head_is_independent_of_earlier_responses(table: Table) -> None:
    server = table.servers[0]
    left_by_a_long_read = [HEAD + b"400\r\n", bytes(0x400) + b"\r\n" + END]
    in_parts = [HEAD[at : at + 10] for at in range(0, len(HEAD), 10)]
    for number, parts in enumerate((left_by_a_long_read, [*in_parts, CHUNK + END]), 1):
        for part in parts:
            server.sendall(part)
            table.run()
        assert table.ends == [(0, Outcome.COMPLETED)] * number
        table._send(0)
        server.recv(65_536)
