"""A service's process ends with the one that started it, and leaves nothing in its place."""

import atexit
import ctypes
import os
import shutil
import signal
import sys

from aiperf_svc.domain.errors import EnvironmentProblem

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent is gone. A process that ends then removes the
    run's private folder (AIPERF_STATE_DIR), which a killed parent could not.

    Raises EnvironmentProblem when it is gone already: AIPERF_PARENT_PID, when set, names it. A
    parent that dies before the request to the kernel is known by that only.
    """
    end_with_parent()
    atexit.register(_remove_orphaned_folder)
    if _is_orphan():
        expected = os.environ["AIPERF_PARENT_PID"]
        raise EnvironmentProblem(f"process {expected}, which started this one, is gone")


def _is_orphan() -> bool:
    expected = os.environ.get("AIPERF_PARENT_PID")
    return bool(expected) and os.getppid() != int(expected or 0)


def _remove_orphaned_folder() -> None:
    folder = os.environ.get("AIPERF_STATE_DIR")
    if folder and _is_orphan():
        shutil.rmtree(folder, ignore_errors=True)
