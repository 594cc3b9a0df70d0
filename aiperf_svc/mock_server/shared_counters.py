"""Memory that the serving processes share, so each of them can report the account of all.

Counters and rows are in each process, where updating them is cheapest. The process that gets a `GET
/truth` asks all others: it takes the lock, posts the question in shared memory and wakes them
through their eventfds. Each process writes its account into its memory file and acknowledges the
question. When all have done so, the asking process merges the accounts, replies and releases the
lock. All memory is anonymous and created before the fork, so nothing is left behind however the
processes end.
"""

import fcntl
import json
import mmap
import os
import time
from array import array
from enum import IntEnum
from typing import Any

from aiperf_svc.mock_server.accounts import Account, max_overlap
from aiperf_svc.mock_server.metrics_page import ServedMetrics

_NUMBER, _QUESTION, _ASKER, _FIRST_REQUEST, _DELAY, _DELAY_END, _ACKS = range(7)


class Question(IntEnum):
    """Question of one process to all processes."""

    COUNTERS = 0
    ROWS = 1
    RESET = 2
    METRICS = 3


class SharedCounters:
    """Shared memory of `processes` processes. Create it before forking; `join` in each child."""

    def __init__(self, processes: int) -> None:
        self.started_s = time.time()
        self._processes = processes
        self._words = memoryview(mmap.mmap(-1, 8 * (_ACKS + processes))).cast("q")
        self._files = [os.memfd_create(f"truth-{index}") for index in range(processes)]
        self._wakeups = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(processes)]
        self._index = 0
        self._acknowledged = 0
        self._is_asking = False

    def join(self, index: int) -> int:
        """Join as process `index`. Returns the descriptor that is readable when `publish` must be
        called.
        """
        self._index = index
        return self._wakeups[index]

    @property
    def first_request_mono_ns(self) -> int:
        """Monotonic time at which the first request in any process started; 0 before."""
        return self._words[_FIRST_REQUEST]

    @first_request_mono_ns.setter
    def first_request_mono_ns(self, mono_ns: int) -> None:
        self._words[_FIRST_REQUEST] = mono_ns

    def set_delay(self, latency_ns: int, for_ns: int) -> None:
        """Delay the first token of each request that starts within the next `for_ns`."""
        self._words[_DELAY], self._words[_DELAY_END] = latency_ns, time.monotonic_ns() + for_ns

    def delay_ns(self) -> int:
        """Return the delay of the first token of a request that starts now."""
        words = self._words
        if words[_DELAY] and time.monotonic_ns() >= words[_DELAY_END]:
            words[_DELAY] = 0
        return words[_DELAY]

    def ask(self, question: Question) -> bool:
        """Put a question to every process, including this one. Return False if another question is
        still open; retry when woken.
        """
        if self._is_asking:
            return False
        try:
            fcntl.lockf(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        self._is_asking = True
        words = self._words
        words[_QUESTION], words[_ASKER] = question, self._index
        words[_NUMBER] += 1
        self._wake_all()
        return True

    def publish(self, account: Account, waiting: int) -> None:
        """Publish the answer to the open question, unless this process has already done so.
        `waiting` is the number of requests without a slot."""
        os.eventfd_read(self._wakeups[self._index])
        words = self._words
        if words[_NUMBER] == self._acknowledged:
            return
        self._acknowledged = words[_NUMBER]
        if words[_QUESTION] == Question.RESET:
            account.reset()
            words[_FIRST_REQUEST] = 0
        values = None
        if words[_QUESTION] == Question.METRICS:
            if account.served is None:
                account.served = ServedMetrics()
            values = [waiting, *account.served.values()]
        with_rows = words[_QUESTION] == Question.ROWS
        _publish(self._files[self._index], account, self._index, with_rows, values)
        words[_ACKS + self._index] = self._acknowledged
        os.eventfd_write(self._wakeups[words[_ASKER]], 1)

    def collect(self) -> bytes | None:
        """Return the merged JSON response to this process's own question; None while an answer is
        missing or no question is open.
        """
        if not self._is_asking:
            return None
        number = self._words[_NUMBER]
        if any(ack != number for ack in self._words[_ACKS:]):
            return None
        merged = _merge([_read_published(file) for file in self._files])
        self._is_asking = False
        fcntl.lockf(self._files[0], fcntl.LOCK_UN)
        self._wake_all()
        return merged

    def _wake_all(self) -> None:
        for wakeup in self._wakeups:
            os.eventfd_write(wakeup, 1)


def _publish(
    file: int, account: Account, process: int, with_rows: bool, values: list[int] | None
) -> None:
    """Write an account: one line of JSON, then the rows, then the sorted arrivals and ends."""
    rows = account.rows if with_rows else None
    listing = b",\n".join(rows.dumps(process)) if rows is not None else b""
    arrivals, ends = rows.intervals() if rows is not None else (array("q"), array("q"))
    header = {
        "counters": account.counters(),
        "frozen_wall_ns": account.frozen_wall_ns,
        "values": values,
        "has_rows": rows is not None,
        "listing": len(listing),
        "arrivals": len(arrivals),
    }
    data = b"".join(
        (json.dumps(header).encode(), b"\n", listing, arrivals.tobytes(), ends.tobytes())
    )
    os.ftruncate(file, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], written)


def _read_published(file: int) -> bytes:
    """Return what a process published, and free its memory."""
    parts, offset = [], 0
    while part := os.pread(file, 1 << 30, offset):
        parts.append(part)
        offset += len(part)
    os.ftruncate(file, 0)
    return b"".join(parts)


def _merge(published: list[bytes]) -> bytes:
    """Merge what all processes published into one JSON object: sums, the counters of each process,
    and the rows if there are any."""
    counters: list[dict[str, int]] = []
    frozen: list[list[int] | None] = []
    values: list[list[int]] = []
    listings: list[bytes] = []
    arrivals: list[int] = []
    ends: list[int] = []
    has_rows = False
    for data in published:
        line, _, rest = data.partition(b"\n")
        header: dict[str, Any] = json.loads(line)
        counters.append(header["counters"])
        frozen.append(header["frozen_wall_ns"])
        if header["values"] is not None:
            values.append(header["values"])
        has_rows = has_rows or header["has_rows"]
        times_at = header["listing"]
        ends_at = times_at + 8 * header["arrivals"]
        if times_at:
            listings.append(rest[:times_at])
        arrivals.extend(memoryview(rest[times_at:ends_at]).cast("q"))
        ends.extend(memoryview(rest[ends_at:]).cast("q"))
    total: dict[str, object] = {name: sum(each[name] for each in counters) for name in counters[0]}
    is_whole = has_rows and not total["rows_dropped"]
    if is_whole:
        total["max_in_flight"] = max_overlap(sorted(arrivals), sorted(ends))
    total["max_in_flight_is_exact"] = is_whole or len(counters) == 1
    total["frozen_wall_ns"] = frozen
    total["processes"] = counters
    if values:
        total["values"] = [sum(each) for each in zip(*values, strict=True)]
    text = json.dumps(total).encode()
    if not has_rows:
        return text
    return text[:-1] + b',"rows":[' + b",\n".join(listings) + b"]}"
