"""The content of CSV and JSON files."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

import msgspec


def csv_file(rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as the content of a file. Texts of others in them are `csv_cell`s."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def json_file(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
