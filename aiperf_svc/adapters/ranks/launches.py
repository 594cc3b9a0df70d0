"""What a rank's commands ask to run on other ranks, through `rank_agent.sh`."""

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

AGENT = Path(__file__).with_name("rank_agent.sh")
ASKED, BOX = "asked", "launches"


class Launch(NamedTuple):
    """One request."""

    number: str
    """Process id of the agent, unique within its rank while it waits."""
    address: str
    command: str


class LaunchRequests:
    """The courier's end of the agents of its rank."""

    def __init__(self, folder: Path, on_asked: Callable[[Launch], None]) -> None:
        self._folder = folder
        self._on_asked = on_asked
        self._partial = b""
        self._replies: dict[str, int] = {}
        make_launch_folder(folder)
        self._asked = os.open(folder / ASKED, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._asked, self._read)

    @property
    def agent(self) -> Path:
        """The program to call in place of ssh."""
        return self._folder / AGENT.name

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._partial += os.read(self._asked, 65_536)
        *lines, self._partial = self._partial.split(b"\n")
        for line in lines:
            number, _, address = line.decode().partition(" ")
            reply = self._path(number, "reply")
            reply.unlink(missing_ok=True)
            os.mkfifo(reply)
            reply.chmod(0o666)
            self._replies[number] = os.open(reply, os.O_RDWR | os.O_NONBLOCK)
            command = self._path(number, "command").read_text().strip()
            self._on_asked(Launch(number, address.strip(), command))

    def reply(self, number: str, exit_code: int, stdout: bytes, stderr: bytes) -> None:
        """Let the agent end."""
        fd = self._replies.get(number)
        if fd is None:
            return
        self._path(number, "stdout").write_bytes(stdout)
        self._path(number, "stderr").write_bytes(stderr)
        code = exit_code if exit_code >= 0 else 128 - exit_code
        os.write(fd, f"{code}\n".encode())

    def forget(self) -> None:
        """Forget the requests of a step that is over; its agents have ended."""
        for number, fd in self._replies.items():
            os.close(fd)
            for kind in ("command", "reply", "stdout", "stderr"):
                with suppress(FileNotFoundError):
                    self._path(number, kind).unlink()
        self._replies.clear()

    def _path(self, number: str, kind: str) -> Path:
        return self._folder / BOX / f"{number}.{kind}"

    def close(self) -> None:
        """Take no more requests."""
        self.forget()
        asyncio.get_running_loop().remove_reader(self._asked)
        os.close(self._asked)


def make_launch_folder(folder: Path) -> None:
    """Make what agents and their courier share, in the folder of the rank."""
    (folder / BOX).mkdir(exist_ok=True)
    (folder / BOX).chmod(0o777)
    if not (folder / ASKED).exists():
        os.mkfifo(folder / ASKED)
        (folder / ASKED).chmod(0o666)
    shutil.copyfile(AGENT, folder / AGENT.name)
    (folder / AGENT.name).chmod(0o755)
