"""Sends replies, each write when it is due.

One pass makes at most one write per connection, so streams without delay take turns. Each due time
is computed from the previous due time, not from the send, so lateness does not accumulate.
`DueWrites` makes most writes of tokens within a stream itself.
"""

import random
import select
import socket
import struct
import time
from collections.abc import Callable

from aiperf_svc.mock_server.accounts import Account, RowOutcome
from aiperf_svc.mock_server.connections import Connection, Connections
from aiperf_svc.mock_server.delays import Delay
from aiperf_svc.mock_server.quick_serving import DueWrites, send
from aiperf_svc.mock_server.replies import Ending, Reply

_SENDS_PER_PASS = 512
"""Number of sends after which reading and accepting get their turn, even if more are due."""
_MIN_REPEAT_NS = 1_000_000
"""Gap between the writes of a reply that never ends, if tokens have no delay."""
_LINGER_RESET = struct.pack("ii", 1, 0)

_monotonic_ns = time.monotonic_ns


class Slots:
    """Slots of a server with a known capacity: it creates a fixed number of responses at the same
    time, and further requests wait in order of arrival.

    A response holds its slot from its start until its last token. So a server with `c` slots and a
    mean of `s` seconds per response serves at most `c / s` requests per second: it is an M/D/c
    queue for Poisson arrivals and fixed delays, and M/M/c for exponential delays.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # in order of arrival

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    def take(self, connection: Connection) -> bool:
        """Assign a slot to a connection's request; return False if it has to wait for one."""
        if len(self._holders) < self._count:
            self._holders.add(connection)
            return True
        self._waiting[connection] = None
        return False

    def leave(self, connection: Connection) -> Connection | None:
        """End a connection's request, whether it held a slot, waited or needed none. Return the
        connection that gets the slot."""
        if connection not in self._holders:
            self._waiting.pop(connection, None)
            return None
        self._holders.remove(connection)
        if not self._waiting:
            return None
        first = next(iter(self._waiting))
        del self._waiting[first]
        self._holders.add(first)
        return first


