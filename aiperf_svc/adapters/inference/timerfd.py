"""Kernel timers on the wall clock for epoll sets, accurate to the nanosecond.

Event-loop timers round to milliseconds and may fire early. A request that is due by the clock must
never be sent early and should not be sent late. Python has timerfd from 3.13 on, so this module
calls libc.
"""

import ctypes
import os

_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Itimerspec(ctypes.Structure):
    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    ]


class _Timer:
    """A timer descriptor; readable when it has expired."""

    def __init__(self, clock: int) -> None:
        self.fd: int = _libc.timerfd_create(clock, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Itimerspec()
        self._reference = ctypes.byref(self._spec)

    def _set(self, flags: int) -> None:
        if _libc.timerfd_settime(self.fd, flags, self._reference, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Read the expiry, so the descriptor is no longer readable."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.fd)


class WallTimer(_Timer):
    """Expires once, at a time of CLOCK_REALTIME."""

    def __init__(self) -> None:
        super().__init__(_CLOCK_REALTIME)

    def set(self, at_wall_ns: int | None) -> None:
        """Expire at `at_wall_ns`, or at once if it has passed; None disarms the timer."""
        # Zero disarms a kernel timer.
        self._spec.value_s, self._spec.value_ns = divmod(at_wall_ns or 0, 1_000_000_000)
        self._set(_TFD_TIMER_ABSTIME)


class Ticker(_Timer):
    """Expires at an interval, or never."""

    def __init__(self) -> None:
        super().__init__(_CLOCK_MONOTONIC)

    def every(self, interval_ns: int) -> None:
        """Expire every `interval_ns` from now on; 0 stops the timer."""
        spec = self._spec
        spec.interval_s, spec.interval_ns = divmod(interval_ns, 1_000_000_000)
        spec.value_s, spec.value_ns = spec.interval_s, spec.interval_ns
        self._set(0)
