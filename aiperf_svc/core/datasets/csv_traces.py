"""Reads the columns of CSV traces by name, and ignores other columns.

Azure LLM inference traces have dates, BurstGPT traces seconds; both have lengths in tokens.
"""

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from aiperf_svc.core.datasets.base import Lines, line_error, numbered
from aiperf_svc.core.datasets.traces import TraceRow


def azure_rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    return _rows(lines, source, columns, _seconds, "2023-11-16 18:15:46.6805900,374,44")


def burst_gpt_rows(lines: Lines, source: str) -> Iterator[TraceRow]:
    """Yield the rows of a file. Raises DatasetError that names file and line."""
    columns = ("Timestamp", "Request tokens", "Response tokens")
    return _rows(lines, source, columns, float, "5,ChatGPT,472,18,490,Conversation log")


def _seconds(text: str) -> float:
    """Return a date as seconds since 1970. A date without an offset is in UTC."""
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _rows(
    lines: Lines,
    source: str,
    columns: tuple[str, str, str],
    time_of: Callable[[str], float],
    example: str,
) -> Iterator[TraceRow]:
    """Yield the rows of a file whose first line names the columns. `columns` are the names for the
    time, the input tokens and the output tokens."""
    places: list[int] = []
    width = 0
    expected = f"a row such as {example}"
    for number, line in numbered(lines):
        place = f"{source}:{number}"
        try:
            fields = next(csv.reader([line.decode()], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise line_error(place, str(error), expected=expected) from None
        if not places:
            places, width = _places(fields, columns, place), len(fields)
            continue
        if len(fields) != width:
            wrong = f"{len(fields)} columns, the first line has {width}"
            raise line_error(place, wrong, expected=expected)
        timestamp, inputs, outputs = (fields[position].strip() for position in places)
        try:
            yield TraceRow(
                place=place,
                timestamp=time_of(timestamp),
                input_length=int(inputs),
                output_length=int(outputs),
            )
        except ValueError as error:
            raise line_error(place, str(error), expected=expected) from None


def _places(fields: list[str], columns: tuple[str, ...], place: str) -> list[int]:
    names = [field.strip() for field in fields]
    missing = [column for column in columns if column not in names]
    if missing:
        wrong = f"no column {' and no column '.join(map(repr, missing))} in {', '.join(names)!r}"
        raise line_error(place, wrong, expected=f"a first line with {', '.join(columns)}")
    return [names.index(column) for column in columns]
