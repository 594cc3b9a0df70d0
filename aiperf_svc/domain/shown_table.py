"""A table of results for people, described once for the terminal and for the report."""

from collections.abc import Container, Sequence
from typing import NamedTuple


class ShownTable(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Cells by row; without any, only the notes are shown."""
    notes: Sequence[str] = ()
    """Explanations of the table, as sentences without a capital and a full stop."""
    alerts: Sequence[str] = ()
    """Further notes about what makes its numbers doubtful."""
    texts: Container[int] = (0,)
    """Text columns, which are left-aligned; the others contain numbers."""
