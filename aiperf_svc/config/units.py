"""Reads and writes human units: `250ms`, `5m`, `2Gi`, `9Gbit/s`, `500m` of a CPU.

Durations are integers of nanoseconds, sizes integers of bytes, bit rates integers of bits per
second, CPUs integers of millicores. A plain number means seconds, bytes, bits per second or cores.
Written values are exact, so a resolved config can be run again.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_NS_PER = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_NS_PER |= {"min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_BYTES_PER = {"": 1, "B": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES_PER |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES_PER |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BITS_PER = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*")
_BIT_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(?:bit/s|bps)?\s*")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ns|us|µs|ms|s|min|m|h|d)\s*)+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|min|s|m|h|d)")


def parse_duration_ns(value: Any) -> int:
    """Return the nanoseconds of `90`, `1.5`, `"250ms"`, `"5m"`, `"1h30m"`. Raises ValueError with
    the expected form."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('expected a duration such as "250ms", "30s" or "5m"')
    if isinstance(value, str):
        text = value.strip()
        if _DURATION.fullmatch(text):
            parts = _DURATION_PART.findall(text)
            return sum(_scaled(str(number), _NS_PER[str(unit)]) for number, unit in parts)
        try:
            value = float(text)
        except ValueError:
            raise ValueError('expected a duration such as "250ms", "30s" or "5m"') from None
    if not 0 <= value < 10**9:
        raise ValueError("expected a duration of zero or more, in seconds or with a unit")
    return round(float(value) * 10**9)


def parse_positive_duration_ns(value: Any) -> int:
    """Return the nanoseconds as `parse_duration_ns`, and refuse zero."""
    duration_ns = parse_duration_ns(value)
    if not duration_ns:
        raise ValueError('expected a duration above zero, such as "250ms", "30s" or "5m"')
    return duration_ns


def parse_unbounded_duration_ns(value: Any) -> int | None:
    """Return the nanoseconds as `parse_duration_ns`; None for `inf`."""
    if value is None or str(value).strip().lower() in ("inf", ".inf"):
        return None
    return parse_duration_ns(value)


def format_unbounded_duration(value_ns: int | None) -> str:
    """Return the text of a duration, or `inf`."""
    return "inf" if value_ns is None else format_duration(value_ns)


def format_duration(value_ns: int) -> str:
    """Return the shortest exact form of a duration: 300000000000 is `5m`."""
    if value_ns == 0:
        return "0s"
    for unit in ("h", "m", "s", "ms", "us"):
        if value_ns % _NS_PER[unit] == 0:
            return f"{value_ns // _NS_PER[unit]}{unit}"
    return f"{value_ns}ns"


def parse_size(value: Any) -> int:
    """Return the bytes of `1024`, `"2Gi"`, `"500MB"`. Raises ValueError with the expected form."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES_PER:
        raise ValueError('expected a size such as "512Mi", "2Gi" or "500MB"')
    return _scaled(match[1], _BYTES_PER[match[2]])


def format_size(value: int) -> str:
    """Return the shortest exact form of a size in bytes, in binary units."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if value and value % _BYTES_PER[unit] == 0:
            return f"{value // _BYTES_PER[unit]}{unit}"
    return str(value)


def parse_bit_rate(value: Any) -> int:
    """Return the bits per second of `1000000`, `"500M"`, `"9Gbit/s"`. Raises ValueError with the
    expected form."""
    match = _BIT_RATE.fullmatch(str(value)) if not isinstance(value, bool) else None
    if match is None:
        raise ValueError('expected a bit rate such as "500M" or "9Gbit/s"')
    return _scaled(match[1], _BITS_PER[match[2]])


def format_bit_rate(value: int) -> str:
    """The shortest exact spelling of a bit rate, in decimal units: 9000000000 is `9Gbit/s`."""
    for unit in ("T", "G", "M", "k"):
        if value and value % _BITS_PER[unit] == 0:
            return f"{value // _BITS_PER[unit]}{unit}bit/s"
    return f"{value}bit/s"


def parse_cpu_millis(value: Any) -> int:
    """Return the millicores of `2`, `0.5`, `"500m"`. Raises ValueError with the expected form."""
    match = _QUANTITY.fullmatch(str(value)) if not isinstance(value, bool) else None
    if match is None or match[2] not in ("", "m"):
        raise ValueError('expected CPUs such as 2, 0.5 or "500m"')
    return _scaled(match[1], 1 if match[2] == "m" else 1000)


def format_cpu(value_millis: int) -> str:
    """Return millicores as Kubernetes writes them: `2` or `500m`."""
    return f"{value_millis // 1000}" if value_millis % 1000 == 0 else f"{value_millis}m"


def parse_share(value: Any) -> float:
    """Return `"1%"` or `0.01` as a share of 1. Raises ValueError with the expected form. A plain
    number of 1 or more is refused, because it may be meant in per cent."""
    expected = 'expected a share such as "1%" or 0.01, from 0% to 100%'
    text = str(value).strip()
    is_percent = text.endswith("%")
    try:
        share = float(text.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        raise ValueError(expected) from None
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise ValueError(expected)
    if share == 1 and not is_percent:
        raise ValueError(f'{expected}; write "100%" for all')
    return share


def format_share(value: float) -> str:
    """Return a share in per cent: 0.01 is `1%`."""
    return f"{value * 100:.12g}%"


def _scaled(number: str, factor: int) -> int:
    exact = number.isdigit()
    return int(number) * factor if exact else round(float(number) * factor)


DurationNs = Annotated[int, BeforeValidator(parse_duration_ns), PlainSerializer(format_duration)]
"""A duration: human units in a file, nanoseconds in the program."""
PositiveDurationNs = Annotated[
    int, BeforeValidator(parse_positive_duration_ns), PlainSerializer(format_duration)
]
"""A duration that is not zero."""
UnboundedDurationNs = Annotated[
    int | None,
    BeforeValidator(parse_unbounded_duration_ns),
    PlainSerializer(format_unbounded_duration),
]
"""A duration, or `inf`, which is None."""
SizeBytes = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size)]
"""A size: human units in a file, bytes in the program."""
BitRate = Annotated[int, BeforeValidator(parse_bit_rate), PlainSerializer(format_bit_rate)]
"""A bit rate: human units in a file, bits per second in the program."""
Share = Annotated[float, BeforeValidator(parse_share), PlainSerializer(format_share)]
"""A share: per cent in a file, a part of 1 in the program."""
CpuMillis = Annotated[int, BeforeValidator(parse_cpu_millis), PlainSerializer(format_cpu)]
"""CPUs: cores in a file, millicores in the program."""
