"""Leaves something behind, then becomes the command given after it.

    plant_leak.py KIND PIDFILE COMMAND...

What it starts writes its id into PIDFILE, so that whoever planted it can pull it out.
"""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Plant, then go on as the command."""
    kind, pid_file, *command = sys.argv[1:]
    match kind:
        case "process":
            _start(pid_file, env=dict(os.environ))
        case "port":
            listener = socket.create_server(("127.0.0.1", 0))
            # Without an environment nothing but its port tells whose it is.
            _start(pid_file, env={}, fd=listener.fileno())
            os.set_inheritable(listener.fileno(), True)
        case "temporary file":
            Path(tempfile.gettempdir(), "left").touch()
        case "file here":
            Path("left").touch()
    os.execv(command[0], command)


def _start(pid_file: str, *, env: dict[str, str], fd: int | None = None) -> None:
    child = subprocess.Popen(
        ["/bin/sleep", "600"],
        env=env,
        pass_fds=() if fd is None else (fd,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    Path(pid_file).write_text(str(child.pid))


main()
