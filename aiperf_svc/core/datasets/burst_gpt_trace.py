"""Reads CSV in the format of the BurstGPT traces: times in seconds, lengths in tokens."""

from collections.abc import Iterator

from aiperf_svc.core.datasets import csv_traces
from aiperf_svc.core.datasets.base import Lines
from aiperf_svc.core.datasets.traces import TraceRow


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    return csv_traces.rows(
        lines,
        source,
        columns=("Timestamp", "Request tokens", "Response tokens"),
        time_of=float,
        example="5,ChatGPT,472,18,490,Conversation log",
    )
