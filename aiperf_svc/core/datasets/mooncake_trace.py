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
from aiperf_svc.core.datasets.fields import TurnFields, delay_ns, turn_of
from aiperf_svc.core.datasets.traces import TraceRow
from aiperf_svc.core.endpoints.base import Prompt

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
MEMBERS = frozenset(_Row.__struct_fields__)
"""Members that a row may have."""


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    for number, line in numbered(lines):
        place = f"{source}:{number}"
        row = decode_line(line, _decoder, place=place, expected=EXPECTED)
        try:
            yield TraceRow(
                place=place,
                timestamp=row.timestamp,
                input_length=row.input_length or 0,
                output_length=row.output_length,
                hash_ids=row.hash_ids,
                session=row.session_id,
                delay_ns=None if row.delay is None else delay_ns(row.delay),
                written=_written(row),
            )
        except ValueError as error:
            raise line_error(place, str(error), expected=EXPECTED) from None


def _written(row: _Row) -> Prompt | None:
    """Return the prompt that a row holds; None if it tells its length."""
    if row.tools or row.extra or row.message_mode:
        name = next(name for name in _REFUSED if getattr(row, name))
        raise ValueError(f"`{name}` is not supported")
    is_written = row.text_input is not None or row.messages is not None or row.payload is not None
    if row.input_length is not None and not is_written:
        return None
    given = [name for name in _PROMPTS if getattr(row, name) is not None]
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or "none"
        raise ValueError(f"needs one of {', '.join(_PROMPTS)}, found {found}")
    fields = TurnFields(text=row.text_input, messages=row.messages, payload=row.payload)
    return turn_of(fields).prompt
