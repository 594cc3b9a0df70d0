"""What /proc/PID/stat says of the processes of this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class ProcessStat(NamedTuple):
    """A process, its state and its places among the others."""

    pid: int
    name: str
    """Its first 15 bytes, which may be any."""
    state: str
    """A letter: `T` is stopped, `Z` waits for its parent."""
    parent: int
    group: int
    session: int
    started: str
    """Time of its start in ticks after the machine's."""

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return what is known of a process; None if there is none, or it may not be read."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may have parentheses and spaces.
    before, _, after = text.rpartition(")")
    fields = after.split()
    state, parent, group, session = fields[:4]
    name = before.partition("(")[2]
    return ProcessStat(pid, name, state, int(parent), int(group), int(session), fields[19])


def all_stats() -> Iterator[ProcessStat]:
    """Yield what is known of every process that is there."""
    for folder in PROC.glob("[0-9]*"):
        if found := read_stat(int(folder.name)):
            yield found
