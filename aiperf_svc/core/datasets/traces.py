"""Traces of real services: what a row says about a request, and how rows become prompts.

A reader of one format is one module with `rows(lines, source)`. A row tells lengths, not texts, so
the prompts are made of words (`block_texts`). The times of a trace are checked and not replayed:
the load decides when a request is sent, and the requests are sent in the order of the rows.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import cast

import msgspec

from aiperf_svc.core.datasets.base import (
    PromptConversation,
    PromptTurn,
    TokenCounter,
    default_id,
)
from aiperf_svc.core.datasets.block_texts import BlockTexts
from aiperf_svc.core.datasets.multi_turn import MAX_TURNS
from aiperf_svc.core.datasets.synthetic import MAX_INPUT_TOKENS
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

_BATCH = 64
"""Number of rows whose texts are made and counted together."""


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace."""

    place: str
    """Position `file:line`, for errors."""
    timestamp: float | None = None
    """Time of arrival in the unit of the format."""
    input_length: int = 0
    """Tokens of the prompt, unless `written` holds it."""
    output_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    """Names of the blocks of the prompt, from its start."""
    session: str | None = None
    """Rows of one session are the turns of one conversation."""
    delay_ns: int = 0
    """Pause after the end of the previous response of the session."""
    written: Prompt | None = None
    """The prompt, if the trace holds its text."""


def trace_prompts(
    rows: Iterable[TraceRow],
    *,
    block_size: int,
    seed: int,
    counter: TokenCounter | None,
    limit: int | None = None,
) -> tuple[list[PromptConversation], int]:
    """Return the first `limit` conversations of checked rows, and the number of rows left out, as
    they have no input or no output tokens.

    Raises DatasetError that names file and line.
    """
    used, left_out = _grouped(rows, limit)
    texts = BlockTexts(seed, block_size, counter)
    turns = _turns((row for group in used for row in group), texts, is_counted=counter is not None)
    entries = [
        PromptConversation(
            id=group[0].session or default_id(index),
            turns=tuple(next(turns) for _ in group),
            place=group[0].place,
        )
        for index, group in enumerate(used)
    ]
    return entries, left_out


def has_tokens(row: TraceRow) -> bool:
    """Return whether a row is a request that can be sent: it has input, and got an output."""
    return row.output_length != 0 and (row.written is not None or row.input_length > 0)


def checked(rows: Iterable[TraceRow], block_size: int) -> Iterator[TraceRow]:
    """Yield the rows. Raises DatasetError for times that go back and for impossible lengths."""
    latest = 0.0
    for row in rows:
        if row.timestamp is not None:
            if not 0 <= row.timestamp < float("inf"):
                raise DatasetError(
                    f"{row.place}: time {row.timestamp:g} is negative or no number; "
                    "expected times from 0 on"
                )
            if row.timestamp < latest:
                raise DatasetError(
                    f"{row.place}: time {row.timestamp:.16g} is before {latest:.16g} of an earlier "
                    "row; sort the file by time"
                )
            latest = row.timestamp
        _check_lengths(row, block_size)
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
    most = -(-row.input_length // block_size)
    if row.written is None and len(row.hash_ids) > most:
        raise DatasetError(
            f"{row.place}: {len(row.hash_ids):,} hash ids for {row.input_length:,} tokens, which "
            f"are {most:,} blocks of {block_size:,}; set dataset.block_size to that of the trace"
        )


def _grouped(rows: Iterable[TraceRow], limit: int | None) -> tuple[list[list[TraceRow]], int]:
    """Return the rows of each conversation, in the order of the first rows, and the number of rows
    left out. Without sessions, reading ends at the limit."""
    groups: list[list[TraceRow]] = []
    sessions: dict[str, list[TraceRow]] = {}
    left_out = 0
    for row in rows:
        is_full = limit is not None and len(groups) == limit
        if is_full and not sessions:
            break
        if not has_tokens(row):
            left_out += 1
            continue
        group = sessions.get(row.session) if row.session is not None else None
        if group is not None:
            _check_turn(group, row)
            group.append(row)
        elif not is_full:
            groups.append([row])
            if row.session is not None:
                sessions[row.session] = groups[-1]
    return groups, left_out


def _check_turn(group: list[TraceRow], row: TraceRow) -> None:
    for one in (group[0], row):
        if one.written is not None and not one.written.texts:
            raise DatasetError(
                f"{one.place}: a session of several rows with `messages` or `payload`; give each "
                "row the new turn only, as `text_input` or `input_length`"
            )
    if len(group) == MAX_TURNS:
        raise DatasetError(
            f"{row.place}: session {row.session!r} has more than {MAX_TURNS:,} turns; split it"
        )


def _turns(
    rows: Iterable[TraceRow], texts: BlockTexts, *, is_counted: bool
) -> Iterator[PromptTurn]:
    """Yield the turn of each row."""
    numbered_rows = enumerate(rows)
    while batch := list(islice(numbered_rows, _BATCH)):
        made = iter(
            texts.texts(
                [
                    (number, row.hash_ids, row.input_length)
                    for number, row in batch
                    if row.written is None
                ]
            )
        )
        for _, row in batch:
            is_made = row.written is None
            prompt = Prompt(texts=(next(made),)) if is_made else cast(Prompt, row.written)
            yield PromptTurn(
                msgspec.structs.replace(prompt, output_tokens=row.output_length),
                delay_ns=row.delay_ns,
                input_tokens=row.input_length if is_made and is_counted else -1,
            )
