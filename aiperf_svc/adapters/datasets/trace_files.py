"""The formats of traces, and the rows of a trace file, which are read one after the other."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from aiperf_svc.adapters.datasets.files import read_lines
from aiperf_svc.config.models import DatasetKind
from aiperf_svc.core.datasets import azure_trace, bailian_trace, burst_gpt_trace, mooncake_trace
from aiperf_svc.core.datasets.base import Lines
from aiperf_svc.core.datasets.traces import TraceRow, checked


class TraceFormat(msgspec.Struct, frozen=True):
    """What one kind of trace is."""

    rows: Callable[[Lines, str], Iterator[TraceRow]]
    block_size: int = mooncake_trace.BLOCK_SIZE
    """Tokens for each hash id; without hash ids there are no blocks."""
    units_per_second: float = 1.0
    """Units of its times in a second."""


FORMATS = {
    DatasetKind.MOONCAKE_TRACE: TraceFormat(mooncake_trace.rows, units_per_second=1000.0),
    DatasetKind.BAILIAN_TRACE: TraceFormat(bailian_trace.rows, bailian_trace.BLOCK_SIZE),
    DatasetKind.BURST_GPT_TRACE: TraceFormat(burst_gpt_trace.rows),
    DatasetKind.AZURE_TRACE: TraceFormat(azure_trace.rows),
}


def read_trace(kind: DatasetKind, file: str, block_size: int) -> Iterator[TraceRow]:
    """Yield the checked rows of a file. Raises DatasetError that names file and line."""
    return checked(FORMATS[kind].rows(read_lines(Path(file).expanduser()), file), block_size)
