"""Units as people read them: 9.4 Gbit/s instead of 9400000000 bit/s."""

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME = (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9))
_NAMES = {"bit/s": "bit/s", "bytes/s": "B/s", "bytes": "B"}


def readable_unit(unit: str, high: float) -> tuple[float, str]:
    """Return the divisor and name of the unit in which numbers up to `high` are short."""
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


def size_text(size: float) -> str:
    """A size in bytes as benchmarks name it: 64 B, 4 KiB, 1 MiB."""
    for divisor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= divisor and size % divisor == 0:
            return f"{size / divisor:g} {unit}"
    return f"{size:,.10g} B"
