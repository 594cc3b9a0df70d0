"""The trace formats, and a trace file with its rows in order and by random access."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from aiperf_svc.adapters.datasets.files import LineFile, Until, Watch, read_lines, unwatched
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import Dataset, DatasetKind
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.datasets import bailian_trace, csv_traces, mooncake_trace
from aiperf_svc.core.datasets.base import Lines, numbered
from aiperf_svc.core.datasets.trace_index import Line, TraceIndex, in_schedule, index_rows
from aiperf_svc.core.datasets.traces import TraceRow, checked, from_first, limited
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.endpoint_types import Feature, names_with
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.json_objects import Json

FIRST_ROWS = 100
"""Number of rows that are searched for unknown members."""


class TraceFormat(msgspec.Struct, frozen=True):
    """Describes a kind of trace."""

    rows: Callable[[Lines, str], Iterator[TraceRow]]
    block_size: int = mooncake_trace.BLOCK_SIZE
    """Tokens per hash id; 0 without hash ids."""
    units_per_second: float = 1.0
    """Units of its times per second."""
    members: frozenset[str] = frozenset()
    """Members that a row may have, if rows are JSON objects."""
    has_header: bool = False
    """The first line names the columns."""
    has_dates: bool = False
    """Its times are dates, relative to the first row."""


FORMATS = {
    DatasetKind.MOONCAKE_TRACE: TraceFormat(
        mooncake_trace.rows, units_per_second=1000.0, members=mooncake_trace.MEMBERS
    ),
    DatasetKind.BAILIAN_TRACE: TraceFormat(
        bailian_trace.rows, bailian_trace.BLOCK_SIZE, members=bailian_trace.MEMBERS
    ),
    DatasetKind.BURST_GPT_TRACE: TraceFormat(csv_traces.burst_gpt_rows, has_header=True),
    DatasetKind.AZURE_TRACE: TraceFormat(csv_traces.azure_rows, has_header=True, has_dates=True),
}


def block_size_of(dataset: Dataset) -> int:
    """Return the number of tokens per hash id."""
    return dataset.block_size or FORMATS[dataset.kind].block_size


def unread_members(kind: DatasetKind, file: str) -> list[str]:
    """Return the members of the first rows that this format does not know. Otherwise a misspelled
    optional member would go unnoticed. Raises DatasetError if the file cannot be read."""
    known = FORMATS[kind].members
    if not known:
        return []
    found: dict[str, None] = {}
    with suppress(msgspec.DecodeError, RecursionError):  # reported when rows are read
        for _, line in islice(numbered(read_lines(Path(file).expanduser())), FIRST_ROWS):
            found |= dict.fromkeys(msgspec.json.decode(line, type=Json))
    return [name for name in found if name not in known]


class TraceFile:
    """An open trace on disk, read in order and then by random access."""

    def __init__(
        self,
        kind: DatasetKind,
        file: str,
        *,
        is_kept: bool = True,
        until: Until = lambda: False,
        watch: Watch = unwatched,
    ) -> None:
        """Open the file. Without `is_kept` no row can be read again. Reading ends when `until`
        returns true. Raises DatasetError if it cannot be read."""
        self.format = FORMATS[kind]
        self._name = file
        path = Path(file).expanduser()
        self._lines = LineFile(path, is_kept=is_kept, until=until, watch=watch)
        self._header: list[tuple[int, bytes]] = []

    def rows(self, block_size: int) -> Iterator[TraceRow]:
        """Yield the checked rows. Raises DatasetError with the file and line."""
        rows = checked(self.format.rows(self._with_header(), self._name), block_size)
        return from_first(rows) if self.format.has_dates else rows

    def index(self, config: BenchmarkConfig) -> TraceIndex:
        """Read the rows that a config's load sends. Raises DatasetError with file and line."""
        units = self.format.units_per_second
        dataset = config.dataset
        rows = _carried_by(config.endpoint, self.rows(block_size_of(dataset)))
        rows = limited(rows, dataset.max_input_tokens, dataset.max_output_tokens)
        if config.load.fixed_schedule:
            rows = in_schedule(rows, config.load, units)
        index = index_rows(
            ((self._lines.line, row) for row in rows),
            units_per_second=units,
            limit=dataset.entries,
        )
        offsets = (
            config.load.fixed_schedule_start_offset,
            config.load.fixed_schedule_end_offset,
        )
        if not index.entry_count and any(each is not None for each in offsets):
            raise DatasetError(
                f"{self._name}: no row that can be sent is between "
                "load.fixed_schedule_start_offset and load.fixed_schedule_end_offset"
            )
        _check_conversations(config.endpoint, index, self._name)
        return index

    def reread_rows(self, lines: Sequence[Line]) -> list[TraceRow]:
        """Read rows of the index again. Raises DatasetError if the file has changed."""
        read = self._lines.reread(lines)
        numbered = [(line.number, content) for line, content in zip(lines, read, strict=True)]
        return list(self.format.rows([*self._header, *numbered], self._name))

    @property
    def line(self) -> Line:
        """Return the line of the last row that was yielded."""
        return self._lines.line

    def close(self) -> None:
        self._lines.close()

    def _with_header(self) -> Iterator[tuple[int, bytes]]:
        for number, line in self._lines:
            if self.format.has_header and not self._header and line.strip():
                self._header.append((number, line))
            yield number, line


def _carried_by(endpoint: Endpoint, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Yield the rows. Raises DatasetError for a prompt that the endpoint cannot send; every
    endpoint can send prompts of words."""
    render = endpoint_of(endpoint).render
    for row in rows:
        if row.written is not None:
            if row.written.members and not endpoint.type.has(Feature.MESSAGES):
                raise DatasetError(
                    f"{row.place}: `tools` and `extra` need endpoint.type "
                    f"{names_with(Feature.MESSAGES)}, not {endpoint.type}"
                )
            try:
                render(row.written, endpoint)
            except ValueError as error:
                raise DatasetError(f"{row.place}: {error}") from None
        yield row


def _check_conversations(endpoint: Endpoint, index: TraceIndex, source: str) -> None:
    """Raise DatasetError if the trace has sessions of several rows and the endpoint does not
    support conversations."""
    if endpoint.type.has(Feature.CONVERSATION):
        return
    for entry in (index.turn_counts > 1).nonzero()[0][:1].tolist():
        number = int(index.numbers[index.firsts[entry]])
        raise DatasetError(
            f"{source}:{number}: a conversation of {int(index.turn_counts[entry])} turns needs "
            f"endpoint.type {names_with(Feature.CONVERSATION)}, not {endpoint.type}"
        )
