"""A finished dataset: every request as bytes, and its report."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from aiperf_svc.core.endpoints import multipart
from aiperf_svc.protocol.messages.dataset import Conversation
from aiperf_svc.protocol.messages.reports import DatasetReport


class BuiltDataset(msgspec.Struct, frozen=True):
    """All entries of a run. Only the warmup uses the last `warmup_entries`."""

    conversations: tuple[Conversation, ...]
    warmup_entries: int
    report: DatasetReport
    due_ns: bytes = b""
    """Fixed schedule: when each entry of profiling is due, int64 little-endian."""
    streams: bytes = b""
    """Empty if entries are not session trees."""

    @property
    def entry_count(self) -> int:
        return len(self.conversations)

    @property
    def asks_lengths(self) -> bool:
        """Whether a request asks for a number of output tokens."""
        return any(
            turn.requested_tokens > 0 for entry in self.conversations for turn in entry.turns
        )

    @property
    def turns(self) -> bytes:
        """Number of turns of each entry, uint16 little-endian; empty if every entry has one."""
        counts = np.array([len(entry.turns) for entry in self.conversations], dtype="<u2")
        return b"" if (counts == 1).all() else counts.tobytes()

    def blocks(
        self, *, max_bytes: int = 2**20, max_entries: int = 256
    ) -> list[tuple[Conversation, ...]]:
        """Return the entries in order as blocks of at most `max_bytes` of bodies and `max_entries`
        entries. An entry above `max_bytes` is a separate block."""
        blocks: list[tuple[Conversation, ...]] = []
        pending: list[Conversation] = []
        size = 0
        for entry in self.conversations:
            added = entry_bytes(entry)
            if pending and (size + added > max_bytes or len(pending) == max_entries):
                blocks.append(tuple(pending))
                pending, size = [], 0
            pending.append(entry)
            size += added
        if pending:
            blocks.append(tuple(pending))
        return blocks

    def inputs_json(self) -> Iterator[bytes]:
        """Return the file inputs.json, in chunks."""
        return inputs_json(self.conversations, is_first=True, is_last=True)


def inputs_json(
    conversations: Iterable[Conversation], *, is_first: bool, is_last: bool
) -> Iterator[bytes]:
    """Return a part of inputs.json, `{"data": [{"session_id": …, "payloads": […]}]}`, in chunks.

    A later turn's payload lacks its history, which is only known during the run.
    """
    start = b'{"data":[\n' if is_first else b",\n"
    for entry in conversations:
        payloads = b",".join(_payload(entry.head + t.messages + t.tail) for t in entry.turns)
        name = msgspec.json.encode(entry.id)
        yield b'%b{"session_id":%b,"payloads":[%b]}' % (start, name, payloads)
        start = b",\n"
    if is_last:
        yield b"\n]}\n"


def _payload(body: bytes) -> bytes:
    return multipart.as_json(body) if multipart.is_form(body) else body


def entry_bytes(entry: Conversation) -> int:
    """Return the size of an entry's request bodies."""
    return len(entry.head) + sum(len(turn.messages) + len(turn.tail) for turn in entry.turns)
