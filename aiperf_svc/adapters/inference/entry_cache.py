"""Holds the dataset at a worker: entries as finished HTTP request bytes, fetched in blocks.

A dataset that fits `CACHE_BYTES` is fetched whole before the run. Of a larger one the blocks that
granted credits will need are fetched ahead and the least recently granted ones are dropped.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from aiperf_svc.adapters.inference.request import PreparedTurn
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.core.endpoints.forced_length import without_forced_length
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import Conversation, DatasetBlock

CACHE_BYTES = 256 * 2**20
"""Request bytes that one worker keeps."""


class Entry:
    """One conversation, ready to send."""

    __slots__ = (
        "_conversation",
        "_target",
        "first",
        "number",
        "turns",
    )

    def __init__(
        self, number: int, conversation: Conversation, target: Target, before: bytes
    ) -> None:
        """All entries begin with the bytes `before`, which are held once."""
        first = conversation.turns[0]
        self.number = number
        self.turns = len(conversation.turns)
        # A single turn is whole in `first`; its parts would hold every prompt twice.
        self._conversation = conversation if self.turns > 1 else Conversation("", ())
        self._target = target
        body = conversation.head + first.messages + first.tail
        self.first = PreparedTurn(
            before, target.request(body)[1], number, 0, first.input_tokens, first.requested_tokens
        )
        """The first turn, which needs no history."""

    def prepare(self, number: int, history: bytes) -> PreparedTurn:
        """Return a turn of a conversation of several, which repeats its `history`."""
        turn = self._conversation.turns[number]
        body = self._conversation.head + history + turn.messages + turn.tail
        return PreparedTurn(
            *self._target.request(body),
            self.number,
            number,
            turn.input_tokens,
            turn.requested_tokens,
        )

    def turn_messages(self, turn: int) -> bytes:
        """Return what a turn adds to the history."""
        return self._conversation.turns[turn].messages

    def turn_delay_ns(self, turn: int) -> int:
        """Return the pause before a turn."""
        return self._conversation.turns[turn].delay_ns

    @property
    def size(self) -> int:
        """Return the bytes held, roughly."""
        return len(self.first.after) * (2 if self.turns > 1 else 1)


class EntryCache:
    """Finds entries by phase and credit index; `request(block)` asks for a missing block."""

    def __init__(self, target: Target, request: Callable[[int], None]) -> None:
        self._target = target
        self.leaves_length_free = False
        """Requests go without the members that force an output length."""
        self._request = request
        self._blocks: OrderedDict[int, list[Entry]] = OrderedDict()
        self._asked: set[int] = set()
        self._bytes = 0
        self._is_full = False
        """A block had to go: the dataset does not fit, and from now on only what credits need is
        fetched."""
        self._before = target.request(b"")[0]
        self._starts = array("I", [0])
        """First entry of each block."""
        self._block_count = 0
        self._sizes = {int(Phase.WARMUP): (0, 1), int(Phase.PROFILING): (0, 1)}
        self._all: list[Entry] | None = None

    @property
    def is_started(self) -> bool:
        """Return whether the first block, and with it the dataset's shape, is there."""
        return self._block_count > 0

    @property
    def is_ready(self) -> bool:
        """Return whether everything that fits is there."""
        return self.is_started and not self._asked

    def put(self, block: DatasetBlock) -> None:
        """Take a block."""
        if not self.is_started:
            self._block_count = block.block_count
            self._starts = array("I", block.starts)
            own = block.warmup_entries
            rest = block.entry_count - own
            self._sizes[int(Phase.PROFILING)] = (0, rest)
            self._sizes[int(Phase.WARMUP)] = (rest, own) if own else (0, rest)
        self._asked.discard(block.block)
        if block.block in self._blocks:
            return
        entries = [
            Entry(block.first_entry + i, self._as_sent(conversation), self._target, self._before)
            for i, conversation in enumerate(block.conversations)
        ]
        self._blocks[block.block] = entries
        self._bytes += sum(entry.size for entry in entries)
        if len(self._blocks) == self._block_count:
            self._all = [entry for number in sorted(self._blocks) for entry in self._blocks[number]]
        while self._all is None and self._bytes > CACHE_BYTES and len(self._blocks) > 2:
            self._is_full = True
            _, dropped = self._blocks.popitem(last=False)
            self._bytes -= sum(entry.size for entry in dropped)

    def _as_sent(self, conversation: Conversation) -> Conversation:
        return without_forced_length(conversation) if self.leaves_length_free else conversation

    def fetch_what_fits(self) -> None:
        """Ask for the next missing block, while the cache is not full."""
        if self._is_full or self._bytes >= CACHE_BYTES:
            return
        for number in range(self._block_count or 1):
            if number not in self._blocks:
                self._ask(number)
                return

    def prefetch(self, phase: int, first_index: int, last_index: int) -> None:
        """Make sure that the entries of these credits are there or on their way."""
        if self._all is not None:
            return
        index = first_index
        while index <= last_index:
            index += self._touch(phase, index)

    def find(self, phase: int, index: int) -> Entry | None:
        """Return the entry that a credit sends. If it is not there yet, ask for it and return
        None."""
        first, count = self._sizes[phase]
        number = first + index % count
        if self._all is not None:
            return self._all[number]
        at = bisect_right(self._starts, number) - 1
        block = self._blocks.get(at)
        if block is None:
            self._ask(at)
            return None
        return block[number - self._starts[at]]

    def whole(self, phase: int) -> list[Entry] | None:
        """Return all entries of a phase, of which credit `index` sends `whole[index % len(whole)]`;
        None while, or where, not all of them are here."""
        if self._all is None:
            return None
        first, count = self._sizes[phase]
        return self._all[first : first + count]

    def _touch(self, phase: int, index: int) -> int:
        """Ask for the block of a credit, or keep it longer. Returns the number of credits from this
        one on that have no other block."""
        first, count = self._sizes[phase]
        number = first + index % count
        block = bisect_right(self._starts, number) - 1
        if block in self._blocks:
            self._blocks.move_to_end(block)
        else:
            self._ask(block)
        end = self._starts[block + 1] if block + 1 < len(self._starts) else first + count
        return max(1, min(end, first + count) - number)

    def _ask(self, block: int) -> None:
        if block not in self._asked:
            self._asked.add(block)
            self._request(block)
