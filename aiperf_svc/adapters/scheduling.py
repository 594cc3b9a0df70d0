"""How processes of one run share the cores of one machine.

None of it needs privileges, and none of it gives a process more of a core: it says who goes first.
"""

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

GIVING_WAY: Final = 10
"""Nice value of those whose work can wait."""
SHORT_SLICE_NS: Final = 100_000
"""The shortest that Linux grants. A task with a short slice runs as soon as it wakes, in the place
of one with a longer slice, where it would else wait for the next tick: up to 10 ms."""

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period."""
_SCHED_OTHER: Final = 0


def come_first() -> bool:
    """Have the kernel run this process promptly when something has come for it; whether it will.
    Linux before 6.12 takes no notice."""
    number = _SYSCALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, SHORT_SLICE_NS, 0, 0)
    return not ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def give_way() -> None:
    """Leave the cores to others where there are not enough.

    With autogroups, which most distributions have, the kernel shares the cores out among sessions,
    and nice values count only within one: a process with a session of its own has to say it for its
    group.
    """
    os.nice(GIVING_WAY)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without them
            _AUTOGROUP.write_text(str(GIVING_WAY))
