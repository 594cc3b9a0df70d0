"""A service's process ends with the one that started it."""

import ctypes
import os
import signal
import sys

from aiperf_svc.domain.errors import EnvironmentProblem

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone.

    Raises EnvironmentProblem when it is gone already: AIPERF_PARENT_PID, when set, names it. A
    parent that dies before the request to the kernel is known by that only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    expected = os.environ.get("AIPERF_PARENT_PID")
    if expected and os.getppid() != int(expected):
        raise EnvironmentProblem(f"process {expected}, which started this one, is gone")
