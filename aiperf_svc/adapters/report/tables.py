"""The tables of the report of an inference benchmark."""

from collections.abc import Iterable, Sequence

import msgspec

from aiperf_svc.adapters.report import blocks
from aiperf_svc.adapters.report.blocks import (
    Block,
    Cell,
    Details,
    Note,
    Numbers,
    Row,
    Table,
    name_cell,
    number_cell,
    number_row,
    section,
    sentence,
    table,
    text_table,
)
from aiperf_svc.core.quality.gate import QualityResult
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.inference_result import ErrorCount, InferenceResult
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.metric_catalog import CATALOG, Kind
from aiperf_svc.domain.number_text import number

_HARDWARE, _END = "Hardware and software", b"</details>"
STATS = ("avg", "min", "p50", "p90", "p99", "p99_9", "max", "std")
_SHORT_UNITS = {
    "requests/sec": "/s",
    "tokens/sec": "tokens/s",
    "tokens/sec/user": "tokens/s",
    "sec": "s",
    "requests": "",
    "count": "",
}


def large_numbers(result: InferenceResult, wanted: Iterable[tuple[str, str, str]]) -> Numbers:
    """Return the large numbers at the top, by name, tag and statistic, if measured."""
    cells = []
    for name, tag, stat in wanted:
        value = result.value(tag, stat)
        if value is not None:
            unit = _SHORT_UNITS.get(CATALOG[tag].unit, CATALOG[tag].unit)
            cells.append((name, number(value), unit))
    return Numbers(cells)


def quality(found: QualityResult | None) -> list[Block]:
    """Return the score of the quality gate; empty if there is none."""
    if found is None:
        return []
    minimum = "" if found.min_score is None else f"{found.min_score:.1%}"
    rows = [number_row(name, "", (each.issued, each.right)) for name, each in found.graders.items()]
    verdict = f"minimum {minimum}: {'passed' if found.is_met else 'missed'}" if minimum else ""
    lines = [found.text, verdict, *found.notes]
    return [
        *section("Quality", table(("Grader", "requests", "correct"), rows)),
        *(Note(sentence(line)) for line in lines if line),
    ]


def hardware(found: Provenance | None) -> Details:
    """Return the facts about the target and the client."""
    if found is None:
        return Details(_HARDWARE)
    sides = (("Target", found.target), ("Client", found.client))
    return Details(_HARDWARE, [text_table((side, ""), facts.items()) for side, facts in sides])


def with_hardware(page: bytes, found: Provenance) -> bytes:
    """Return a page with its facts replaced by these; unchanged if it has none."""
    begin = page.find(f"<details><summary>{_HARDWARE}</summary>".encode())
    end = page.find(_END, begin)
    if begin < 0 or end < 0:
        return page
    made = blocks.markup(hardware(found)).strip().encode(errors="replace")
    return page[:begin] + made + page[end + len(_END) :]


def distributions(result: InferenceResult, tags: set[str]) -> list[Block]:
    """Return a table of the per-request and pooled metrics among `tags`, with its notes."""
    rows, notes = [], set()
    for tag, found in result.metrics.items():
        if tag not in tags or found.is_single:
            continue
        name, (per, unit) = CATALOG[tag].name, CATALOG[tag].scale
        cells = (_stat(found, stat, per=per) for stat in STATS)
        rows.append(Row([name_cell(name, unit), *cells]))
        if found.censored_share:
            notes.add(
                f"{name}: {found.censored_share:.2%} of requests were cut off before their "
                "responses ended; the true value is above the one after >."
            )
        if any(map(found.is_unreliable, STATS)):
            notes.add("* fewer than one request is expected beyond this percentile.")
    head = ("Metric", *(stat.replace("_", ".") for stat in STATS))
    return [table(head, rows), *map(Note, sorted(notes))]


def scalars(result: InferenceResult, tags: set[str]) -> Table:
    """Return the metrics among `tags` with a single number, two per row."""
    pairs = []
    for tag, found in result.metrics.items():
        if tag in tags and found.is_single:
            per, unit = CATALOG[tag].scale
            pairs.append(number_row(CATALOG[tag].name, unit, [found.stat("avg")], per=per).cells)
    half = -(-len(pairs) // 2)
    right = [*pairs[half:], *([(Cell(), Cell())] * (len(pairs) % 2))]
    rows = [Row([*left, *right]) for left, right in zip(pairs[:half], right, strict=True)]
    return table(("Metric", "Value", Cell("Metric", "text"), "Value"), rows)


def objectives(result: InferenceResult) -> list[Block]:
    """Return every SLO with its measured value."""
    rows = []
    for each in result.slo:
        metric, found = CATALOG[each.metric], result.metrics.get(each.metric)
        stat = "" if metric.kind is Kind.SCALAR else f" {each.stat}"
        shown = each.in_unit(*metric.scale)
        measured = number_cell(shown.measured)
        if found is not None and not found.is_single:
            measured = _stat(found, each.stat, per=metric.scale[0])
        rows.append(blocks.objective_row(metric.name + stat, shown, measured))
    return blocks.objectives(rows)


def errors(counts: Sequence[ErrorCount]) -> list[Block]:
    """Return the errors by kind, with the first message of each; empty if there are none."""
    rows = []
    for error in counts:
        details = error.error_details
        code = "" if details.code is None else str(details.code)
        cells = (Cell(code), Cell(f"{error.count:,}"), Cell(details.message, "wide"))
        rows.append(Row([name_cell(details.type), *cells]))
    head = ("Error", "Status", "Count", Cell("First message", "text"))
    return section("Errors", table(head, rows))


def accounts(books: Accounts) -> Table:
    """Return the accounts: credits and requests by outcome."""
    figures = msgspec.structs.asdict(books)
    rows = [
        number_row(name.replace("_", " "), "", [float(value)])
        for name, value in figures.items()
        if name != "violations"
    ]
    return table(("Credits and requests", "Count"), rows)


def finish_reasons(counts: dict[str, int]) -> Table:
    """Return the number of responses by finish reason, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [number_row(name.replace("_", " "), "", [float(count)]) for name, count in ordered]
    return table(("Finish reason", "Requests"), rows)


def _stat(found: MetricStats, stat: str, *, per: float = 1.0) -> Cell:
    value, beyond = found.stat(stat), (found.beyond or {}).get(stat)
    if value is None and beyond is not None:
        return Cell(f"> {number(beyond, per=per)}", is_faint=True)
    mark = "*" if found.is_unreliable(stat) and value is not None else ""
    return number_cell(value, per=per, mark=mark)
