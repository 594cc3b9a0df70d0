"""A timer with nanosecond resolution for an epoll set.

`epoll_wait` takes whole milliseconds, which is too coarse to pace tokens, and Python 3.11 has no
timerfd, so this module calls two functions of the C library. The timer is registered edge-triggered
and need never be read: each expiry is one event.
"""

import ctypes
import os
import time

_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """One timer on the monotonic clock; `fd` becomes readable when it expires."""

    __slots__ = ("_set", "_spec", "_spec_ref", "fd")

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")
        self._spec = _Itimerspec()
        self._spec_ref = ctypes.byref(self._spec)
        self._set = libc.timerfd_settime

    def arm(self, due_mono_ns: int) -> None:
        """Expire once at this time of the monotonic clock, or at once if it has passed. Replaces
        the previous setting.
        """
        spec = self._spec
        spec.value_s, spec.value_ns = divmod(max(due_mono_ns, 1), 1_000_000_000)
        self._set(self.fd, _TFD_TIMER_ABSTIME, self._spec_ref, None)

    def close(self) -> None:
        os.close(self.fd)
