"""Tokens are sent as scheduled, once each, and counted."""

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from aiperf_svc.mock_server import quick_serving, sender
from aiperf_svc.mock_server.accounts import Account
from aiperf_svc.mock_server.connections import Connection, Connections
from aiperf_svc.mock_server.delays import parse_delay
from aiperf_svc.mock_server.replies import Ending, Reply
from aiperf_svc.mock_server.sender import Sender

ITL_NS = 1_000_000


class Stage:
    """A sender with the clients of its connections."""

    def __init__(self, limit: int, slots: int = 0) -> None:
        self.account = Account(row_limit=limit)
        self.connections = Connections(self.account, keepalive_ns=0)
        self.sender = Sender(
            self.connections,
            self.account,
            ttft=parse_delay("0"),
            itl=parse_delay(f"{ITL_NS}ns"),
            rng=random.Random(1),
            is_translated=False,
            slots=slots,
            on_free=lambda connection: None,
        )
        self.clients: list[socket.socket] = []

    def ask(self, reply: Reply) -> Connection:
        server, client = socket.socketpair()
        server.setblocking(False)
        self.clients.append(client)
        self.connections.open(server)
        connection = self.connections.table[server.fileno()]
        assert connection is not None
        self.sender.begin(connection, reply, b"id-%d" % len(self.clients), 100)
        return connection

    def send_due(self) -> None:
        """Send what is due now, like the server's loop."""
        due_ns = self.sender.next_due_ns()
        if due_ns:
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        self.sender.send_due()

    def close(self) -> None:
        for connection in self.connections.table:
            if connection is not None:
                self.connections.close(connection)
        for client in self.clients:
            client.close()
        self.connections.epoll.close()


DUE_WRITES = [
    pytest.param(quick_serving.InterpretedDueWrites, id="interpreted"),
    pytest.param(
        quick_serving.DueWrites,
        id="compiled",
        marks=pytest.mark.skipif(
            quick_serving.compiled is None,  # type: ignore[attr-defined]
            reason="the steps are not compiled: `make`",
        ),
    ),
]


@pytest.fixture(params=DUE_WRITES)
def limit_to_stage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Stage]]:
    """Return a function that makes a stage with this row limit and number of slots."""
    monkeypatch.setattr(sender, "DueWrites", request.param)
    with contextlib.ExitStack() as stack:
        yield lambda limit, slots=0: stack.enter_context(contextlib.closing(Stage(limit, slots)))


@pytest.fixture
def stage(limit_to_stage: Callable[..., Stage]) -> Stage:
    return limit_to_stage(1_000)


def reply_of(*writes: bytes) -> Reply:
    return Reply(status=200, writes=list(writes), early=0, delay_tokens=0, ending=Ending.KEEP)


def received(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += client.recv(65_536)
    return data


def test_every_token_is_sent_once_in_order(stage: Stage) -> None:
    replies = [reply_of(*(b"%d.%d " % (n, i) for i in range(2 + 3 * n))) for n in range(6)]
    for reply in replies:
        stage.ask(reply)
    while stage.sender.next_due_ns():
        stage.send_due()
    for reply, client in zip(replies, stage.clients, strict=True):
        whole = b"".join(reply.writes)
        assert received(client, len(whole)) == whole
    account, writes = stage.account, sum(reply.count for reply in replies)
    assert (account.writes, account.completed, account.in_flight) == (writes, 6, 0)
    assert account.bytes_out == sum(len(data) for reply in replies for data in reply.writes)
    assert account.rows is not None
    rows = [json.loads(row) for row in account.rows.dumps(0)]
    assert [len(row["chunk_wall_ns"]) for row in rows] == [reply.count for reply in replies]
    for row in rows:
        times = row["chunk_wall_ns"]
        assert times == sorted(times)
        assert row["head_wall_ns"] == times[0]
        assert row["end_wall_ns"] == times[-1]


def test_gaps_follow_the_plan(stage: Stage) -> None:
    connection = stage.ask(reply_of(*[b"x"] * 10))
    first_ns, dues = connection.due_ns, []
    while stage.sender.next_due_ns():
        dues.append(stage.sender.next_due_ns())
        time.sleep(0.0003)
        stage.send_due()
    late = [due - first_ns - ITL_NS * n for n, due in enumerate(dues)]
    assert all(b - a >= 0 for a, b in pairwise([0, *late]))
    assert late[0] == 0


def test_a_client_that_reads_slowly_gets_every_byte(stage: Stage) -> None:
    token = bytes(range(256)) * 16
    reply = reply_of(*[token] * 12)
    connection = stage.ask(reply)
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_608)  # type: ignore[arg-type]
    whole, got, stalls = b"".join(reply.writes), b"", 0
    while len(got) < len(whole):
        while stage.sender.next_due_ns():
            stage.send_due()
        stalls += connection.out is not None
        got += stage.clients[0].recv(1_000)
        if connection.out is not None:
            stage.sender.flush(connection)
    assert got == whole
    assert stalls > 0
    assert stage.account.bytes_out == len(whole)
    assert stage.account.completed == 1


