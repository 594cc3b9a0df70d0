"""Holds the dataset in a worker: entries as finished HTTP request bytes, fetched in blocks.

A dataset that fits into `CACHE_BYTES` is fetched completely before the run. Credits use a larger
dataset in order, so the next blocks are fetched in advance and dropped after their last credit.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from aiperf_svc.adapters.inference.request import PreparedTurn
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.core.endpoints.forced_length import without_forced_length
from aiperf_svc.core.load.entry_order import EntryOrder
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.dataset import (
    RESPONSE_PIECE,
    Conversation,
    DatasetBlock,
    PlannedRequest,
    Turn,
)

CACHE_BYTES = 256 * 2**20
"""Maximum request bytes that one worker keeps."""
AHEAD_BYTES = 8 * 2**20
"""Request bytes that a worker prefetches if the dataset does not fit."""


class Entry:
    """One conversation, ready to send."""

    __slots__ = (
        "_conversation",
        "_target",
        "number",
        "only",
        "turns",
    )

    def __init__(
        self, number: int, conversation: Conversation, target: Target, before: bytes
    ) -> None:
        """All entries start with the bytes `before`, which are stored once."""
        self.number = number
        self.turns = len(conversation.turns)
        self._conversation = conversation
        self._target = target
        if self.turns > 1:
            return
        # The parts would store the prompt twice.
        self._conversation = Conversation("", ())
        only = conversation.turns[0]
        body = conversation.head + only.messages + only.tail
        self.only = PreparedTurn(
            before, target.request(body)[1], number, 0, only.input_tokens, only.requested_tokens
        )
        """The request of an entry with one turn. A conversation has none."""

    def prepare(
        self, number: int, history: Sequence[bytes], session_id: bytes, issued: bytes = b""
    ) -> PreparedTurn:
        """Return a turn of a conversation with the messages of its `history`, and with the header
        that the target issued for it."""
        turn = self._conversation.turns[number]
        # A turn with nothing but tool results adds no messages to the history.
        own = (turn.messages,) if turn.messages else ()
        messages = own if turn.is_whole else (*history, *own)
        body = b"%b%b%b" % (self._conversation.head, b",".join(messages), turn.tail)
        return PreparedTurn(
            *self._target.session_request(body, session_id, issued=issued),
            self.number,
            number,
            turn.input_tokens,
            turn.requested_tokens,
        )

    def turn(self, number: int) -> Turn:
        return self._conversation.turns[number]

    @property
    def size(self) -> int:
        """Return the approximate number of bytes held."""
        if self.turns == 1:
            return len(self.only.after)
        turns = self._conversation.turns
        return len(self._conversation.head) + sum(
            len(turn.messages) + len(turn.tail) for turn in turns
        )


class TreeEntry(Entry):
    """A session tree, ready to send: its requests are assembled when they are sent."""

    __slots__ = ("conversation", "first_of_stream", "live", "plans", "target")

    def __init__(self, number: int, conversation: Conversation, target: Target) -> None:
        self.number = number
        self.turns = len(conversation.turns)
        self.conversation = conversation
        self.target = target
        self.plans = tuple(turn.plan or PlannedRequest() for turn in conversation.turns)
        self.first_of_stream: dict[int, int] = {}
        """First request of each stream, which determines the stream's id."""
        for index, plan in enumerate(self.plans):
            self.first_of_stream.setdefault(plan.stream, index)
        self.live: dict[int, list[int]] = {}
        """Positions in `conversation.live` of the response of each request."""
        for index, each in enumerate(conversation.live):
            self.live.setdefault(each.request, []).append(index)

    def prepare_request(
        self,
        number: int,
        responses: Mapping[int, bytes],
        session_id: bytes,
        parent_id: bytes,
        *,
        issued: bytes,
        is_one_token: bool,
    ) -> PreparedTurn:
        """Return a request, with the live responses in its prompt by their positions in
        `conversation.live`, and with the ids of its agent and parent agent, if any. With one output
        token, the request is otherwise the same."""
        turn, pieces = self.conversation.turns[number], self.conversation.pieces
        parts = [
            pieces[each] if each < RESPONSE_PIECE else responses[each - RESPONSE_PIECE]
            for each in array("I", turn.pieces)
        ]
        parts.append(turn.one_token_tail if is_one_token else turn.tail)
        return PreparedTurn(
            *self.target.session_request(b"".join(parts), session_id, parent_id, issued),
            self.number,
            number,
            turn.input_tokens,
            1 if is_one_token else turn.requested_tokens,
        )

    @property
    def size(self) -> int:
        """Return the approximate number of bytes held."""
        return sum(map(len, self.conversation.pieces)) + sum(
            len(turn.pieces) + len(turn.tail) for turn in self.conversation.turns
        )


