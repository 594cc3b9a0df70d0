"""Measured numbers as people read them, in a terminal and in a report."""

from decimal import Decimal
from math import isinf, isnan

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME = (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9))
_NAMES = {"bit/s": "bit/s", "bytes/s": "B/s", "bytes": "B"}


def number(value: float | None, *, per: float = 1.0, missing: str = "–") -> str:
    """Format with four significant digits, and all digits of whole numbers: 0.0312, 12.35, 2,969,
    12,346. None and NaN become `missing`. `per` divides the number."""
    if value is None or isnan(value):
        return missing
    value /= per
    if isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return "<0.001" if value > 0 else ">-0.001"
    if abs(value) >= 999.95:
        return f"{value:,.0f}"
    rounded = float(f"{abs(value):.4g}")
    whole = len(str(int(rounded))) if rounded >= 1 else 0
    return f"{value:.{4 - whole if whole else 4}f}"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with significant digits, all digits of a longer whole part and no exponent:
    with three digits 0.00005, 20.4 and 2,280."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    text = f"{value:,.{digits}g}"
    return f"{Decimal(text):f}" if "e" in text else text


def exact(value: float) -> str:
    """Format a number that the user entered: 0.5, 1,234.56. Drop digits that only come from
    floating point conversions of its unit."""
    return significant(value, 10)


def seconds(value_s: float) -> str:
    """`4.2 s`, `2:05`, `1:02:05`."""
    if value_s < 60:
        return f"{value_s:.1f} s"
    minutes, rest = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def milliseconds(value_ms: float | None) -> str:
    """`20.4 ms`, `1.24 s`, or a dash."""
    if value_ms is None:
        return "–"
    return f"{value_ms / 1000:.2f} s" if value_ms >= 1000 else f"{value_ms:.1f} ms"


def count(value: int, noun: str) -> str:
    """`1 worker`, `2,000 workers`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def counted(value: int, noun: str, verb: str) -> str:
    """Return a count with `was` or `is`: `1 request was`, `3 requests were`."""
    plural = {"was": "were", "is": "are"}[verb]
    return f"{count(value, noun)} {verb if value == 1 else plural}"


def cores(millis: int) -> str:
    """`0.71`, `260.26`."""
    return f"{millis / 1000:,.6g}"


def gibibytes(size: int) -> str:
    """`2.125 GiB`, `172.3 GiB`."""
    return f"{size / 2**30:,.4g} GiB"


def readable_unit(unit: str, high: float) -> tuple[float, str]:
    """Return the divisor and name of the unit that makes numbers up to `high` short."""
    high = abs(high)
    if unit == "ratio":
        return 0.01, "%"
    if unit == "count":
        return 1.0, ""
    if unit in _NAMES:
        for divisor, prefix in _DECIMAL:
            if high >= divisor:
                return divisor, prefix + _NAMES[unit]
        return 1.0, _NAMES[unit]
    for name, ns in _TIME:
        if name == unit:
            high_ns = high * ns
            known = [(n, each) for n, each in _TIME if each <= high_ns and each >= ns]
            best, best_ns = known[-1] if known else (unit, ns)
            return best_ns / ns, "µs" if best == "us" else best
    return 1.0, unit


def quantity(value: float, unit: str) -> str:
    """Format a number in a unit that makes it short: `25%`, `1.614 ms`, `3`. A small number without
    a smaller unit keeps its digits: `0.00005%`."""
    divisor, name = readable_unit(unit, value)
    is_small = 0 < abs(value / divisor) < 0.1
    text = significant(value / divisor) if is_small else number(value, per=divisor)
    return with_unit(text, name)


def with_unit(text: str, unit: str) -> str:
    """Join a number and its unit: `25%`, `1.614 ms`, `3`."""
    return f"{text}%" if unit == "%" else f"{text} {unit}".rstrip()


def with_half_width(text: str, mean: float, half: float | None) -> str:
    """Append the interval's half-width in per cent of the mean, if known: `12.35 ± 4%`."""
    if half is None or not mean:
        return text
    size = abs(half / mean) * 100
    return f"{text} ± {size:,.0f}%" if size >= 1 else f"{text} ± {size:.1g}%"


def size_text(size: float) -> str:
    """Format a size in bytes as benchmarks do: 64 B, 4 KiB, 1 MiB."""
    for divisor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= divisor and size % divisor == 0:
            return f"{size / divisor:g} {unit}"
    return f"{size:,.10g} B"
