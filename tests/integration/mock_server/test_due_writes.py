"""Compiled writes equal interpreted ones in bytes, order, times and counters."""

import contextlib
import json
import random
import socket
from typing import Any

import pytest

from aiperf_svc.mock_server import quick_serving, sender
from aiperf_svc.mock_server.accounts import Account
from aiperf_svc.mock_server.connections import Connection, Connections
from aiperf_svc.mock_server.delays import parse_delay
from aiperf_svc.mock_server.quick_serving import InterpretedDueWrites
from aiperf_svc.mock_server.replies import Ending, Reply
from aiperf_svc.mock_server.sender import Sender
from tests.support.bare_client import loopback_pair, received

pytestmark = pytest.mark.skipif(
    quick_serving.compiled is None,  # type: ignore[attr-defined]
    reason="the steps are not compiled: `make`",
)


class Unwatched:
    """Replaces an epoll set, which would confuse the copies of one connection."""

    def register(self, fd: int, events: int) -> None:
        """Do nothing."""


class Simulation:
    """A sender whose connections are all copies of one, so that its client sees the order of their
    writes. The test advances its clock."""

    def __init__(self, sock: socket.socket, *, ttft: str, itl: str, row_limit: int | None) -> None:
        self.sock = sock
        self.now_ns = 10**15
        self.account = Account(row_limit=row_limit)
        self.connections = Connections(self.account, keepalive_ns=0)
        self.connections.epoll.close()
        self.connections.epoll = Unwatched()  # type: ignore[assignment]
        self.sender = Sender(
            self.connections,
            self.account,
            ttft=parse_delay(ttft),
            itl=parse_delay(itl),
            rng=random.Random(7),
            is_translated=False,
            slots=0,
            on_free=lambda connection: None,
        )
        self.begun = 0

    def open_ones(self) -> list[Connection]:
        return [each for each in self.connections.table if each is not None]

    def begin(self, rng: random.Random) -> None:
        """Start a reply of several writes on its own connection."""
        copy = self.sock.dup()
        copy.setblocking(False)
        self.connections.open(copy)
        connection = self.connections.table[copy.fileno()]
        assert connection is not None
        writes = [b"%d.%d " % (self.begun, i) for i in range(rng.randint(1, 12))]
        early = 1 if len(writes) > 1 and rng.random() < 0.5 else 0
        endings = (Ending.KEEP, Ending.KEEP, Ending.CLOSE, Ending.CUT, Ending.HANG)
        reply = Reply(
            status=rng.choice((200, 200, 500)), writes=writes, early=early, delay_tokens=0,
            ending=rng.choice(endings),
        )  # fmt: skip
        self.begun += 1
        self.now_ns += 1  # replies start at different times
        self.sender.begin(connection, reply, b"id-%d" % self.begun, 100)

    def leave(self, rng: random.Random) -> None:
        """Close a random client, whose next write may be scheduled. Its descriptor becomes free."""
        connections = self.open_ones()
        if connections:
            self.connections.drop(rng.choice(connections))

    def close(self) -> None:
        for connection in self.open_ones():
            self.connections.drop(connection)


def simulate(
    monkeypatch: pytest.MonkeyPatch, due_writes: type[Any], seed: int, **settings: Any
) -> tuple[bytes, list[int], dict[str, int], list[Any]]:
    """Simulate some seconds. Return the written bytes in order, planned times, and counters."""
    rng = random.Random(seed)
    monkeypatch.setattr(sender, "DueWrites", due_writes)
    with (
        loopback_pair() as (server, client),
        contextlib.closing(Simulation(server, **settings)) as sim,
    ):
        monkeypatch.setattr(sender, "_monotonic_ns", lambda: sim.now_ns)
        due = []
        for _ in range(200):
            action = rng.random()
            if action < 0.25:
                sim.begin(rng)
            elif action < 0.29:
                sim.leave(rng)
            elif action < 0.31:
                sim.sender.shift(rng.randint(1, 5_000_000))
            else:
                sim.now_ns += rng.randint(0, 3_000_000)
                sim.sender.send_due()
            due.append(sim.sender.next_due_ns())
        rows = sim.account.rows
        records = [] if rows is None else [json.loads(row) for row in rows.dumps(0)]
        for row in records:
            times = row["chunk_wall_ns"]
            assert times == sorted(times)
            row["chunk_wall_ns"] = len(times)
            row["has_ended"] = row.pop("end_wall_ns") is not None
            row["has_head"] = row.pop("head_wall_ns") is not None
            row.pop("connection")
        counters = sim.account.counters()
        return received(client, counters["bytes_out"]), due, counters, records


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("row_limit", [None, 300, 40])
@pytest.mark.parametrize(
    ("ttft", "itl"), [("0", "0"), ("0", "1ms"), ("2ms", "1ms"), ("1ms", "uniform:0ms,2ms")]
)
def test_writes_are_the_same_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, row_limit: int | None, ttft: str, itl: str
) -> None:
    settings: dict[str, Any] = {"ttft": ttft, "itl": itl, "row_limit": row_limit}
    expected = simulate(monkeypatch, InterpretedDueWrites, seed, **settings)
    assert expected[2]["writes"] > 30
    assert simulate(monkeypatch, quick_serving.DueWrites, seed, **settings) == expected
