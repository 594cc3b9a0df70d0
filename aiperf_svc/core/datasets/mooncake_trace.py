"""Reads JSONL in the format of the Mooncake traces: one request per line.

timestamp       milliseconds
input_length    tokens of a generated prompt; or the prompt as text_input, messages, payload
output_length   maximum tokens of the response
hash_ids        names of the prompt's blocks
session_id      rows of one session are turns of one conversation; each has only the new turn,
                unless it has messages or a payload, which are complete
delay           milliseconds after the previous response of the session
tools           definitions of tools, beside messages; beside text_input without session_id
extra           members of the request's body in addition to messages or text_input
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from aiperf_svc.core.datasets.base import Lines, decoded, line_error
from aiperf_svc.core.datasets.fields import TurnFields, delay_ns, turn_of
from aiperf_svc.core.datasets.session_trees import message_problem
from aiperf_svc.core.datasets.traces import TraceRow
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.json_objects import Json

BLOCK_SIZE = 512
EXPECTED = 'an object such as {"timestamp": 0, "input_length": 655, "output_length": 52}'

HashIds = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class _Row(msgspec.Struct):
    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: HashIds = ()
    text_input: str | None = None
    messages: list[Json] | None = None
    payload: Json | None = None
    session_id: str | None = None
    delay: float | None = None
    tools: list[Json] | None = None
    extra: Json | None = None
    message_mode: Any = None


_PROMPTS = ("input_length", "text_input", "messages", "payload")
_decoder = msgspec.json.Decoder(_Row)
MEMBERS = frozenset(_Row.__struct_fields__)
"""Members that a row may have."""


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    for place, row in decoded(lines, source, _decoder, expected=EXPECTED):
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
    """Return the prompt in a row; None if the row only has a length."""
    if row.message_mode:
        raise ValueError("`message_mode` is not supported")
    is_written = row.text_input is not None or row.messages is not None or row.payload is not None
    members = (row.extra or {}) | ({"tools": row.tools} if row.tools else {})
    if members and row.messages is None and row.text_input is None:
        raise ValueError("`tools` and `extra` need `messages` or `text_input`")
    if row.input_length is not None and not is_written:
        return None
    present = [name for name in _PROMPTS if getattr(row, name) is not None]
    if len(present) != 1:
        found = " and ".join(f"`{name}`" for name in present) or "none"
        raise ValueError(f"needs one of {', '.join(_PROMPTS)}, found {found}")
    if row.messages and (problem := message_problem(row.messages)):
        raise ValueError(problem)
    fields = TurnFields(text=row.text_input, messages=row.messages, payload=row.payload)
    prompt = turn_of(fields).prompt
    if not members:
        return prompt
    if row.messages is None and row.session_id is not None:
        raise ValueError(
            "`tools` and `extra` make `text_input` a separate request without the earlier turns "
            "of its `session_id`; write complete `messages`"
        )
    return msgspec.structs.replace(prompt, members=members)
