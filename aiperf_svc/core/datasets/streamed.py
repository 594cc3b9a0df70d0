"""A trace that does not fit into memory: its requests are made in blocks, on demand."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.assembly import (
    Lengths,
    Source,
    draw_output_lengths,
    entry_order,
    finish,
    statistics,
    warmup_share,
)
from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.datasets.cache_bust import with_markers
from aiperf_svc.core.datasets.trace_prompts import TracePrompts
from aiperf_svc.protocol.messages.dataset import Conversation
from aiperf_svc.protocol.messages.reports import DatasetReport

BLOCK_BYTES = 2**18
"""Approximate size of a block. A worker sends nothing while it decodes a block."""
BLOCK_ENTRIES = 64


class StreamedDataset:
    """All entries of a run, made block by block. Only the warmup uses the last
    `warmup_entries`."""

    streams = b""

    def __init__(
        self,
        config: BenchmarkConfig,
        prompts: TracePrompts,
        source: Source,
        counter: TokenCounter | None,
        *,
        close: Callable[[], None],
    ) -> None:
        """`close` is called when no more blocks are needed. Raises DatasetError if there is no
        entry."""
        self.close = close
        self._config = config
        self._prompts = prompts
        self._counter = counter
        self.entry_count = len(prompts)
        self.warmup_entries = warmup_share(config, source, self.entry_count)
        self._order = entry_order(config, self.entry_count, self.warmup_entries)
        turns = prompts.turn_counts[self._order]
        self._first_turns = np.append(0, np.cumsum(turns))
        self._lengths = draw_output_lengths(config, int(self._first_turns[-1]))
        self.starts = starts_of(prompts.expected_bytes[self._order])
        self.turns = b"" if (turns == 1).all() else turns.astype("<u2").tobytes()
        self.due_ns = prompts.due_ns
        self.report = self._report(source)

    @property
    def asks_lengths(self) -> bool:
        """Whether a request asks for a number of output tokens."""
        return self.report.output_tokens is not None

    def block(self, number: int) -> tuple[Conversation, ...]:
        """Make the entries of a block. Raises DatasetError that names file and line."""
        ends = np.append(self.starts, self.entry_count)
        first, end = int(ends[number]), int(ends[number + 1])
        numbers = self._order[first:end].tolist()
        entries = with_markers(
            self._prompts.entries(numbers),
            numbers,
            self._config,
            self._counter,
        )
        lengths = self._lengths
        if lengths is not None:
            lengths = lengths[self._first_turns[first] : self._first_turns[end]]
        made = finish(self._config, entries, lengths, self._counter, first_entry=first)
        return made.conversations

    def _report(self, source: Source) -> DatasetReport:
        """Describe the dataset without its requests, so bytes and checksum are unknown."""
        turns = self._prompts.turns_of(self._order)
        inputs, outputs = self._prompts.input_tokens[turns], self._prompts.output_tokens[turns]
        if self._lengths is not None:
            outputs = np.where(outputs < 0, self._lengths, outputs)
        # The trace's counts exclude the chat template.
        is_templated = self._config.tokenizer.apply_chat_template
        is_counted = self._counter is not None and not is_templated
        return DatasetReport(
            kind=self._config.dataset.kind.value,
            source=source.name,
            source_sha256=source.sha256 or None,
            sha256=None,
            entries=self.entry_count,
            distinct_entries=None,
            turns=len(inputs),
            left_out=source.left_out,
            bytes=None,
            tokenizer=self._counter.name if self._counter is not None else None,
            input_tokens=statistics(inputs[inputs >= 0]) if is_counted else None,
            output_tokens=statistics(outputs[outputs >= 0]),
            warmup_entries=self.warmup_entries,
            has_random_text=source.has_random_text,
        )


def starts_of(sizes: Lengths) -> NDArray[np.uint32]:
    """Return the first entry of each block. An entry above `BLOCK_BYTES` is a separate block."""
    ends = np.cumsum(sizes)
    starts, first = [], 0
    while first < len(sizes):
        starts.append(first)
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + BLOCK_BYTES, side="right"))
        first = min(max(fitting, first + 1), first + BLOCK_ENTRIES)
    return np.array(starts, dtype=np.uint32)
