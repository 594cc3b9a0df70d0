"""A service's process ends with the one that started it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone; leave at once if it is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    expected = os.environ.get("AIPERF_PARENT_PID")
    if expected and os.getppid() != int(expected):
        raise SystemExit(1)
