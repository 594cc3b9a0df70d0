"""Leaves something of each kind behind, then becomes the command given after it.

    plant_leak.py PIDFILE COMMAND...

The processes that it starts have their ids in PIDFILE, so that whoever planted them can pull them
out.
"""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Plant, then go on as the command."""
    pid_file, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    processes = (
        _start(env=dict(os.environ)),
        # Without an environment nothing but its port tells whose it is.
        _start(env={}, fd=listener.fileno()),
    )
    Path(pid_file).write_text(" ".join(map(str, processes)))
    os.set_inheritable(listener.fileno(), True)
    Path(tempfile.gettempdir(), "left").touch()
    Path("left").touch()
    os.execv(command[0], command)


def _start(*, env: dict[str, str], fd: int | None = None) -> int:
    child = subprocess.Popen(
        ["/bin/sleep", "600"],
        env=env,
        pass_fds=() if fd is None else (fd,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return child.pid


main()
