"""Reads CSV in the format of the Azure LLM inference traces: dates, lengths in tokens."""

from collections.abc import Iterator
from datetime import UTC, datetime

from aiperf_svc.core.datasets import csv_traces
from aiperf_svc.core.datasets.base import Lines
from aiperf_svc.core.datasets.traces import TraceRow


def rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    return csv_traces.rows(
        lines,
        source,
        columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        time_of=_seconds,
        example="2023-11-16 18:15:46.6805900,374,44",
    )


def _seconds(text: str) -> float:
    """Return a date as seconds since 1970. One without an offset is in UTC."""
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
