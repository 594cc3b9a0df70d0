"""Starts processes as forks of a template process that has imported everything.

Imports are most of the startup cost of a command or a mock server, and the tests start a thousand
of them. The template imports once and forks for each order. The fork continues as a command
(`forked_commands`) or as a mock server (`forked_servers`). All processes of pytest-xdist share the
template of the process that started them.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT

ROOM = 32_768
"""Bytes reserved for the command line of a fork, and again for its environment."""
SHARED = "TESTS_FORK_TEMPLATE"
"""Variable with the path of the socket at which a template takes orders from several processes."""
_ORDER_BYTES = 1 << 20
_MAX_FDS = 4


class Fork:
    """A fork of the template with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, module: str, order: Any, fds: Sequence[int]) -> None:
        """Fork the template and call `begin(order, fds)` of `module` in the fork. It inherits only
        these file descriptors and the standard ones."""
        self.returncode: int | None = None
        self._reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            body = json.dumps((module, order)).encode()
            socket.send_fds(start(), [body], [theirs.fileno(), *fds])
        self.pid = int(self._reports.recv(16))

    def poll(self) -> int | None:
        """Return the exit code or the negated number of the fatal signal. None while it runs."""
        if self.returncode is None and select.select([self._reports], [], [], 0)[0]:
            self.returncode = int(self._reports.recv(16))
            self._reports.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            select.select([self._reports], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


_shared_path = os.environ.pop(SHARED, "")
_one_at_a_time = threading.Lock()
_templates: "list[subprocess.Popen[bytes]]" = []


def template_processes() -> set[int]:
    """Return the process ids of this process's template, which runs until this process ends."""
    return {template.pid for template in _templates}


def start() -> socket.socket:
    """Start the template once and return its order socket. Forks of this process share it."""
    with _one_at_a_time:
        return _start_template()


def share() -> None:
    """Start a template for the child processes, which find it through their environment."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    path = f"{folder.name}/orders"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        _start_template(listener)
    os.environ[SHARED] = path
    atexit.register(folder.cleanup)


@cache
def _start_template(listener: socket.socket | None = None) -> socket.socket:
    if _shared_path:
        shared = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared.connect(_shared_path)
        atexit.register(shared.close)
        return shared
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    fds = [each.fileno() for each in (theirs, listener) if each is not None]
    with theirs:
        template = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, " " * ROOM, *map(str, fds)],
            env=os.environ | PROCESS_ENVIRONMENT | {"ROOM": " " * ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            # Ctrl-C is handled by the tests.
            start_new_session=True,
        )
    _templates.append(template)
    atexit.register(_end, ours, template)
    return ours


def _end(orders: socket.socket, template: "subprocess.Popen[bytes]") -> None:
    orders.close()
    template.wait()


def _serve(owner: socket.socket, listener: socket.socket | None = None) -> None:
    """Fork for each order, and report its process id and its exit, until the owner ends. Then kill
    the remaining forks so that a killed test leaves no load behind."""
    running: dict[int, tuple[int, socket.socket]] = {}
    clients = [owner]
    while True:
        waited: list[socket.socket | int] = [*clients, *running]
        for ready in select.select([*waited, *filter(None, [listener])], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
            elif not isinstance(ready, int):
                body, fds, _, _ = socket.recv_fds(ready, _ORDER_BYTES, _MAX_FDS)
                if not body:
                    if ready is owner:
                        for pid, _ in running.values():
                            os.kill(pid, signal.SIGTERM)
                        return
                    clients.remove(ready)
                    ready.close()
                    continue
                if (pid := os.fork()) == 0:
                    module, order = json.loads(body)
                    _begin(module, order, fds[1:])
                reports = socket.socket(fileno=fds[0])
                _report(reports, pid)
                running[os.pidfd_open(pid)] = (pid, reports)
                for fd in fds[1:]:
                    os.close(fd)
            else:
                pid, reports = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with reports:
                    _report(reports, code)
                os.close(ready)


def _report(who: socket.socket, number: int) -> None:
    """Send a number to the process that ordered a fork unless it has ended."""
    with suppress(BrokenPipeError):
        who.send(str(number).encode())


def _begin(module: str, order: Any, fds: list[int]) -> NoReturn:
    keep_only(fds)
    forget_signals()
    end_like_a_program(lambda: import_module(module).begin(order, fds))


def keep_only(fds: Sequence[int]) -> None:
    """Close all file descriptors except these and the standard ones."""
    before = 2
    for fd in (*sorted(fds), os.sysconf("SC_OPEN_MAX")):
        os.closerange(before + 1, fd)
        before = fd


def forget_signals() -> None:
    """Reset signal handling to that of a newly executed process. A command starts others from its
    event loop, whose handlers write to a file descriptor that is closed here."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_like_a_program(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and exit with its exit code as the interpreter does."""
    # Keep the libraries' handlers: in a process without imports, `main` installs the first handler.
    atexit._clear()
    code: int | None = 1
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code or 0)


def _main() -> None:
    gc.disable()
    for name in ("forked_commands", "forked_servers"):
        import_module(f"tests.support.{name}").prepare()
    gc.enable()
    gc.freeze()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "forks do not inherit threads"
    _serve(*[socket.socket(fileno=int(fd)) for fd in sys.argv[2:]])


if __name__ == "__main__":
    _main()
