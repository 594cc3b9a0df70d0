"""Measured numbers as people read them, in a terminal and in a report."""

from math import isinf, isnan


def number(value: float | None, *, missing: str = "–") -> str:
    """Four significant digits, all digits of whole numbers: 0.0312, 12.35, 2,969, 12,346. NaN is
    `missing` too: it is no number."""
    if value is None or isnan(value):
        return missing
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
