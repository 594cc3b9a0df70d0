"""A bar chart of characters for a terminal. Pure."""

from collections.abc import Sequence
from itertools import zip_longest

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def joined(values: Sequence[float], width: int) -> list[float]:
    """Return columns that fit into `width`: neighbours are joined to their mean until they do."""
    columns = list(values)
    while len(columns) > width:
        pairs = zip_longest(columns[::2], columns[1::2], fillvalue=0.0)
        columns = [(one + other) / 2 for one, other in pairs]
    return columns


def bar_chart(columns: Sequence[float], *, height: int) -> list[str]:
    """Return the lines of a chart, from the top."""
    top = max(columns, default=0.0)
    if not top:
        return []
    filled = [round(each / top * height * 8) for each in columns]
    # What is not nothing is seen.
    filled = [max(part, int(each > 0)) for part, each in zip(filled, columns, strict=True)]
    return [
        "".join(_EIGHTHS[min(8, max(0, part - 8 * row))] for part in filled).rstrip()
        for row in reversed(range(height))
    ]