def test_a_client_that_leaves_ends_as_disconnected(stage: Stage) -> None:
    stage.ask(reply_of(*[b"x"] * 10))
    stage.ask(reply_of(*[b"y"] * 10))
    stage.clients[0].close()
    while stage.sender.next_due_ns():
        stage.send_due()
    account = stage.account
    assert (account.completed, account.disconnected, account.in_flight) == (1, 1, 0)


def test_chunks_beyond_the_limit_are_counted(limit_to_stage: Callable[..., Stage]) -> None:
    stage = limit_to_stage(5)
    stage.ask(reply_of(*[b"x"] * 9))
    while stage.sender.next_due_ns():
        stage.send_due()
    assert stage.account.rows is not None
    assert stage.account.rows.chunks_dropped == 4


def ask_of_two_slots(limit_to_stage: Callable[..., Stage], count: int) -> tuple[Stage, list[int]]:
    """Return a stage with two slots, and descriptors in the order of their requests."""
    stage = limit_to_stage(100, 2)
    connections = [stage.ask(reply_of(*[b"x"] * 3)) for _ in range(count)]
    return stage, [connection.fd for connection in connections]


def planned_ends(stage: Stage, fds: list[int]) -> list[int]:
    """Return the times at which the last writes were due, in the order of requests."""
    requested = [stage.connections.table[fd] for fd in fds]
    while stage.sender.next_due_ns():
        stage.send_due()
    return [connection.due_ns for connection in requested if connection is not None]


def test_slots_serve_in_order_of_arrival(limit_to_stage: Callable[..., Stage]) -> None:
    stage, fds = ask_of_two_slots(limit_to_stage, 6)
    assert (stage.account.in_flight, stage.account.waited) == (6, 4)
    ends = planned_ends(stage, fds)
    assert ends == sorted(ends)
    # Two gaps per response, whenever the writes were made.
    for one, next_one in zip(ends, ends[2:], strict=False):
        assert next_one - one >= 2 * ITL_NS
    assert stage.account.completed == 6


def test_response_end_starts_the_next_response(
    limit_to_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**15
    monkeypatch.setattr(sender, "_monotonic_ns", lambda: now_ns)
    stage, fds = ask_of_two_slots(limit_to_stage, 5)
    asked_ns = now_ns
    connections = [stage.connections.table[fd] for fd in fds]
    while due_ns := stage.sender.next_due_ns():
        now_ns = due_ns + ITL_NS // 4  # each pass is equally late
        stage.sender.send_due()
    ends = [connection.due_ns - asked_ns for connection in connections if connection is not None]
    assert ends == [2 * ITL_NS, 2 * ITL_NS, 4 * ITL_NS, 4 * ITL_NS, 6 * ITL_NS]


def test_a_slot_idles_until_a_request_comes(
    limit_to_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**15
    monkeypatch.setattr(sender, "_monotonic_ns", lambda: now_ns)
    stage, _ = ask_of_two_slots(limit_to_stage, 2)
    while due_ns := stage.sender.next_due_ns():
        now_ns = due_ns
        stage.sender.send_due()
    now_ns += 50 * ITL_NS
    later = stage.ask(reply_of(*[b"x"] * 3))
    assert stage.sender.next_due_ns() == later.due_ns == now_ns
    assert stage.account.waited == 0


@pytest.mark.parametrize("gone", [0, 3])
def test_disconnected_client_frees_slot_and_queue_place(
    limit_to_stage: Callable[..., Stage], gone: int
) -> None:
    stage, fds = ask_of_two_slots(limit_to_stage, 5)
    left = stage.connections.table[fds[gone]]
    assert left is not None
    stage.connections.drop(left)
    assert len(planned_ends(stage, [fd for fd in fds if fd != left.fd])) == 4
    account = stage.account
    assert (account.completed, account.disconnected, account.in_flight) == (4, 1, 0)


def test_an_error_needs_no_slot(limit_to_stage: Callable[..., Stage]) -> None:
    stage, fds = ask_of_two_slots(limit_to_stage, 3)
    error = Reply(status=500, writes=[b"no"], early=0, delay_tokens=0, ending=Ending.KEEP)
    stage.ask(error)
    assert (stage.account.errors, stage.account.waited) == (1, 1)
    planned_ends(stage, fds)
    assert (stage.account.completed, stage.account.in_flight) == (3, 0)
