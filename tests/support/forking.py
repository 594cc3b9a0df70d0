"""Processes as forks of one that has imported everything.

Importing is nearly all that the start of a command or of a mock server costs, and tests start a
thousand of them. Here one process, the template, has done it: it forks for each order, and the fork
goes on as a command (`forked_commands`) or as a mock server (`forked_servers`). All processes of
pytest-xdist share the template of the one that started them.
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
"""Bytes for the command line of a fork, and as many for its environment."""
SHARED = "TESTS_FORK_TEMPLATE"
"""Variable with the path of the socket at which a template takes orders of several processes."""
_ORDER_BYTES = 1 << 20
_MOST_FDS = 4


class Fork:
    """A process that is a fork of the template: what tests use of `subprocess.Popen`."""

    def __init__(self, module: str, order: Any, fds: Sequence[int]) -> None:
        """Have `begin(order, fds)` of the module `module` called in a fork, which has these file
        descriptors and no others but the standard ones."""
        self.returncode: int | None = None
        self._said, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            body = json.dumps((module, order)).encode()
            socket.send_fds(start(), [body], [theirs.fileno(), *fds])
        self.pid = int(self._said.recv(16))

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._said], [], [], 0)[0]:
            self.returncode = int(self._said.recv(16))
            self._said.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        if self.returncode is None:
            select.select([self._said], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


_shared_path = os.environ.pop(SHARED, "")
_one_at_a_time = threading.Lock()
_templates: "list[subprocess.Popen[bytes]]" = []


def template_processes() -> set[int]:
    """Process ids of an own template, which goes on until this process ends."""
    return {template.pid for template in _templates}


def start() -> socket.socket:
    """Start the template, if that is still to be done; where it takes orders. Forks of this process
    share it."""
    with _one_at_a_time:
        return _start_template()


def share() -> None:
    """Start a template for the processes that this one starts; their environment names it."""
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
            # Ctrl-C is for the tests.
            start_new_session=True,
        )
    _templates.append(template)
    atexit.register(_end, ours, template)
    return ours


def _end(orders: socket.socket, template: "subprocess.Popen[bytes]") -> None:
    orders.close()
    template.wait()


def _serve(owner: socket.socket, listener: socket.socket | None = None) -> None:
    """Fork for each order, and say its process id and its end, until the owner has ended. Ends what
    still runs then: a killed test leaves no load behind."""
    running: dict[int, tuple[int, socket.socket]] = {}
    clients = [owner]
    while True:
        waited: list[socket.socket | int] = [*clients, *running]
        for ready in select.select([*waited, *filter(None, [listener])], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
            elif not isinstance(ready, int):
                body, fds, _, _ = socket.recv_fds(ready, _ORDER_BYTES, _MOST_FDS)
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
                said = socket.socket(fileno=fds[0])
                _tell(said, pid)
                running[os.pidfd_open(pid)] = (pid, said)
                for fd in fds[1:]:
                    os.close(fd)
            else:
                pid, said = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with said:
                    _tell(said, code)
                os.close(ready)


def _tell(who: socket.socket, number: int) -> None:
    """Send a number to the process that ordered a fork, unless it has ended."""
    with suppress(BrokenPipeError):
        who.send(str(number).encode())


def _begin(module: str, order: Any, fds: list[int]) -> NoReturn:
    keep_only(fds)
    forget_signals()
    end_like_a_program(lambda: import_module(module).begin(order, fds))


def keep_only(fds: Sequence[int]) -> None:
    """Close all others but the standard ones."""
    before = 2
    for fd in (*sorted(fds), os.sysconf("SC_OPEN_MAX")):
        os.closerange(before + 1, fd)
        before = fd


def forget_signals() -> None:
    """Handle signals as a process that has just been executed does. A command starts others from
    its event loop, whose handlers write to a file descriptor that is closed here."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_like_a_program(main: Callable[[], int | None]) -> NoReturn:
    """Call `main`, and end this process with its exit code as the interpreter does."""
    # Those of the libraries: in a process that has imported nothing the first handler is `main`'s.
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
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread is not in a fork"
    _serve(*[socket.socket(fileno=int(fd)) for fd in sys.argv[2:]])


if __name__ == "__main__":
    _main()
