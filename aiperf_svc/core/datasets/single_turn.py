"""Parses JSONL with one prompt per line: an object (see `fields`) or a plain JSON string."""

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    decoded,
    parse_entries,
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
    written = decoded(lines, source, _decoder, expected=EXPECTED)
    return parse_entries(written, _entry, limit=limit, expected=EXPECTED)


def _entry(fields: str | TurnFields) -> tuple[str | int | None, tuple[PromptTurn, ...]]:
    if isinstance(fields, TurnFields):
        return fields.session_id or fields.id, (turn_of(fields),)
    if not fields:
        raise ValueError("the prompt is empty")
    return None, (PromptTurn(Prompt(texts=(fields,))),)
