"""Texts of a comparison, shared by the terminal, Markdown and HTML."""

import math

from aiperf_svc.core.compare.comparison import (
    Comparison,
    ComparisonRow,
    KeyDifference,
    Side,
    SideValue,
    Word,
)
from aiperf_svc.core.compare.groups import Comparisons
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.foreign_text import CUT, one_line
from aiperf_svc.domain.number_text import count, readable_unit, significant, with_half_width

TONES = {Word.WORSE: "invalid", Word.BETTER: "valid", Word.CHANGED: "degraded"}
"""CSS class of a row."""
MAX_VALUE_LENGTH = 60
"""Maximum number of shown characters of a value that differs."""


def runs(side: Side) -> str:
    """Name the runs of a side: `2 runs: a, b`."""
    named = ", ".join(one_line(run.folder) for run in side.runs)
    return f"{count(len(side.runs), 'run')}: {named}"


def sides(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the runs of each side and the runs left out, as lines with their headings."""
    return [
        (name, text)
        for name, side in (("base", comparison.base), ("new", comparison.new))
        for text in (runs(side), *left_out(side))
    ]


def left_out(side: Side) -> list[str]:
    """Return a line for each run that was left out."""
    return [
        f"left out: {one_line(run.folder)}, "
        f"{'whose verdict is ' if run.verdict.startswith(Severity.INVALID) else ''}"
        f"{one_line(run.verdict)}"
        for run in side.left_out
    ]


def differing(found: KeyDifference) -> tuple[str, str, str]:
    """Return the key and its values on both sides. A long common prefix is cut."""
    sides = [", ".join(values) for values in (found.base, found.new)]
    pairs = enumerate(zip(*sides, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(map(len, sides)))
    if same >= MAX_VALUE_LENGTH:
        sides = [f"{CUT.strip()} {text[same - MAX_VALUE_LENGTH // 2 :]}" for text in sides]
    base, new = (one_line(text, limit=MAX_VALUE_LENGTH) for text in sides)
    return one_line(found.key), base, new


def name(row: ComparisonRow) -> str:
    """Name a row: `Time to First Token p99 (ms)`."""
    return titled(row.info, row.key.stat, _unit(row)[1])


def titled(info: MetricInfo, stat: str, unit: str) -> str:
    """Name a statistic with its unit: `Time to First Token p99 (ms)`."""
    shown = f" {stat.replace('_', '.')}" if stat else ""
    return f"{one_line(info.name)}{shown}{f' ({one_line(unit)})' if unit else ''}"


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """Return the cells of a row after its name: base, new, delta, interval, evidence, word."""
    divisor, _ = _unit(row)
    return (
        _value(row.base, divisor),
        _value(row.new, divisor),
        percent(row.delta) if row.base.n else "–",
        "" if row.low is None or row.high is None else f"{percent(row.low)} … {percent(row.high)}",
        _evidence(row),
        str(row.word) if row.gates else f"({row.word})",
    )


HEADS = ("base", "new", "delta", "95% interval", "", "")
"""The last two columns, evidence and word, need no heading in a terminal."""


def shifts(comparison: Comparison, *, missing: str = "–") -> tuple[list[str], list[list[str]]]:
    """Return the percentiles, and for each metric a row with its name and shifts."""
    if not comparison.shifts:
        return [], []
    stats = list(comparison.shifts[0].shifts)
    rows = [
        [each.info.name]
        + [percent(each.shifts[stat]) if stat in each.shifts else missing for stat in stats]
        for each in comparison.shifts
    ]
    return [stat.replace("_", ".") for stat in stats], rows


def percent(share: float) -> str:
    """Format a difference: `+2.3%`, `-120%`; `+∞` from zero."""
    if not share:
        return "0%"
    if math.isinf(share):
        return "+∞" if share > 0 else "-∞"
    size = abs(share) * 100
    digits = 2 if size < 1 else 1 if size < 100 else 0
    return f"{share * 100:+,.{digits}f}%"


def conclusion(comparison: Comparison | Comparisons) -> str:
    """Count the rows by word: `1 worse, 5 same at a tolerance of 5%`."""
    counts = [
        (word, sum(row.gates and row.word is word for row in comparison.rows)) for word in Word
    ]
    names = {Word.UNSURE: "~ (not enough data)", Word.UNJUDGED: "? (not judged)"}
    found = ", ".join(f"{count} {names.get(word, word)}" for word, count in counts if count)
    return f"{found or 'nothing to judge'} at a tolerance of {comparison.tolerance * 100:.4g}%"


def skipped(found: Comparisons) -> list[str]:
    """Return a line for each combination that is not compared."""
    return [f"not compared: {each.name}: {one_line(each.reason)}" for each in found.skipped]


def same_config(info: Comparison) -> str:
    """Return a message that nothing differs; empty if something does."""
    return "" if info.differences else "Same config, dataset, version and verdict on both sides."


def _value(side: SideValue, divisor: float) -> str:
    if not side.n:
        return "–"
    return with_half_width(significant(side.mean / divisor), side.mean, side.half_width)


def _evidence(row: ComparisonRow) -> str:
    runs = f"n={row.base.n}+{row.new.n}"
    if row.adjusted_p is None:
        return f"({runs})"
    p = "p<0.001" if row.adjusted_p < 0.001 else f"p={row.adjusted_p:.3f}"
    return f"({p} {runs})"


def _unit(row: ComparisonRow) -> tuple[float, str]:
    info: MetricInfo = row.info
    return readable_unit(info.unit, max(abs(row.base.mean), abs(row.new.mean)))
