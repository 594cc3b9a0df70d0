"""Holds a conversation between two of its turns."""

from typing import Final

from aiperf_svc.adapters.inference.entry_cache import Entry
from aiperf_svc.protocol.records import Flag

_BLOCKED: Final = int(Flag.BLOCKED)


class Session:
    """State of a conversation in progress."""

    __slots__ = (
        "due",
        "entry",
        "flags",
        "history",
        "id",
        "index",
        "issued",
        "target",
        "turn",
        "turns",
    )

    def __init__(
        self, index: int, entry: Entry, turns: int, flags: int, due: int, id: bytes = b""
    ) -> None:
        self.index = index
        self.id = id
        """Id by which routers keep its requests on one server."""
        self.issued = b""
        """Header that the target issued for it."""
        self.due = due
        self.entry = entry
        self.turns = turns
        self.turn = 0
        self.history: list[bytes] = []
        """Messages of the turns so far, in parts without commas around them. Messages of the
        dataset are shared between conversations."""
        self.flags = flags
        self.target = -1
        """Index of its target, if there are several; -1 before its first turn."""

    def next_by_clock(self, ready: int, gap_ns: int) -> int:
        """Return when the next turn is due by its user's clock, paused until it is ready."""
        by_clock = self.due + gap_ns
        self.flags = self.flags | _BLOCKED if ready > by_clock else self.flags & ~_BLOCKED
        self.due = max(ready, by_clock)
        return self.due
