"""The content of CSV files."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO


def csv_file(rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as the content of a file. Texts of others in them are `csv_cell`s."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
