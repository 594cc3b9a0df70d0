"""Reads JSONL in the format of the Bailian traces: one request per line, its time in seconds.

A row describes a whole prompt. The turns of a chat share the hash ids of their history, so each row
is a separate request.
"""

from collections.abc import Iterator

import msgspec

from aiperf_svc.core.datasets.base import Lines, decoded
from aiperf_svc.core.datasets.mooncake_trace import HashIds
from aiperf_svc.core.datasets.traces import TraceRow

BLOCK_SIZE = 16
EXPECTED = (
    'an object such as {"timestamp": 61.1, "input_length": 521, "output_length": 132, '
    '"hash_ids": [1, 2]}'
)


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: HashIds = ()


_decoder = msgspec.json.Decoder(_Row)
MEMBERS = frozenset((*_Row.__struct_fields__, "chat_id", "parent_chat_id", "turn", "type"))
"""Members that a row may have. Those about chats are ignored, since rows share blocks anyway."""


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    for place, row in decoded(lines, source, _decoder, expected=EXPECTED):
        yield TraceRow(place=place, **msgspec.structs.asdict(row))
