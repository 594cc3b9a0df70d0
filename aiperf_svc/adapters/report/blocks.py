"""The blocks of the report's pages. The templates render them and escape every text, because names,
URLs and messages may be untrusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aiperf_svc.core.results.slo_results import HELD, MISSED, NOT_JUDGED, ObjectiveResult
from aiperf_svc.core.verdict.check_result import (
    ENDED_EARLY,
    LOAD_CAPPED,
    RANK_LOST,
    RUN_FAILED,
    STEP_FAILED,
    TARGET_FAILING,
    UNUSABLE_RESPONSES,
    Reason,
    Severity,
    Verdict,
)
from aiperf_svc.domain.number_text import exact, number, quantity
from aiperf_svc.domain.shown_table import ShownTable

TEMPLATES = "aiperf_svc.adapters.report"
STEADY_UNITS = ("", "requests", "count")
"""Units that are not written in a row."""


def read_file(name: str) -> Markup:
    """Return a style sheet or script of the templates."""
    return Markup(files(TEMPLATES).joinpath("templates", name).read_text("utf-8"))


def environment(package: str) -> Environment:
    found = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["read_file"] = read_file
    return found


_PAGE, _BLOCKS = map(environment(TEMPLATES).get_template, ("page.html", "blocks.html"))
"""Compiled on import, which is before the load and not at the end of a run."""


class Block:
    """A part of a page. An empty block is false and is left out."""

    @property
    def kind(self) -> str:
        """Macro in `templates/blocks.html` that renders the block."""
        return type(self).__name__.lower()

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Cell:
    text: str = ""
    style: str = ""
    """CSS class."""
    unit: str = ""
    """Small text after it."""
    mark: str = ""
    """Faint text after it."""
    link: str = ""
    is_head: bool = False
    is_faint: bool = False
    heat: str = ""
    """Strength of the background, in per cent."""


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[Cell]
    tone: str = ""
    """CSS class: a word of a verdict."""


@dataclass(frozen=True, slots=True)
class Heading(Block):
    text: str


@dataclass(frozen=True, slots=True)
class Note(Block):
    """A line of small text."""

    text: str


@dataclass(frozen=True, slots=True)
class Items(Block):
    lines: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.lines)


@dataclass(frozen=True, slots=True)
class Code(Block):
    text: str


@dataclass(frozen=True, slots=True)
class Header(Block):
    """The title of the page and a line of facts."""

    name: str
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Box(Block):
    """A coloured box with a headline and lines, each with a text and a remedy."""

    tone: str
    headline: str
    lines: Sequence[tuple[str, str]] = ()
    title: str = ""
    """Text before the label."""
    label: str = ""
    """Highlighted word before the headline."""


@dataclass(frozen=True, slots=True)
class Numbers(Block):
    """Large numbers, each with a name and a unit."""

    cells: Sequence[tuple[str, str, str]]

    def __bool__(self) -> bool:
        return bool(self.cells)


@dataclass(frozen=True, slots=True)
class Table(Block):
    head: Sequence[Cell]
    rows: Sequence[Row]

    def __bool__(self) -> bool:
        return bool(self.rows)


class Figure(Block):
    """An image with a title and a note."""

    has_numbers: bool = False
    """Whether the figure can be zoomed."""


@dataclass(frozen=True, slots=True)
class Plots(Block):
    """Figures in two columns."""

    figures: Sequence[Figure]
    title: str = "Plots"

    def __bool__(self) -> bool:
        return bool(self.figures)


@dataclass(frozen=True)
class Matrix(Figure):
    """A table of numbers with coloured cells."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Details(Block):
    """Blocks that open on a click."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return any(self.blocks)


@dataclass(frozen=True, slots=True)
class Zoom(Block):
    """The scripts that zoom the plots; left out if no plot has its numbers."""

    figures: Sequence[Figure]

    def __bool__(self) -> bool:
        return any(each.has_numbers for each in self.figures)


def document(title: str, blocks: Iterable[Block]) -> bytes:
    """Render a self-contained page. File names in it may contain any bytes."""
    found = _PAGE.render(title=title, blocks=[each for each in blocks if each])
    return found.encode(errors="replace")


def markup(block: Block) -> str:
    return str(_BLOCKS.render(block=block))


def section(title: str, *blocks: Block) -> list[Block]:
    """Return blocks below a heading; empty if all of them are empty."""
    return [Heading(title), *blocks] if any(blocks) else []


def table(head: Iterable[Cell | str], rows: Iterable[Row]) -> Table:
    """Return a table. Headings may be plain text."""
    return Table([Cell(each) if isinstance(each, str) else each for each in head], list(rows))


def name_cell(name: str, unit: str = "") -> Cell:
    """Return the first cell of a row, with the unit of the row's numbers."""
    is_named = unit in STEADY_UNITS or name.endswith(unit)
    return Cell(name, unit="" if is_named else unit, is_head=True)


