"""The dataset: worker and timing manager to dataset manager and back."""

from aiperf_svc.protocol.messages.base import Message, Value


class Stream(Value, frozen=True):
    """One agent of a session tree: requests that follow each other."""

    id: str
    parent: int = -1
    """Number of the stream that spawned it; -1 for the root."""


class PlannedRequest(Value, frozen=True):
    """When a request of a session tree may be sent. It only waits for requests before it."""

    after: tuple[int, ...] = ()
    """Numbers of the requests whose ends it waits for."""
    delay_ns: int = 0
    """Pause after the last of these ends, or after the start of the tree if there are none."""
    start_ns: int = -1
    """Recorded time of the request from the start of the tree; -1: unknown."""
    stream: int = 0


class Turn(Value, frozen=True):
    """One request of a conversation. The body is `head + history + messages + tail`; of a session
    tree, it is `pieces + tail`."""

    messages: bytes
    """JSON that this turn adds; for endpoints without conversations, the whole body."""
    tail: bytes = b""
    delay_ns: int = 0
    """Pause after the end of the previous response."""
    earliest_ns: int = 0
    """Time after the conversation's first due time before which the turn is not due."""
    input_tokens: int = -1
    """Number of input tokens, exact with a tokenizer; -1: unknown."""
    requested_tokens: int = -1
    """Output tokens that the request asks for; -1: it sets no number."""
    pieces: bytes = b""
    """Session tree: numbers of the pieces of the body, uint32 little-endian. Number
    `RESPONSE_PIECE + i` stands for the live response `Conversation.live[i]`."""
    one_token_tail: bytes = b""
    """Tail of the same request for one output token; only if a warmup sends such requests."""
    plan: PlannedRequest | None = None
    """Session tree: which requests this one waits for, and for how long."""
    tool_results: tuple[bytes, ...] = ()
    """Results for the tool calls of the previous response, each as JSON text."""
    spare_result: bytes = b""
    """Result for tool calls beyond `tool_results`, as JSON text."""
    recorded: bytes = b""
    """Messages of the dataset that enter the history instead of the response."""
    is_whole: bool = False
    """Whether `messages` already contain the history."""


RESPONSE_PIECE = 2**31
"""Lowest number of a piece that stands for a live response."""


class LiveResponse(Value, frozen=True):
    """The live response of an earlier request in a prompt, and the results for its tool calls."""

    request: int
    tool_results: tuple[bytes, ...] = ()
    """Texts in JSON, in the order of the calls."""


class Conversation(Value, frozen=True):
    id: str
    turns: tuple[Turn, ...]
    head: bytes = b""
    streams: tuple[Stream, ...] = ()
    """Streams of a session tree; empty: the turns follow each other."""
    pieces: tuple[bytes, ...] = ()
    """Parts of the bodies of a session tree, each once."""
    live: tuple[LiveResponse, ...] = ()
    """Live responses in the prompts of a session tree, each once."""


class DatasetBlockRequested(Message, frozen=True):
    block: int


class DatasetBlock(Message, frozen=True):
    """Entries `first_entry`, `first_entry + 1`, … of the dataset."""

    block: int
    block_count: int
    entry_count: int
    warmup_entries: int
    """Number of entries at the end that only the warmup uses; profiling uses the others."""
    first_entry: int
    conversations: tuple[Conversation, ...]
    starts: bytes = b""
    """First entry of each block, uint32 little-endian; in block 0 only. Blocks differ in length."""
    is_streamed: bool = False
    """The dataset is larger than a worker's cache, and blocks are made on request."""


class DatasetShapeRequested(Message, frozen=True):
    """Asks for the number of turns of each entry; sent by the timing manager, and for session
    trees by the records manager."""


class DatasetShape(Message, frozen=True):
    """Shape of the dataset, from which the timing manager counts requests."""

    entry_count: int
    warmup_entries: int
    turns: bytes
    """Number of turns of each entry, uint16 little-endian; empty if every entry has one turn."""
    due_ns: bytes = b""
    """Fixed schedule: when each entry of profiling is due from the start of a phase, int64
    little-endian and ascending."""
    streams: bytes = b""
    """Session trees: for each request of each entry the first request of its stream, of the stream
    that spawned it and of the root, and the depth of its stream, uint16 little-endian."""
    first_turns: bytes = b""
    """Load with a fixed number of requests that begins inside session trees: remaining requests of
    each user's first tree, uint16 little-endian."""


class ForcedLengthAsked(Message, frozen=True):
    """Asks whether requests may force their output length, or reports the target's response to such
    a request; sent by a worker."""

    finding: str = ""
    """A `core.endpoints.forced_length.Finding`; empty: the message only asks."""
    said: str = ""
    """Message of the target."""
    requests: int = 0
    """Number of requests that the worker sent for this test."""


class ForcedLengthDecided(Message, frozen=True):
    """Tells a worker how to treat the forced output length."""

    decision: str
    """A `core.endpoints.forced_length.Decision`."""
