"""Numbers as people read them in a terminal."""


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


def cores(millis: int) -> str:
    """`0.71`, `260.26`."""
    return f"{millis / 1000:,.6g}"


def gibibytes(size: int) -> str:
    """`2.125 GiB`, `172.3 GiB`."""
    return f"{size / 2**30:,.4g} GiB"
