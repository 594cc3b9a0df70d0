"""Runs mock servers as forks. Tests of the mock-server command itself execute it."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO

from tests.support.forking import Fork
from tests.support.preparations import Preparation, prepare_fork


class ForkedServer(Fork):
    """A mock server that runs as a fork. It has its own process group and the owner's standard
    error and working directory, as if it had just been executed."""

    def __init__(
        self, arguments: Sequence[str], owner_fd: int, *, preparation: Preparation = ()
    ) -> None:
        read_fd, write_fd = os.pipe()
        self.stdout: IO[bytes] = os.fdopen(read_fd, "rb")
        order = [list(arguments), str(Path.cwd()), preparation]
        with os.fdopen(write_fd, "wb"):
            super().__init__(__name__, order, [owner_fd, write_fd, 2])


def prepare() -> None:
    """Import the modules of a server."""
    import_module("hpack")
    import_module("aiperf_svc.mock_server.__main__")


def begin(order: tuple[list[str], str, Preparation], fds: Sequence[int]) -> int:
    """Run a server in this process and return its exit code."""
    arguments, folder, preparation = order
    owner_fd, *streams = fds
    os.setpgid(0, 0)
    os.chdir(folder)
    for target, fd in enumerate(streams, start=1):
        os.dup2(fd, target)
        os.close(fd)
    prepare_fork(preparation)
    sys.argv = ["mock_server", *arguments, f"--owner-fd={owner_fd}"]
    code: int = import_module("aiperf_svc.mock_server.__main__").main()
    return code
