"""A response of the fuzz server and the truth about it."""

from dataclasses import dataclass
from enum import StrEnum


class Truth(StrEnum):
    """How a client must record a response."""

    GOOD = "good"
    BAD = "bad"
    EITHER = "either"


class Ending(StrEnum):
    """What the server does with the connection after its last byte."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"


@dataclass(frozen=True)
class Reply:
    """One response."""

    kind: str
    truth: Truth
    parts: tuple[tuple[float, bytes], ...]
    """Each part is written after a pause in seconds."""
    ending: Ending = Ending.KEEP
    chunks: int = -1
    """Number of content events in a good stream. -1 if it is not a stream."""
    tokens: int = -1
    """Completion tokens in its usage. -1 without usage."""

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join(part for _, part in self.parts)
