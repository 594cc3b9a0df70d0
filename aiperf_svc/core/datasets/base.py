"""Types and functions shared by all dataset kinds: prompts before rendering, reading of lines,
counting of tokens, and seeds of random numbers.

A kind is one module with a pure `parse(lines, source)`. The adapter reads the file and passes its
numbered lines (or a JSON list's elements), so an error can name the position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from aiperf_svc.config.benchmark import SEEDS
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

if TYPE_CHECKING:
    import numpy as np

Lines = Iterable[tuple[int, bytes]]
"""Numbers (from 1) and bytes of lines, or of list elements with the line on which each begins."""

MS_NS = 10**6


class ChatTemplate(Protocol):
    """The template that turns messages into one text, as the model receives it."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = {},
    ) -> str:
        """Return the text, using additional template variables. Raises ConfigError for messages
        that the template refuses."""


class TokenCounter(Protocol):
    """A tokenizer. Special tokens, such as a beginning of sequence, are not added or counted."""

    template: ChatTemplate | None
    """Chat template, if the config asks for it."""

    @property
    def name(self) -> str:
        """Name for reports, as the user wrote it."""

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, faster than one by one."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""


class Unwritten(msgspec.Struct, frozen=True):
    """Content of a message whose text is generated from the seed."""

    tokens: int = 0
    """Length in tokens; 0: drawn."""


class PromptTurn(msgspec.Struct, frozen=True):
    """One request before rendering."""

    prompt: Prompt
    delay_ns: int = 0
    """Pause after the end of the previous response."""
    has_delay: bool = False
    """Whether the file states the pause, even if it is 0."""
    earliest_ns: int = 0
    """Time after the conversation's first due time before which the turn is not due."""
    input_tokens: int = -1
    """Exact number of tokens if known when the prompt is made; -1: unknown."""
    response: str = ""
    """Response in the file. Its length is the turn's output length, if it can be counted."""
    recorded: tuple[Mapping[str, Any], ...] = ()
    """The recorded response as messages of the chat API, for a recorded history."""
    spare_result: str = ""
    """Result for tool calls of the previous response that the dataset does not expect."""
    is_whole: bool = False
    """Whether the prompt already contains its history."""


class PromptConversation(msgspec.Struct, frozen=True):
    """One dataset entry before rendering."""

    id: str
    turns: tuple[PromptTurn, ...]
    place: str = ""
    """Position `file:line`, for errors."""


class Purpose(IntEnum):
    """Purposes of random numbers. Each has its own stream, so changing one setting leaves
    everything else unchanged. The numbers define the effect of a seed and never change."""

    INPUT_LENGTHS = 1
    OUTPUT_LENGTHS = 2
    WORDS = 3
    ORDER = 4
    BLOCKS = 5
    NUMBERS_OF_PASSAGES = 6
    PASSAGE_LENGTHS = 7
    PASSAGE_WORDS = 8
    MIX = 9
    TURNS = 10
    DELAYS = 11
    PREFIX_WORDS = 12
    GROUPS = 13
    WIDTHS = 14
    HEIGHTS = 15
    SOUND_LENGTHS = 16
    MEDIA = 17
    POOLS = 18
    CONTEXT_WORDS = 19
    PICTURE_FORMATS = 20
    PICTURE_FILES = 21
    SAMPLE_RATES = 22
    SAMPLE_DEPTHS = 23
    SOUND_FILES = 24
    RESULT_LENGTHS = 25
    RESULT_WORDS = 26
    RESULT_DELAYS = 27


_DATASET_KEY = 0xDA7A
"""Key that separates the dataset's streams from others with the same seed."""


_TEXT_PURPOSES = frozenset(
    (
        Purpose.WORDS,
        Purpose.BLOCKS,
        Purpose.PASSAGE_WORDS,
        Purpose.PREFIX_WORDS,
        Purpose.MEDIA,
        Purpose.CONTEXT_WORDS,
        Purpose.RESULT_WORDS,
    )
)
"""Purposes that determine what a server could find in a cache."""


def generator(seed: int, purpose: Purpose, *names: int) -> "np.random.Generator":
    """Return the stream of random numbers of one purpose, or of the item within it identified by
    `names`. The variant in a config's `prompt_seed` only affects texts: all variants have the same
    lengths and order."""
    # Imported here, because the runner uses other names of this module without numpy.
    import numpy as np

    if purpose not in _TEXT_PURPOSES:
        seed %= SEEDS
    key = (_DATASET_KEY, purpose, *names)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def default_id(index: int) -> str:
    """Return the name of an entry without a name."""
    return f"session_{index:06d}"


def decode_line(line: bytes, decoder: Any, *, place: str, expected: str) -> Any:
    """Decode one line of a file. Raises DatasetError naming position, fault and expectation."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise line_error(place, str(error), expected=expected) from None
    except RecursionError:
        raise line_error(place, "values nested too deeply", expected=expected) from None


def decoded(lines: Lines, source: str, decoder: Any, *, expected: str) -> Iterator[tuple[str, Any]]:
    """Yield position (`file:line`) and content of each nonempty line. Raises DatasetError like
    `decode_line`."""
    for number, line in numbered(lines):
        place = f"{source}:{number}"
        yield place, decode_line(line, decoder, place=place, expected=expected)


def parse_entries(
    written: Iterable[tuple[str, Any]],
    entry_of: Callable[[Any], tuple[str | int | None, tuple[PromptTurn, ...]]],
    *,
    limit: int | None,
    expected: str,
) -> tuple[list[PromptConversation], int]:
    """Parse the first `limit` usable entries of a file. `entry_of` returns the name, if any, and
    the turns; no turns mean that the entry is skipped. Returns the entries, and the number of
    skipped entries among them. Raises DatasetError if `entry_of` raises ValueError."""
    entries: list[PromptConversation] = []
    left_out = 0
    for place, each in written:
        try:
            name, turns = entry_of(each)
        except ValueError as error:
            raise line_error(place, str(error), expected=expected) from None
        if turns:
            name = str(name or default_id(len(entries)))
            entries.append(PromptConversation(id=name, turns=turns, place=place))
            if len(entries) == limit:
                break
        else:
            left_out += 1
    return entries, left_out


def line_error(place: str, wrong: str, *, expected: str) -> DatasetError:
    """Return an error about a file's content, in the common format."""
    return DatasetError(f"{place}: {wrong}; expected {expected}")


def numbered(lines: Lines) -> Iterable[tuple[int, bytes]]:
    """Yield the nonempty lines, without byte order mark and surrounding space."""
    for number, line in lines:
        text = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if text:
            yield number, text
