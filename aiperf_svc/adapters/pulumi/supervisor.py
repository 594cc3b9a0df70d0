"""A process with one thread between the runner and the Pulumi CLI; it outlives both.

    python -I -S supervisor.py CONTROL TEMPORARY PRIVATE COMMAND...

When a parent dies, the kernel signals its child once for each thread of the parent, and a second
signal makes the CLI end in the middle of a write. So the runner, which has threads, is not the
CLI's parent; this script is. It receives orders through the pipe CONTROL: a byte requests an
interrupt, and the end of the pipe means that the runner is gone. The CLI gets only one signal,
however many requests follow. TEMPORARY is the CLI's TMPDIR and is removed after the command.
PRIVATE, the runner's folder (or empty), is removed when the runner is gone. Plugins that outlive
the CLI are killed.

The exit code is the CLI's, or 128 plus the number of the signal that killed it. The script imports
only the standard library, because it starts with every command.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

STOP_S = 180.0
"""Time between signal and exit: the CLI waits for operations in progress."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask a process to stop."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Supervisor:
    """One command and the processes that it starts."""

    def __init__(self, control: int, command: Sequence[str], temporary: str) -> None:
        self._control = control
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, because a child would inherit ignored signals.
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        self.is_orphan = False
        """True when the runner is gone."""
        self._was_stopped = False
        self._kill_at_s: float | None = None
        self._status: int | None = None
        self._child = _start(command, temporary)

    def wait(self) -> int:
        """Wait until the command has ended and return its exit code."""
        watched = [self._woken, self._control]
        self._reap()
        while self._status is None:
            left_s = None if self._kill_at_s is None else self._kill_at_s - time.monotonic()
            ready = select.select(watched, [], [], None if left_s is None else max(0.0, left_s))[0]
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            if self._control in ready and not self.read_control():
                watched.remove(self._control)
            if left_s is not None and left_s <= 0:
                os.kill(self._child, signal.SIGKILL)
                self._kill_at_s = None
            self._reap()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def read_control(self) -> bool:
        """Read one byte from the runner and act on it. Returns False at the end of the pipe."""
        word = os.read(self._control, 1)
        self.is_orphan = not word
        if self._status is None and not self._was_stopped:
            os.kill(self._child, signal.SIGINT if word else signal.SIGTERM)
            self._kill_at_s, self._was_stopped = time.monotonic() + STOP_S, True
        return bool(word)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self._status = ended[1]


def end_descendants() -> None:
    """Kill the remaining processes of the command. Orphaned processes become children of this one,
    so a process number cannot be reused before it is reaped here."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, os.WNOHANG)
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    control, temporary, private, *command = arguments
    os.set_inheritable(int(control), False)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(int(control), command, temporary)
    code = supervisor.wait()
    if _LIBC is not None:
        end_descendants()
    _remove(temporary)
    while not supervisor.is_orphan and select.select([int(control)], [], [], 0)[0]:
        supervisor.read_control()
    if supervisor.is_orphan and private:
        _remove(private)
    return code


def _start(command: Sequence[str], temporary: str) -> int:
    parent = os.getpid()
    # Before the exec, a signal must end the child instead of running a handler of this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return child
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if _LIBC is not None:
            # If this process is killed, the CLI gets one signal, because its parent has one thread.
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if os.getppid() == parent:
            os.execve(command[0], list(command), {**os.environ, "TMPDIR": temporary})
    except OSError as error:
        os.write(2, f"error: {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _remove(folder: str) -> None:
    try:
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        # Imported here because it is rarely needed and takes a third of this script's start time.
        import shutil

        # The lock is removed last: after a kill in between, the folder is found as stale.
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _children() -> list[int]:
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", "rb") as stat,  # noqa: PTH123
            ):
                if int(stat.read().rpartition(b")")[2].split()[1]) == own:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
