"""Traces of real services: the content of a row.

A reader of one format is one module with `rows(lines, source)`. All rows are read once, in order,
and checked. `trace_index` records their positions, and `trace_prompts` turns them into requests.
Most rows have lengths instead of texts, so their prompts are words (`block_texts`). Only a fixed
schedule uses the times; any other load sends the requests in the order of the rows.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aiperf_svc.core.datasets.synthetic import MAX_INPUT_TOKENS
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    """Position `file:line`, for errors."""
    timestamp: float | None = None
    """Time of arrival in the unit of the format."""
    input_length: int = 0
    """Tokens of the prompt, unless `written` contains it."""
    output_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    """Names of the blocks of the prompt, from its start."""
    session: str | None = None
    """Rows of the same session are the turns of one conversation."""
    delay_ns: int | None = None
    """Pause after the end of the previous response of the session."""
    written: Prompt | None = None
    """The prompt, if the trace holds its text."""


def has_tokens(row: TraceRow) -> bool:
    """Return whether a row is a usable request: it has input and output tokens."""
    return row.output_length != 0 and (row.written is not None or row.input_length > 0)


def checked(rows: Iterable[TraceRow], block_size: int) -> Iterator[TraceRow]:
    """Yield the rows. Raises DatasetError for decreasing times and for impossible lengths."""
    latest = 0.0
    for row in rows:
        if row.timestamp is not None:
            if not 0 <= row.timestamp < float("inf"):
                raise DatasetError(
                    f"{row.place}: time {row.timestamp:g} is negative or no number; "
                    "expected times of at least 0"
                )
            if row.timestamp < latest:
                raise DatasetError(
                    f"{row.place}: time {row.timestamp:.16g} is before {latest:.16g} of an earlier "
                    "row; sort the file by time"
                )
            latest = row.timestamp
        _check_lengths(row, block_size)
        yield row


def from_first(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Yield the rows with times relative to the first row, for a trace whose times are dates."""
    first: float | None = None
    for row in rows:
        if row.timestamp is not None:
            first = row.timestamp if first is None else first
            row = msgspec.structs.replace(row, timestamp=row.timestamp - first)
        yield row


def limited(
    rows: Iterable[TraceRow], max_input_tokens: int | None, max_output_tokens: int | None
) -> Iterator[TraceRow]:
    """Yield the rows within limits. A prompt that is too long loses its tokens, so the row is
    skipped; a response that is too long is cut. A prompt with text in the trace has no stated
    length and is kept."""
    for row in rows:
        if max_input_tokens is not None and row.input_length > max_input_tokens:
            row = msgspec.structs.replace(row, input_length=0)
        if max_output_tokens is not None and (row.output_length or 0) > max_output_tokens:
            row = msgspec.structs.replace(row, output_length=max_output_tokens)
        yield row


def _check_lengths(row: TraceRow, block_size: int) -> None:
    if not 0 <= row.input_length <= MAX_INPUT_TOKENS:
        raise DatasetError(
            f"{row.place}: a prompt of {row.input_length:,} tokens; expected 0 to "
            f"{MAX_INPUT_TOKENS:,}"
        )
    if row.output_length is not None and not 0 <= row.output_length < 2**31:
        raise DatasetError(
            f"{row.place}: a response of {row.output_length:,} tokens; expected 0 to {2**31 - 1:,}"
        )
    max_blocks = -(-row.input_length // block_size)
    if row.written is None and len(row.hash_ids) > max_blocks:
        raise DatasetError(
            f"{row.place}: {len(row.hash_ids):,} hash ids for {row.input_length:,} tokens, where "
            f"blocks of {block_size:,} are {max_blocks:,}; set dataset.block_size to that of the "
            "trace"
        )
