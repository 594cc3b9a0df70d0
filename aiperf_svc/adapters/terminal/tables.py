"""Tables of texts on a terminal."""

from collections.abc import Container, Iterable, Sequence

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from aiperf_svc.domain.foreign_text import one_line


def text_table(
    head: Sequence[str | Text],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    texts: Container[int] = (0,),
) -> Table:
    """Return a table. The columns at the positions `texts` are aligned left, numbers right."""
    # A title must not be wider than its table.
    gap = (0, 1) if title else (0, 1, 0, 0)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=gap, title=title, title_justify="left"
    )
    for index, name in enumerate(head):
        justify: JustifyMethod = "left" if index in texts else "right"
        table.add_column(
            Text(name) if isinstance(name, str) else name, justify=justify, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(one_line(each)) if isinstance(each, str) else each for each in row))
    return table