class Sender:
    """The replies in progress in one process. `on_free` is called with a connection that has
    buffered input after its reply has ended, `extra_ns` returns an addition to a time to first
    token.
    """

    def __init__(
        self,
        connections: Connections,
        account: Account,
        *,
        ttft: Delay,
        itl: Delay,
        rng: random.Random,
        is_translated: bool,
        slots: int,
        on_free: Callable[[Connection], None],
        extra_ns: Callable[[], int] = int,
    ) -> None:
        self._connections = connections
        self._account = account
        self._rows = account.rows
        self._on_free, self._extra_ns = on_free, extra_ns
        self._ttft_ns, self._draw_ttft = ttft.fixed_ns, ttft.sampler(rng)
        self._itl_ns, self._draw_itl = itl.fixed_ns, itl.sampler(rng)
        self.is_instant = self._ttft_ns == 0 and self._itl_ns == 0
        # Over TLS and HTTP/2, the written bytes differ from those that the kernel gets.
        itl_ns = -1 if self._itl_ns is None or is_translated else self._itl_ns
        self._due = DueWrites(connections.table, account, account.rows, itl_ns)
        self.next_due_ns = self._due.first_ns
        """Monotonic time of the next write; 0 if none is planned."""
        self._pass_ns = 0
        self._slots = Slots(slots) if slots else None
        if slots:
            connections.on_lost = lambda lost: self._leave(lost, _monotonic_ns())

    def shift(self, by_ns: int) -> None:
        """Postpone every planned write."""
        for connection in self._connections.table:
            if connection is not None:
                connection.due_ns += by_ns
        self._due.shift(by_ns)

    def begin(
        self, connection: Connection, reply: Reply, request_id: bytes | None, size: int
    ) -> None:
        """Count an inference request of `size` bytes and send the part of its reply that is due at
        once.
        """
        account, rows = self._account, self._rows
        account.requests += 1
        account.bytes_in += size
        if rows is not None:
            connection.row = rows.open(
                request_id, connection.number, reply.status, connection.arrival_wall_ns
            )
        account.in_flight += 1
        if account.in_flight > account.max_in_flight:
            account.max_in_flight = account.in_flight
        connection.is_counted = True
        connection.reply = reply
        whole = reply.whole
        if whole is not None and (self.is_instant or reply.status >= 400):
            # The whole response in one send: the common path in speed tests.
            if rows is not None:
                rows.sent(connection.row, True, True, True)
            connection.step = reply.count
            if self._send(connection, whole):
                self._finish(connection, reply)
            return
        if self._slots is None or not reply.count:
            self._start(connection, reply)
        else:
            connection.begun_ns = connection.due_ns = _monotonic_ns()
            if self._slots.take(connection):
                self._start_in_slot(connection, connection.begun_ns)
            else:
                account.waited += 1

    def begin_whole(self, connection: Connection, reply: Reply, size: int) -> None:
        """Start a plain reply that is sent at once, on a server without delays and rows."""
        assert reply.whole is not None
        self.whole_sent(connection, reply, size, send(connection.sock, reply.whole))

    def whole_sent(self, connection: Connection, reply: Reply, size: int, sent: int) -> None:
        """Complete `begin_whole` after `sent` bytes are sent (-1: the client is gone)."""
        account, whole = self._account, reply.whole
        assert whole is not None
        account.requests += 1
        account.bytes_in += size
        if account.in_flight >= account.max_in_flight:
            account.max_in_flight = account.in_flight + 1
        if sent < 0:
            account.disconnected += 1
            self._connections.drop(connection)
            return
        account.writes += 1
        account.bytes_out += sent
        if sent == len(whole):
            account.completed += 1
            return
        account.in_flight += 1
        connection.is_counted = True
        connection.reply, connection.step = reply, reply.count
        self._stall(connection, memoryview(whole)[sent:])

    def begin_uncounted(self, connection: Connection, reply: Reply) -> None:
        """Send a response at once that is not part of the account."""
        connection.is_counted = False
        connection.reply = reply
        connection.step = reply.count
        if self._send(connection, reply.writes[0]):
            self._finish(connection, reply)

    def _start(self, connection: Connection, reply: Reply) -> None:
        connection.step = 0
        connection.begun_ns = connection.due_ns = _monotonic_ns()
        if reply.count == 0:
            self._finish(connection, reply)
        elif reply.early:
            if self._write(connection, reply):
                self._continue(connection, reply)
        elif not (delay_ns := self._first_delay_ns(reply)):
            self._note_first_token(connection, 0)
            if self._write(connection, reply):
                self._continue(connection, reply)
        else:
            self._note_first_token(connection, delay_ns)
            self._plan(connection, delay_ns)

    def _start_in_slot(self, connection: Connection, start_ns: int) -> None:
        """Plan the first write of a reply that got a slot at this time, which may have passed: a
        late server does not serve less."""
        reply = connection.reply
        assert reply is not None
        connection.step = 0
        connection.due_ns = start_ns + self._first_delay_ns(reply)
        self._note_first_token(connection, 0)
        self._due.add(connection)

    def _leave(self, connection: Connection, end_ns: int) -> None:
        """Pass a connection's slot, if it has one, to the request that has waited longest."""
        assert self._slots is not None
        first = self._slots.leave(connection)
        if first is not None:
            self._start_in_slot(first, max(first.due_ns, end_ns))

    def _first_delay_ns(self, reply: Reply) -> int:
        """Return the time from the arrival to the first token, or to the only write of a
        non-streaming response."""
        delay_ns = self._draw_ttft() if self._ttft_ns is None else self._ttft_ns
        if extra_ns := self._extra_ns():
            self._account.delayed += 1
            delay_ns += extra_ns
        if not reply.delay_tokens:
            return delay_ns
        if self._itl_ns is not None:
            return delay_ns + reply.delay_tokens * self._itl_ns
        return delay_ns + sum(self._draw_itl() for _ in range(reply.delay_tokens))

    def _note_first_token(self, connection: Connection, delay_ns: int) -> None:
        """Count a first token that is due `delay_ns` after the previous due time."""
        served, reply = self._account.served, connection.reply
        if served is not None and reply is not None and reply.tokens:
            served.first_token(connection.due_ns + delay_ns - connection.begun_ns)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return self._slots.waiting if self._slots is not None else 0

    def _plan(self, connection: Connection, gap_ns: int) -> None:
        """Plan the next write `gap_ns` after the last one was due, but in a later pass."""
        connection.due_ns = max(connection.due_ns + gap_ns, self._pass_ns + 1)
        self._due.add(connection)

    def send_due(self) -> None:
        """Make every write that is due, at most one per connection."""
        next_write, pass_ns, left = self._due.next_write, _monotonic_ns(), _SENDS_PER_PASS
        self._pass_ns = pass_ns
        while (found := next_write(pass_ns, left)) is not None:
            connection, left, sent = found
            reply = connection.reply
            assert reply is not None
            if sent is not None:
                self._sent(connection, reply.writes[connection.step - 1], sent)
            elif self._write(connection, reply):
                self._continue(connection, reply)

    def _write(self, connection: Connection, reply: Reply) -> bool:
        """Make the next write of a reply. Return False if the connection is gone or the kernel did
        not accept all of it.
        """
        step = connection.step
        connection.step = step + 1
        if self._rows is not None:
            self._rows.sent(connection.row, step == 0, step >= reply.early, step + 1 == reply.count)
        return self._send(connection, reply.writes[step])

    def _send(self, connection: Connection, data: bytes) -> bool:
        return self._sent(connection, data, send(connection.sock, data))

    def _sent(self, connection: Connection, data: bytes, sent: int) -> bool:
        """Account for a send of `sent` bytes (-1: the client is gone). Return False if it was not
        complete.
        """
        if sent < 0:
            self._connections.drop(connection)
            return False
        if connection.is_counted:
            self._account.writes += 1
            self._account.bytes_out += sent
        if sent == len(data):
            return True
        self._stall(connection, memoryview(data)[sent:])
        return False

    def _stall(self, connection: Connection, rest: memoryview) -> None:
        """Wait for the client to receive what was sent."""
        connection.out = rest
        self._connections.epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def flush(self, connection: Connection) -> None:
        """Send more of a pending write; the reply continues when all of it is sent."""
        rest, reply = connection.out, connection.reply
        assert rest is not None
        assert reply is not None
        if self._rows is not None and connection.is_counted and connection.step == reply.count:
            self._rows.sent_rest(connection.row)
        sent = send(connection.sock, rest)
        if sent < 0:
            self._connections.drop(connection)
            return
        if connection.is_counted:
            self._account.bytes_out += sent
        if sent < len(rest):
            connection.out = rest[sent:]
            return
        connection.out = None
        self._connections.epoll.modify(connection.fd, select.EPOLLIN)
        self._continue(connection, reply)

    def _continue(self, connection: Connection, reply: Reply) -> None:
        """Plan the next write of a reply, or end it."""
        if connection.step >= reply.count:
            self._finish(connection, reply)
        elif connection.step == reply.early:
            delay_ns = self._first_delay_ns(reply)
            self._note_first_token(connection, delay_ns)
            self._plan(connection, delay_ns)
        else:
            self._plan(connection, self._draw_itl() if self._itl_ns is None else self._itl_ns)

    def _finish(self, connection: Connection, reply: Reply) -> None:
        """Carry out the action after the last write."""
        ending = reply.ending
        if ending is Ending.REPEAT:
            connection.step = reply.early
            self._plan(connection, max(_MIN_REPEAT_NS, self._itl_ns or 0))
            return
        account = self._account
        if ending is Ending.HANG:
            account.hangs += 1
            return
        if self._slots is not None:
            self._leave(connection, connection.due_ns)
        connection.reply = None
        is_cut = ending is Ending.CUT or ending is Ending.RESET
        if connection.is_counted:
            account.in_flight -= 1
            if is_cut:
                account.cuts += 1
                outcome = RowOutcome.CUT
            elif reply.status >= 400:
                account.errors += 1
                outcome = RowOutcome.ERROR
            else:
                account.completed += 1
                outcome = RowOutcome.COMPLETED
                if account.served is not None:
                    account.served.completed(reply.prompt_tokens, reply.tokens, reply.cached_tokens)
            if self._rows is not None:
                self._rows.close(connection.row, outcome)
        if ending is not Ending.KEEP:
            if ending is Ending.RESET:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            self._connections.close(connection)
        elif connection.inbuf is not None:
            self._on_free(connection)
        else:
            self._connections.note_idle(connection)
