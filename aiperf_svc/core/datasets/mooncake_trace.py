"""Reads JSONL in the format of the Mooncake traces: one request per line.

timestamp       milliseconds
input_length    tokens of a prompt that is made; or the prompt as text_input, messages, payload
output_length   most tokens of the response
hash_ids        names of the prompt's blocks
session_id      rows of one session are turns of one conversation; each holds the new turn only
delay           milliseconds after the previous response of the session
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from aiperf_svc.core.datasets.base import Lines, decode_line, line_error, numbered
from aiperf_svc.core.datasets.fields import TurnFields, turn_of
from aiperf_svc.core.datasets.traces import TraceRow

BLOCK_SIZE = 512
EXPECTED = 'an object such as {"timestamp": 0, "input_length": 655, "output_length": 52}'

HashIds = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class _Row(msgspec.Struct):
    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: HashIds = ()
    text_input: str | None = None
    messages: list[dict[str, Any]] | None = None
    payload: dict[str, Any] | None = None
    session_id: str | None = None
    delay: float | None = None
    tools: Any = None
    extra: Any = None
    message_mode: Any = None


_PROMPTS = ("input_length", "text_input", "messages", "payload")
_REFUSED = ("tools", "extra", "message_mode")
_decoder = msgspec.json.Decoder(_Row)


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    for number, line in numbered(lines):
        place = f"{source}:{number}"
        written = decode_line(line, _decoder, place=place, expected=EXPECTED)
        try:
            yield _row(written, place)
        except ValueError as error:
            raise line_error(place, str(error), expected=EXPECTED) from None


def _row(row: _Row, place: str) -> TraceRow:
    for name in _REFUSED:
        if getattr(row, name):
            raise ValueError(f"`{name}` is not supported")
    given = [name for name in _PROMPTS if getattr(row, name) is not None]
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or "none"
        raise ValueError(f"needs one of {', '.join(_PROMPTS)}, found {found}")
    fields = TurnFields(
        text=row.text_input, messages=row.messages, payload=row.payload, delay=row.delay
    )
    is_made = row.input_length is not None
    turn = turn_of(TurnFields(text=" ", delay=row.delay) if is_made else fields)
    return TraceRow(
        place=place,
        timestamp=row.timestamp,
        input_length=row.input_length or 0,
        output_length=row.output_length,
        hash_ids=row.hash_ids,
        session=row.session_id,
        delay_ns=turn.delay_ns,
        written=None if is_made else turn.prompt,
    )