def number_cell(value: float | None, *, per: float = 1.0, unit: str = "", mark: str = "") -> Cell:
    """Return a cell with a number divided by `per`, or a dash if it is unknown."""
    return Cell(number(value, per=per), unit=unit, mark=mark)


def number_row(name: str, unit: str, values: Iterable[float | None], *, per: float = 1.0) -> Row:
    """Return a row of numbers divided by `per`."""
    return Row([name_cell(name, unit), *(number_cell(value, per=per) for value in values)])


def text_row(name: str, *texts: str, tone: str = "") -> Row:
    """Return a row of texts."""
    return Row([name_cell(name), *map(Cell, texts)], tone)


def text_table(head: Iterable[Cell | str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts. The first text of each row is its name."""
    return table(head, [text_row(*row) for row in rows])


def table_blocks(tables: Iterable[ShownTable]) -> list[Block]:
    """Return each table with its title and notes; tables without rows and notes are left out."""
    blocks: list[Block] = []
    for each in tables:
        first, *others = each.columns
        styles = ["text" if place in each.texts else "" for place in range(1, len(each.columns))]
        head = [Cell(first[:1].upper() + first[1:]), *map(Cell, others, styles)]
        rows = [Row([name_cell(name), *map(Cell, cells, styles)]) for name, *cells in each.rows]
        notes = (Note(sentence(note)) for note in (*each.notes, *each.alerts))
        blocks += section(each.title, table(head, rows), *notes)
    return blocks


def report_cell(name: str, folder: str) -> Cell:
    """Return a name with a link to the report in its folder; only the name if it has no report."""
    return Cell(name, is_head=True, link=f"{quote(folder)}/report.html" if folder else "")


HEADLINES = {
    "degraded": "Read with care: the reasons below may have affected the numbers.",
    "invalid": "Do not use these numbers.",
    "client-bound": "Do not use these numbers: the client, not the server, was the limit.",
    UNUSABLE_RESPONSES: "Do not use these numbers: the target sent too few usable responses.",
    TARGET_FAILING: "Do not use these numbers: too many requests failed at the target.",
    LOAD_CAPPED: "Do not use these numbers: the cap on concurrency held too many requests back.",
    "process-lost": "Do not use these numbers: a process of the client was lost.",
    RUN_FAILED: "Do not use these numbers: the run failed.",
    ENDED_EARLY: "Not a measurement: the search had enough data and ended the load.",
    RANK_LOST: "Do not use these numbers: a rank was lost.",
    STEP_FAILED: "Do not use these numbers: a step failed.",
    "bytes-differ": "Do not use these numbers: tool and network disagree on the bytes sent.",
    "rank-starved": "Do not use these numbers: a rank had too little CPU.",
}
"""Explanation of each verdict or cause."""


def verdict_box(verdict: Verdict, valid: str) -> Box:
    """Return the verdict with the checks that did not pass. `valid` explains a valid verdict."""
    return Box(
        verdict.verdict,
        HEADLINES.get(verdict.cause) or HEADLINES.get(verdict.verdict, valid),
        [(sentence(each.text), sentence(each.remedy)) for each in verdict.reasons],
        title="Verdict:",
        label=verdict.label,
    )


def check_table(reasons: Iterable[Reason]) -> Table:
    rows = []
    for each in reasons:
        is_judged = each.severity is not Severity.INFO
        numbers = (
            quantity(value, each.unit) if is_judged else "–"
            for value in (each.measured, each.limit)
        )
        cells = [
            name_cell(each.check.replace("_", " ")),
            Cell(each.severity, "state"),
            *map(Cell, numbers),
            Cell(each.text, "wide"),
        ]
        rows.append(Row(cells, each.severity))
    return table(("Check", "Result", "Measured", "Limit", Cell("Explanation", "text")), rows)


def objective_row(name: str, found: ObjectiveResult, measured: Cell) -> Row:
    cells = [
        name_cell(name),
        Cell(f"{'≤' if found.bound == 'max' else '≥'} {exact(found.limit)} {found.unit}"),
        measured,
        Cell(found.outcome, "state"),
        Cell(found.reason, "wide"),
    ]
    return Row(cells, {HELD: "valid", MISSED: "invalid", NOT_JUDGED: "degraded"}[found.outcome])


def objectives(rows: Sequence[Row]) -> list[Block]:
    """Return the table of all objectives; empty if there are none."""
    head = ("Objective", "Limit", "Measured", "Outcome", Cell("Reason", "text"))
    return section("Service level objectives", table(head, rows))


def sentence(text: str) -> str:
    """Return a text with a capital at the start and a full stop at the end."""
    first = text[:1] if text.startswith(("http://", "https://")) else text[:1].upper()
    return first + text[1:] + ("" if text.endswith("?") else ".")
