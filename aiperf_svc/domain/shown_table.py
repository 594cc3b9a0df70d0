"""A table of results as people read it, described once for the terminal and for the report."""

from collections.abc import Container, Sequence
from typing import NamedTuple


class ShownTable(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Cells by row; without any, only the notes are shown."""
    notes: Sequence[str] = ()
    """What is to be known of it, as sentences without a capital and a full stop."""
    alerts: Sequence[str] = ()
    """Further notes, of what makes its numbers doubtful."""
    texts: Container[int] = (0,)
    """Columns of texts, which are aligned to the left; the others have numbers."""
