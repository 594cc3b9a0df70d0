"""What all dataset kinds have in common: prompts before they are rendered, the reading of lines,
the counting of tokens, and the seeds of everything that is drawn.

A kind is one module with a pure `parse(lines, source)`; the adapter reads the file and gives its
lines (or a JSON list's elements) with their numbers, so that an error can name the place.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

import msgspec
import numpy as np

from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

Lines = Iterable[tuple[int, bytes]]
"""Numbers (from 1) and bytes of lines, or of list elements with the line on which each begins."""

MS_NS = 10**6


class TokenCounter(Protocol):
    """A tokenizer. Special tokens, such as a beginning of sequence, are not added or counted."""

    @property
    def name(self) -> str:
        """For reports: what the user wrote."""

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text; the fast way."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""


class PromptTurn(msgspec.Struct, frozen=True):
    """One request before it is rendered."""

    prompt: Prompt
    delay_ns: int = 0
    """Pause after the end of the previous response."""
    input_tokens: int = -1
    """When the maker of the prompt already knows it exactly."""
    response: str = ""
    """The file's own response: its length is the turn's output length, when that can be counted."""


class PromptConversation(msgspec.Struct, frozen=True):
    """One dataset entry before it is rendered."""

    id: str
    turns: tuple[PromptTurn, ...]
    place: str = ""
    """`file:line`, for errors."""


class Purpose(IntEnum):
    """What random numbers are drawn for. Each has a stream of its own, so that a change of one
    setting leaves everything else the same; numbers are part of what a seed means."""

    INPUT_LENGTHS = 1
    OUTPUT_LENGTHS = 2
    WORDS = 3
    ORDER = 4


_DATASET_KEY = 0xDA7A
"""Sets the dataset's streams apart from others that start from the same seed."""


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """The stream of random numbers of one purpose."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DATASET_KEY, purpose)))


def default_id(index: int) -> str:
    """Name of an entry that has none of its own."""
    return f"session_{index:06d}"


def decode_line(line: bytes, decoder: Any, *, place: str, expected: str) -> Any:
    """Decodes one line of a file; raises DatasetError that names place, fault and expectation."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise line_error(place, str(error), expected=expected) from None


def line_error(place: str, wrong: str, *, expected: str) -> DatasetError:
    """The one form of errors about a file's content."""
    return DatasetError(f"{place}: {wrong}; expected {expected}")


def numbered(lines: Lines) -> Iterable[tuple[int, bytes]]:
    """Lines that say something: without a byte order mark, surrounding space and empty ones."""
    for number, line in lines:
        text = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if text:
            yield number, text
