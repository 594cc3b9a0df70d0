"""Requests of a rank's commands to run programs on other ranks, sent through `rank_agent.sh`.

The commands and their courier share FIFOs and scripts in a folder. They may run as different users.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def make_fifo(path: Path) -> None:
    """Create a FIFO that all users may use, unless it exists."""
    if not path.exists():
        os.mkfifo(path)
        path.chmod(0o666)


def open_fifo(path: Path) -> int:
    """Open a FIFO for reading and writing: neither end waits, and there is no end of file."""
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def copy_script(script: Path, folder: Path) -> None:
    """Copy a script into the folder and make it executable."""
    shutil.copyfile(script, folder / script.name)
    (folder / script.name).chmod(0o755)


class FifoLines:
    """Reads the lines of a FIFO as they arrive."""

    def __init__(self, path: Path, on_lines: Callable[[list[str]], None]) -> None:
        """`on_lines` gets all lines that arrived together."""
        self._on_lines = on_lines
        self._partial = b""
        self._fd = open_fifo(path)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._partial += os.read(self._fd, 65_536)
        *lines, self._partial = self._partial.split(b"\n")
        self._on_lines([line.decode() for line in lines])

    def stop(self) -> None:
        """Stop calling `on_lines`; writers can still open the FIFO."""
        asyncio.get_running_loop().remove_reader(self._fd)

    def close(self) -> None:
        """Close the FIFO, after `stop`."""
        os.close(self._fd)


AGENT = Path(__file__).with_name("rank_agent.sh")
REQUESTS, LAUNCHES = "asked", "launches"


class Launch(NamedTuple):
    number: str
    """Process id of the agent, unique within its rank while it waits."""
    address: str
    command: str


class LaunchRequests:
    """The courier's side of the agents of its rank."""

    def __init__(self, folder: Path, on_request: Callable[[Launch], None]) -> None:
        self._folder = folder
        self._on_request = on_request
        self._replies: dict[str, int] = {}
        make_launch_folder(folder)
        self._request_lines = FifoLines(folder / REQUESTS, self._take)

    @property
    def agent(self) -> Path:
        """Return the program to call instead of ssh."""
        return self._folder / AGENT.name

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            number, _, address = line.partition(" ")
            if not number.isdecimal():
                continue  # not from an agent, and may lead out of the folder
            reply = self._path(number, "reply")
            reply.unlink(missing_ok=True)
            make_fifo(reply)
            self._replies[number] = open_fifo(reply)
            # A link may lead to files of the courier's own container, such as its keys.
            fd = os.open(self._path(number, "command"), os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(fd) as file:
                command = file.read().strip()
            self._on_request(Launch(number, address.strip(), command))

    def reply(self, number: str, exit_code: int, stdout: bytes, stderr: bytes) -> None:
        """Let the agent end."""
        fd = self._replies.get(number)
        if fd is None:
            return
        for kind, data in (("stdout", stdout), ("stderr", stderr)):
            path = self._path(number, kind)
            # A link may lead to files of the courier's own container.
            path.unlink(missing_ok=True)
            with path.open("xb") as file:
                file.write(data)
        code = exit_code if exit_code >= 0 else 128 - exit_code
        os.write(fd, f"{code}\n".encode())

    def forget(self) -> None:
        """Forget the requests of a finished step; its agents have ended."""
        for number, fd in self._replies.items():
            os.close(fd)
            for kind in ("command", "reply", "stdout", "stderr"):
                with suppress(FileNotFoundError):
                    self._path(number, kind).unlink()
        self._replies.clear()

    def _path(self, number: str, kind: str) -> Path:
        return self._folder / LAUNCHES / f"{number}.{kind}"

    def close(self) -> None:
        self.forget()
        self._request_lines.stop()
        self._request_lines.close()


def make_launch_folder(folder: Path) -> None:
    """Create the files that agents and their courier share, in the rank's folder."""
    (folder / LAUNCHES).mkdir(exist_ok=True)
    (folder / LAUNCHES).chmod(0o777)
    make_fifo(folder / REQUESTS)
    copy_script(AGENT, folder)
