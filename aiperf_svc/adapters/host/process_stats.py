"""Reads /proc/PID/stat of this machine's processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class ProcessStat(NamedTuple):
    """A process with its state, parent, group and session."""

    pid: int
    name: str
    """The first 15 bytes of its name, which may be any bytes."""
    state: str
    """A letter: `T` is stopped, `Z` is a zombie."""
    parent: int
    group: int
    session: int
    started: str
    """Start time in clock ticks since boot."""

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return the stat of a process; None if it does not exist or may not be read."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may itself contain parentheses and spaces.
    before, _, after = text.rpartition(")")
    fields = after.split()
    state, parent, group, session = fields[:4]
    name = before.partition("(")[2]
    return ProcessStat(pid, name, state, int(parent), int(group), int(session), fields[19])


def all_stats() -> Iterator[ProcessStat]:
    """Yield the stat of every process."""
    for folder in PROC.glob("[0-9]*"):
        if found := read_stat(int(folder.name)):
            yield found
