"""Converts finished responses and their last fragments to METRIC_DTYPE rows, a column at a time."""

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.responses.reader import ResponseReader
from aiperf_svc.domain.request_ids import TARGET_SHIFT
from aiperf_svc.protocol.records import FRAGMENT_DTYPE, METRIC_DTYPE, UNCOUNTED_TOKENS, Rows

_FROM_RESPONSE: Final = (
    "first_token_wall_ns",
    "second_token_wall_ns",
    "first_output_wall_ns",
    "last_token_wall_ns",
    "receive_lag_ns",
    "ttft_uncertainty_ns",
    "last_uncertainty_ns",
    "bytes_in",
    "chunks",
    "reads",
    "reasoning_tokens",
    "usage_prompt_tokens",
    "usage_completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "spec_steps",
    "spec_drafted_tokens",
    "spec_accepted_tokens",
    "hidden_tokens",
    "text_bytes",
    "blank_tokens",
    "blank_lead_us",
    "outcome",
    "error",
    "finish_reason",
)
_FROM_FRAGMENT: Final = tuple(
    name
    for name in METRIC_DTYPE.names or ()
    if name in (FRAGMENT_DTYPE.names or ()) and name not in _FROM_RESPONSE
)


_row = struct.Struct(f"={len(_FROM_RESPONSE)}q")

ResponseColumns = NDArray[np.int64]
"""Results of finished readers, shape (responses, columns)."""


def response_columns(responses: int) -> ResponseColumns:
    return np.empty((responses, len(_FROM_RESPONSE)), dtype=np.int64)


def put_response(columns: ResponseColumns, place: int, reader: ResponseReader) -> None:
    """Write the results of a finished reader into `columns`."""
    first, gaps = reader.first_token_wall_ns, reader.gaps_ns
    reasoning = reader.usage_reasoning_tokens
    if reasoning <= 0 and reader.reasoning_bytes:
        reasoning = UNCOUNTED_TOKENS
    _row.pack_into(
        columns.data,
        place * _row.size,
        first,
        first + gaps[0] if gaps else 0,
        reader.first_output_wall_ns,
        reader.last_token_wall_ns,
        reader.receive_lag_ns,
        reader.ttft_uncertainty_ns,
        reader.last_uncertainty_ns,
        reader.bytes_in,
        len(gaps) + 1 if gaps else bool(first),
        reader.read_count,
        reasoning,
        reader.usage_prompt_tokens,
        reader.usage_completion_tokens,
        reader.usage_cached_tokens,
        reader.usage_cache_write_tokens,
        *reader.drafts,
        reader.hidden_tokens if reasoning > 0 else 0,
        reader.text_bytes + reader.reasoning_bytes,
        reader.blank_tokens,
        reader.blank_lead_us,
        reader.outcome,
        reader.error,
        reader.finish_reason,
    )


def metric_rows(fragments: Rows, responses: ResponseColumns, worker_rank: int) -> Rows:
    """Return rows for the last fragments of finished requests and the columns of their responses,
    in the same order. Output tokens are the server's numbers, see `set_tokens`."""
    rows = np.zeros(len(fragments), dtype=METRIC_DTYPE)
    for name in _FROM_FRAGMENT:
        rows[name] = fragments[name]
    write = fragments["write_wall_ns"]
    waited = fragments["connect_ns"] + fragments["tls_ns"]
    rows["start_wall_ns"] = np.where(write == 0, 0, write - waited)
    rows["worker"] = worker_rank
    rows["target"] = fragments["request_id"] >> np.uint64(TARGET_SHIFT)
    for column, name in enumerate(_FROM_RESPONSE):
        rows[name] = responses[:, column]
    return rows


def set_tokens(rows: Rows, readers: Sequence[ResponseReader], counter: TokenCounter | None) -> None:
    """Fill in `output_tokens`, `reasoning_tokens` and, if missing in the dataset,
    `input_tokens`.

    `output_tokens` are all generated tokens, including reasoning. With a `counter`, both are
    counted in the received text; otherwise they come from the server's usage. -1 remains without
    text or usage. The texts of several choices are counted separately. Only the server counts
    tokens without text; a `counter` adds them to its own count. If reasoning is hidden, its summary
    is not counted as tokens.
    """
    unknown = rows["input_tokens"] < 0
    if unknown.any():
        rows["input_tokens"][unknown] = rows["usage_prompt_tokens"][unknown]
    if counter is None:
        rows["output_tokens"] = rows["usage_completion_tokens"]
        return
    texts: list[str] = []
    ends = []
    for reader in readers:
        for kept in (reader.texts, reader.reasonings):
            texts += kept
            ends.append(len(texts))
    try:
        # One call for the whole batch, since a call costs the library more than a short text.
        counts = counter.count_batch(texts)
    except Exception:
        counts = _count_each(rows, readers, counter, texts, ends[1::2])
    totals = np.cumsum([0, *counts])[[0, *ends]]
    content, reasoning = np.diff(totals).reshape(-1, 2).T
    has_text = np.diff(np.cumsum([0, *map(bool, texts)])[[0, *ends]]).reshape(-1, 2).any(axis=1)
    hidden = rows["hidden_tokens"]
    reasoning = np.where(hidden > 0, hidden, reasoning)
    rows["output_tokens"] = np.where(has_text, content + reasoning + rows["blank_tokens"], -1)
    rows["reasoning_tokens"] = np.where(has_text, reasoning, -1)


def _count_each(
    rows: Rows,
    readers: Sequence[ResponseReader],
    counter: TokenCounter,
    texts: list[str],
    ends: Sequence[int],
) -> list[int]:
    """Return the tokens of each text if the text of some response cannot be counted. That response
    becomes an error without a text."""
    counts = [0] * len(texts)
    for index, (reader, begin, end) in enumerate(zip(readers, [0, *ends], ends, strict=False)):
        try:
            counts[begin:end] = counter.count_batch(texts[begin:end])
        except Exception as error:
            reader.fail_counting(error)
            rows["outcome"][index], rows["error"][index] = reader.outcome, reader.error
            texts[begin:end] = [""] * (end - begin)
    return counts
