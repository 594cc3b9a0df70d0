"""Parses JSONL with one prompt per line: an object (see `fields`) or a plain JSON string."""

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    decode_line,
    default_id,
    line_error,
    numbered,
)
from aiperf_svc.core.datasets.fields import PROMPT_MEMBERS, TurnFields, turn_of
from aiperf_svc.core.endpoints.base import Prompt

EXPECTED = f'a JSON string or an object with {PROMPT_MEMBERS}, such as {{"text": "Hello"}}'

_decoder = msgspec.json.Decoder(str | TurnFields)


def parse(
    lines: Lines, source: str, *, limit: int | None = None
) -> tuple[list[PromptConversation], int]:
    """Parse the first `limit` entries of a file. Returns them and the number of skipped ones, which
    is 0.

    Raises DatasetError that names file and line.
    """
    entries: list[PromptConversation] = []
    for number, line in numbered(lines):
        if limit is not None and len(entries) == limit:
            break
        place = f"{source}:{number}"
        fields = decode_line(line, _decoder, place=place, expected=EXPECTED)
        name = default_id(len(entries))
        if isinstance(fields, str):
            if not fields:
                raise line_error(place, "the prompt is empty", expected=EXPECTED)
            turn = PromptTurn(Prompt(texts=(fields,)))
        else:
            try:
                turn = turn_of(fields)
            except ValueError as error:
                raise line_error(place, str(error), expected=EXPECTED) from None
            name = fields.session_id or str(fields.id or name)
        entries.append(PromptConversation(id=name, turns=(turn,), place=place))
    return entries, 0
