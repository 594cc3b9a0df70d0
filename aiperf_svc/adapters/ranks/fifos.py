"""What a rank's commands and its courier share in a folder: FIFOs and scripts. The two may run as
different users."""

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def make_fifo(path: Path) -> None:
    """Make a FIFO that all users may use, unless it exists."""
    if not path.exists():
        os.mkfifo(path)
        path.chmod(0o666)


def open_fifo(path: Path) -> int:
    """Open a FIFO for both ways: neither end waits for the other, and no end of file is seen."""
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def copy_script(script: Path, folder: Path) -> None:
    """Put an executable copy of a script there."""
    shutil.copyfile(script, folder / script.name)
    (folder / script.name).chmod(0o755)


class FifoLines:
    """Reads the lines of a FIFO as they come."""

    def __init__(self, path: Path, on_lines: Callable[[list[str]], None]) -> None:
        """`on_lines` gets all lines that came together."""
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
        """Call `on_lines` no more; writers still find the FIFO open."""
        asyncio.get_running_loop().remove_reader(self._fd)

    def close(self) -> None:
        """Release the FIFO, after `stop`."""
        os.close(self._fd)
