"""Measures how long the cores of this machine stalled for all processes. The cause is the host, not
a client.

A witness on each core sleeps a millisecond at a time, with a real-time priority that no process of
a run has. It is late only if the host runs something else, or because of the kernel. The kernel's
own count of stolen time has the resolution of a tick and misses most shorter stalls.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

PERIOD_S: Final = 0.001
STALL_S: Final = 0.0005
"""A wake-up that is later than this is a stall."""
MAX_DURATION_S: Final = 120.0
"""A witness that is not stopped ends by itself."""


@contextlib.contextmanager
def witness_stalls() -> Iterator[Callable[[], float]]:
    """Watch all cores inside the block. Afterwards, the yielded function returns the total seconds
    of all stalls of all cores.

    Raises PermissionError where this process may not use real-time priorities.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    program = [sys.executable, "-m", "benchmarks.truth.stall_witness"]
    witnesses = [
        subprocess.Popen([*program, str(core)], stdout=subprocess.PIPE)
        for core in sorted(os.sched_getaffinity(0))
    ]
    stalls_s: list[float] = []
    try:
        for witness in witnesses:
            assert witness.stdout is not None
            witness.stdout.readline()
        yield lambda: sum(stalls_s)
    finally:
        for witness in witnesses:
            witness.terminate()
        for witness in witnesses:
            stalls_s.append(float(witness.communicate()[0]))


def main() -> None:
    """Watch one core until SIGTERM. Print the seconds of its stalls."""
    is_over = False

    def end(_signal: int, _frame: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    os.sched_setaffinity(0, {int(sys.argv[1])})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    print(flush=True)
    stalled_s, deadline = 0.0, time.monotonic() + MAX_DURATION_S
    before = time.monotonic()
    while not is_over and before < deadline:
        time.sleep(PERIOD_S)
        now = time.monotonic()
        late_s = now - before - PERIOD_S
        if late_s > STALL_S:
            stalled_s += late_s
        before = now
    print(stalled_s)


if __name__ == "__main__":
    main()
