"""What a rank's commands ask to run on other ranks, through `rank_agent.sh`."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.adapters.ranks.fifos import FifoLines, copy_script, make_fifo, open_fifo

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
        self._replies: dict[str, int] = {}
        make_launch_folder(folder)
        self._asked = FifoLines(folder / ASKED, self._take)

    @property
    def agent(self) -> Path:
        """The program to call in place of ssh."""
        return self._folder / AGENT.name

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            number, _, address = line.partition(" ")
            reply = self._path(number, "reply")
            reply.unlink(missing_ok=True)
            make_fifo(reply)
            self._replies[number] = open_fifo(reply)
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
        self._asked.stop()
        self._asked.close()


def make_launch_folder(folder: Path) -> None:
    """Make what agents and their courier share, in the folder of the rank."""
    (folder / BOX).mkdir(exist_ok=True)
    (folder / BOX).chmod(0o777)
    make_fifo(folder / ASKED)
    copy_script(AGENT, folder)
