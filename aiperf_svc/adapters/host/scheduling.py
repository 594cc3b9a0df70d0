"""How processes of one run share the cores of one machine: who goes first.

None of it needs privileges; who has them, as root has, gets more of it.
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
"""Nice value of those whose work can wait."""
SHORT_SLICE_NS: Final = 100_000
"""The shortest that Linux grants. A task with a short slice runs as soon as it wakes, in the place
of one with a longer slice, where it would else wait for the next tick: up to 10 ms."""
BUSY_SHARE: Final = 0.5
"""Share of a core above which a thread gives up its real-time priority."""
IDLE_SHARE: Final = 0.3
"""Share of a core below which a thread takes it again. The gap prevents a change at every look."""

TURN_S: Final = 0.1
"""Time between two changes of autogroups that the kernel makes for users without privileges, all of
them together."""
MOST_TURNS: Final = 10
"""Record processors of a run that start together take turns. A further one keeps its share."""

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period."""
_SCHED_OTHER: Final = 0


def raise_priority(*, before_all: bool) -> bool:
    """Let the kernel run this process promptly when it has input. Returns whether it will.

    With `before_all`, and the right to a real-time priority, it also keeps the core for as long as
    it needs it: only for where others have another one. Its threads and children are as any. Else
    it gets a short slice, of which Linux before 6.12 takes no notice.
    """
    if platform.system() != "Linux":
        return False
    if before_all:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            return True
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # of another trial
    number = _SYSCALL.get(platform.machine())
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, SHORT_SLICE_NS, 0, 0)
    return not ctypes.CDLL(None).syscall(number, 0, attributes, 0)


class PromptWhileIdle:
    """A real-time priority for a thread for as long as it leaves most of its core free.

    The ordinary scheduler may let a thread that has just worked wait until the next tick, up to
    4 ms, even if it needs a small part of a core: then the last of several requests that are due
    together are late. A thread that needs most of a core gains nothing from the priority, and would
    take the core from a server on the same machine.
    """

    def __init__(self, *, cpu_ns: int, now_mono_ns: int) -> None:
        """Start at these readings of the thread's CPU time and the monotonic clock."""
        self._cpu_ns, self._since_mono_ns = cpu_ns, now_mono_ns
        self.is_prompt = raise_priority(before_all=True)

    def adapt(self, *, cpu_ns: int, now_mono_ns: int) -> None:
        """Set the priority by the share of a core that the thread has used since the last call."""
        share = (cpu_ns - self._cpu_ns) / max(1, now_mono_ns - self._since_mono_ns)
        self._cpu_ns, self._since_mono_ns = cpu_ns, now_mono_ns
        if self.is_prompt and share > BUSY_SHARE:
            self.is_prompt = False
            raise_priority(before_all=False)
        elif not self.is_prompt and share < IDLE_SHARE:
            self.is_prompt = True
            raise_priority(before_all=True)


def lower_priority() -> None:
    """Lower the priority of this process, for where there are fewer cores than processes.

    With autogroups, which most distributions have, the kernel shares the cores out among sessions,
    and nice values count only within one: a process with a session of its own has to say it for its
    group.
    """
    os.nice(max(0, LOW_PRIORITY_NICE - os.nice(0)))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without them
            _lower_group(_AUTOGROUP)


def _lower_group(group: Path) -> None:
    """Set the nice value of an autogroup. Raises OSError where there is none."""
    nice = str(LOW_PRIORITY_NICE)
    if group.read_text().split()[-1:] == [nice]:
        return  # since another trial
    for _ in range(MOST_TURNS):
        try:
            group.write_text(nice)
            return
        except BlockingIOError:
            sleep(TURN_S)