class EntryCache:
    """Finds entries by phase and credit index; `request(block)` asks for a missing block."""

    def __init__(
        self,
        target: Target,
        request: Callable[[int], None],
        order_of: Callable[[int], EntryOrder | None] = lambda count: None,
    ) -> None:
        """`order_of` returns the order of the entries if it is not the dataset's."""
        self._target = target
        self._order_of = order_of
        self.leaves_length_free = False
        """Whether requests omit the members that force an output length."""
        self._request = request
        self._blocks: dict[int, list[Entry]] = {}
        self._requested: set[int] = set()
        self._bytes = 0
        self._max_bytes = CACHE_BYTES
        """Bytes up to which blocks are fetched."""
        self._at = 0
        """Block of the last requested credit."""
        self._before = target.request(b"")[0]
        self._starts = array("I", [0])
        """First entry of each block."""
        self._block_count = 0
        self._sizes = {int(Phase.WARMUP): (0, 1), int(Phase.PROFILING): (0, 1)}
        self._orders: dict[int, EntryOrder | None] = {}
        """The order of entries by phase."""
        self._all: list[Entry] | None = None

    @property
    def is_started(self) -> bool:
        """Return whether the first block, which describes the dataset, has arrived."""
        return self._block_count > 0

    @property
    def is_ready(self) -> bool:
        """Return whether all blocks that fit have arrived."""
        return self.is_started and not self._requested

    def put(self, block: DatasetBlock) -> None:
        if not self.is_started:
            self._block_count = block.block_count
            self._starts = array("I", block.starts)
            own = block.warmup_entries
            rest = block.entry_count - own
            self._sizes[int(Phase.PROFILING)] = (0, rest)
            self._sizes[int(Phase.WARMUP)] = (rest, own) if own else (0, rest)
            self._orders = {
                phase: self._order_of(count) for phase, (_, count) in self._sizes.items()
            }
            if block.is_streamed and not block.conversations[0].streams:
                # Many session trees are started at the same time.
                self._max_bytes = AHEAD_BYTES
        self._requested.discard(block.block)
        if block.block in self._blocks:
            return
        entries = [
            self._entry(block.first_entry + i, self._as_sent(conversation))
            for i, conversation in enumerate(block.conversations)
        ]
        self._blocks[block.block] = entries
        self._bytes += sum(entry.size for entry in entries)
        if len(self._blocks) == self._block_count:
            self._all = [entry for number in sorted(self._blocks) for entry in self._blocks[number]]
        elif self._bytes >= self._max_bytes:
            self._max_bytes = min(self._max_bytes, AHEAD_BYTES)

    def _entry(self, number: int, conversation: Conversation) -> Entry:
        if conversation.streams:
            return TreeEntry(number, conversation, self._target)
        return Entry(number, conversation, self._target, self._before)

    def _as_sent(self, conversation: Conversation) -> Conversation:
        return without_forced_length(conversation) if self.leaves_length_free else conversation

    def fetch_fitting(self) -> None:
        """Request the next missing block if there is room for it or it is needed next."""
        if self._requested:
            return
        count = self._block_count or 1
        for ahead in range(count):
            number = (self._at + ahead) % count
            if number not in self._blocks:
                if self._bytes < self._max_bytes or ahead <= 1:
                    self._ask(number)
                return

    def find(self, phase: int, index: int) -> Entry | None:
        """Return the entry that a credit sends; None if it has not arrived, after requesting it."""
        first, count = self._sizes[phase]
        order = self._orders.get(phase)
        number = first + (index % count if order is None else order.entry(index))
        if self._all is not None:
            return self._all[number]
        at = bisect_right(self._starts, number) - 1
        if at != self._at:
            self._move_window(at)
        block = self._blocks.get(at)
        if block is None:
            self._ask(at)
            return None
        return block[number - self._starts[at]]

    def whole(self, phase: int) -> list[Entry] | None:
        """Return all entries of a phase, in which credit `index` sends `whole[index % len(whole)]`.
        None if some are missing or the phase has another order."""
        if self._all is None or self._orders[phase] is not None:
            return None
        first, count = self._sizes[phase]
        return self._all[first : first + count]

    def _move_window(self, block: int) -> None:
        """Drop the blocks before the credits and prefetch the next ones."""
        self._at = block
        count = self._block_count
        for number in [n for n in self._blocks if (n - block) % count > count // 2]:
            self._bytes -= sum(entry.size for entry in self._blocks.pop(number))
        if block in self._blocks:
            self.fetch_fitting()

    def _ask(self, block: int) -> None:
        if block not in self._requested:
            self._requested.add(block)
            self._request(block)
