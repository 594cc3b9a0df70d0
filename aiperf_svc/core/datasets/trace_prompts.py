"""Makes the prompts of a trace's entries on demand, from the lines of their rows."""

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn, default_id
from aiperf_svc.core.datasets.block_texts import BlockTexts
from aiperf_svc.core.datasets.trace_index import Line, TraceIndex, is_whole
from aiperf_svc.core.datasets.traces import TraceRow
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.load.fixed_schedule import due_times

_TOKEN_BYTES = 6
"""Approximate bytes of a word in a generated prompt."""
_BODY_BYTES = 200
"""Approximate bytes of a request besides its prompt."""

ReadRows = Callable[[Sequence[Line]], list[TraceRow]]
Int64s = NDArray[np.int64]


class TracePrompts:
    """The entries of a trace, followed by those that only the warmup sends.

    A replay sends each row once, and its warmup must not put the prefixes of rows into a cache. So
    the warmup has its own prompts: the lengths of the first rows, with other words.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        index: TraceIndex,
        read: ReadRows,
        texts: BlockTexts,
        *,
        warmup_entries: int,
    ) -> None:
        """`read` reads rows again; `warmup_entries` are added to the trace's."""
        load = config.load
        self._index = index
        self._read = read
        self._texts = texts
        self._speedup = load.replay_speedup
        self._due_ns = None
        if load.fixed_schedule:
            # A later turn without a time is due after its delay.
            self._due_ns = due_times(np.nan_to_num(index.times_s), load)
        self._row_count = len(index.inputs)
        first_rows = index.firsts[:warmup_entries]
        inputs = index.inputs[first_rows]
        inputs = np.where(inputs < 0, max(1, round(config.dataset.input_tokens.mean)), inputs)
        self.input_tokens = np.append(index.inputs, inputs).astype(np.int32)
        """Tokens of each turn's prompt; -1: the trace contains the prompt."""
        self.output_tokens = np.append(index.outputs, index.outputs[first_rows]).astype(np.int32)
        """Tokens of each turn's response; -1: unknown."""
        self._firsts = np.append(
            index.firsts, np.arange(self._row_count + 1, self._row_count + warmup_entries + 1)
        )

    def __len__(self) -> int:
        return len(self._firsts) - 1

    @property
    def turn_counts(self) -> Int64s:
        return np.diff(self._firsts)

    def turns_of(self, numbers: Int64s) -> Int64s:
        """Return the positions of the turns of these entries, in order."""
        counts = self.turn_counts[numbers]
        ends = np.cumsum(counts)
        return np.repeat(self._firsts[:-1][numbers] - ends + counts, counts) + np.arange(ends[-1])

    @property
    def expected_bytes(self) -> Int64s:
        """Approximate size of each entry's requests."""
        sizes = np.zeros(len(self.input_tokens), dtype=np.int64)
        sizes[: self._row_count] = self._index.sizes
        made = self.input_tokens.astype(np.int64) * _TOKEN_BYTES
        turns = np.where(self.input_tokens < 0, sizes, made) + _BODY_BYTES
        return np.diff(np.append(0, np.cumsum(turns))[self._firsts])

    @property
    def due_ns(self) -> bytes:
        """Due time of each entry of the trace, int64 little-endian; empty if it is not
        replayed."""
        if self._due_ns is None:
            return b""
        return self._due_ns[self._index.firsts[:-1]].astype("<i8").tobytes()

    def entries(self, numbers: Sequence[int]) -> list[PromptConversation]:
        """Return the entries with these numbers. Raises DatasetError if the tokenizer cannot make a
        text of a length."""
        spans = [range(self._firsts[number], self._firsts[number + 1]) for number in numbers]
        places = [place for span in spans for place in span]
        rows = self._rows(places)
        turns = iter(self._turns(places, rows, [span.start for span in spans for _ in span]))
        heads = iter(zip(places, rows, strict=True))
        entries = []
        for number, span in zip(numbers, spans, strict=True):
            (_, first), *_ = islice(heads, len(span))
            entries.append(
                PromptConversation(
                    id=first.session or default_id(number),
                    turns=tuple(islice(turns, len(span))),
                    place=first.place,
                )
            )
        return entries

    def _rows(self, places: Sequence[int]) -> list[TraceRow]:
        index = self._index
        of_file = [place for place in places if place < self._row_count]
        lines = zip(
            index.numbers[of_file].tolist(),
            index.positions[of_file].tolist(),
            index.sizes[of_file].tolist(),
            strict=True,
        )
        read = iter(self._read([Line(*line) for line in lines]))
        return [next(read) if place < self._row_count else self._own(place) for place in places]

    def _own(self, place: int) -> TraceRow:
        """Return a row of the warmup."""
        outputs = int(self.output_tokens[place])
        return TraceRow(
            place=f"warmup entry {place - self._row_count}",
            input_length=int(self.input_tokens[place]),
            output_length=None if outputs < 0 else outputs,
        )

    def _turns(
        self, places: Sequence[int], rows: Sequence[TraceRow], firsts: Sequence[int]
    ) -> list[PromptTurn]:
        made = iter(
            self._texts.texts(
                [
                    (place, row.hash_ids, row.input_length)
                    for place, row in zip(places, rows, strict=True)
                    if row.written is None
                ]
            )
        )
        turns = []
        for place, row, first in zip(places, rows, firsts, strict=True):
            prompt = row.written or Prompt(texts=(next(made),))
            outputs = int(self.output_tokens[place])
            is_counted = row.written is None and self._texts.is_counted
            turns.append(
                PromptTurn(
                    msgspec.structs.replace(prompt, output_tokens=None if outputs < 0 else outputs),
                    delay_ns=round((row.delay_ns or 0) / self._speedup),
                    earliest_ns=self._earliest_ns(place, row, first),
                    input_tokens=row.input_length if is_counted else -1,
                    is_whole=is_whole(row),
                )
            )
        return turns

    def _earliest_ns(self, place: int, row: TraceRow, first: int) -> int:
        """Return the earliest send time of a later turn in a replay, relative to the due time of
        the first turn: its own time, unless the row has a delay instead."""
        is_timed = place != first and row.timestamp is not None and row.delay_ns is None
        if self._due_ns is None or not is_timed:
            return 0
        return int(self._due_ns[place] - self._due_ns[first])
