"""Sets priorities of the processes that share a machine's cores in a run.

None of this needs privileges, but with privileges, such as root's, it has more effect.
"""

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path
from time import sleep
from typing import Final

LOW_PRIORITY_NICE: Final = 10
"""Nice value of processes whose work can wait."""
SHORT_SLICE_NS: Final = 100_000
"""Shortest slice that Linux grants. A task with a short slice preempts a task with a longer slice
when it wakes, instead of waiting up to 10 ms for the next tick."""
BUSY_SHARE: Final = 0.5
"""Share of a core above which a thread gives up its real-time priority."""
IDLE_SHARE: Final = 0.3
"""Share of a core below which a thread takes it back. The gap avoids a change at every check."""

TURN_S: Final = 0.1
"""Minimum time between two changes of autogroups, which the kernel enforces for all unprivileged
users together."""
MAX_TURNS: Final = 10
"""Maximum number of record processors that start together and change their groups in turn. Others
keep their share."""

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period."""
_SCHED_OTHER: Final = 0


def raise_priority(*, before_all: bool) -> bool:
    """Ask the kernel to run this process promptly when it has input. Returns whether it will.

    With `before_all` and the right to a real-time priority, the process also keeps the core for as
    long as it needs; use it only if other processes have another core. Its threads and children
    have normal priority. Otherwise the process gets a short slice, which Linux before 6.12 ignores.
    """
    if platform.system() != "Linux":
        return False
    if before_all:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            return True
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the priority of another trial
    number = _SYSCALL.get(platform.machine())
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, SHORT_SLICE_NS, 0, 0)
    return not ctypes.CDLL(None).syscall(number, 0, attributes, 0)


class PromptWhileIdle:
    """A real-time priority for a thread while it leaves most of its core idle.

    The default scheduler may delay a thread that has just worked until the next tick, up to 4 ms,
    even if it needs only a small part of a core. Then the last of several requests that are due at
    the same time are late. A thread that needs most of a core gains nothing from the priority, and
    would take the core from a server on the same machine.
    """

    def __init__(self, *, cpu_ns: int, now_mono_ns: int) -> None:
        """Start with these readings of the thread's CPU time and the monotonic clock."""
        self._cpu_ns, self._since_mono_ns = cpu_ns, now_mono_ns
        self.is_prompt = raise_priority(before_all=True)

    def adapt(self, *, cpu_ns: int, now_mono_ns: int) -> None:
        """Set the priority from the thread's share of a core since the last call."""
        share = (cpu_ns - self._cpu_ns) / max(1, now_mono_ns - self._since_mono_ns)
        self._cpu_ns, self._since_mono_ns = cpu_ns, now_mono_ns
        if self.is_prompt and share > BUSY_SHARE:
            self.is_prompt = False
            raise_priority(before_all=False)
        elif not self.is_prompt and share < IDLE_SHARE:
            self.is_prompt = True
            raise_priority(before_all=True)


def lower_priority() -> None:
    """Lower the priority of this process, if there are fewer cores than processes.

    With autogroups, the default in most distributions, the kernel divides the cores among sessions,
    and nice values apply only within a session. A process with its own session must therefore lower
    the priority of its group.
    """
    os.nice(max(0, LOW_PRIORITY_NICE - os.nice(0)))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # the kernel has no autogroups
            _lower_group(_AUTOGROUP)


def _lower_group(group: Path) -> None:
    """Set the nice value of an autogroup. Raises OSError if there is none."""
    nice = str(LOW_PRIORITY_NICE)
    if group.read_text().split()[-1:] == [nice]:
        return  # set in an earlier trial
    for _ in range(MAX_TURNS):
        try:
            group.write_text(nice)
            return
        except BlockingIOError:
            sleep(TURN_S)
