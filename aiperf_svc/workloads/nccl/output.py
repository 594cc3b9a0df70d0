"""Reads the table that a program of nccl-tests prints."""

import re
from typing import NamedTuple

from aiperf_svc.workloads.steps import UnreadableOutput

HEADER = (
    *("#", "size", "count", "type", "redop", "root"),
    *("time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"),
)
_TESTS = re.compile(r"^# nccl-tests version (\S+)", re.MULTILINE)
_LIBRARY = re.compile(r"^NCCL version (\S+)", re.MULTILINE)
_DEVICE = re.compile(r"^#\s+Rank\s+\d+ .*\bdevice\s+\d+ \[", re.MULTILINE)
_REDUCED = re.compile(r"^# Reducing maxBytes to (\d+)", re.MULTILINE)
_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (OK|FAILED)", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*: (\S+)", re.MULTILINE)


class Placed(NamedTuple):
    """One half of a row: results in a separate buffer, or in place of the inputs."""

    time_us: float
    algorithm_gb_s: float
    bus_gb_s: float
    wrong: int | None
    """Wrong values; None: not checked."""


class Row(NamedTuple):
    """Results for one size."""

    size: int
    out_of_place: Placed
    in_place: Placed


class NcclOutput(NamedTuple):
    """Output of the program."""

    tool: str
    rows: tuple[Row, ...]
    average_gb_s: float
    reduced_to: int | None
    """Maximum size that fits into the GPUs' memory, if it is below the requested one."""
    errors: tuple[str, ...]


def read_output(text: str, *, gpus: int, sizes: int) -> NcclOutput:
    """Return the table of a run on this many GPUs. Raises UnreadableOutput."""
    ends_with = f"the output ends with {text[-300:]!r}"
    devices = len(_DEVICE.findall(text))
    rows = _rows(text, ends_with)
    bounds, average, reduced = _BOUNDS.search(text), _AVERAGE.search(text), _REDUCED.search(text)
    if devices != gpus:
        raise UnreadableOutput(
            f"expected lines of {gpus} devices, found {devices}: is the program built with MPI=1?"
        )
    if not rows or (len(rows) != sizes and (reduced is None or len(rows) > sizes)):
        raise UnreadableOutput(f"expected rows of {sizes} sizes, found {len(rows)}; {ends_with}")
    if bounds is None or average is None:
        raise UnreadableOutput(
            f"expected '# Out of bounds values' and '# Avg bus bandwidth'; {ends_with}"
        )
    return NcclOutput(
        tool=_tool(text),
        rows=rows,
        average_gb_s=_number(average[1], average[0]),
        reduced_to=int(reduced[1]) if reduced else None,
        errors=_errors(rows, bounds),
    )


def read_row(line: str) -> Row | None:
    """Return the row in a line of output; None if the line is not a row."""
    parts = line.split()
    if len(parts) != len(HEADER) - 1 or not parts[0].isdigit():
        return None
    return Row(int(parts[0]), _placed(parts[5:9], line), _placed(parts[9:13], line))


def _rows(text: str, ends_with: str) -> tuple[Row, ...]:
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if tuple(line.split()) == HEADER]
    if len(starts) != 1:
        raise UnreadableOutput(
            f"expected one line {' '.join(HEADER)!r}, found {len(starts)}; {ends_with}"
        )
    rows = []
    for line in lines[starts[0] + 1 :]:
        if line.startswith("#") or not line.strip():
            continue
        row = read_row(line)
        if row is None and line.split()[0].isdigit():
            raise UnreadableOutput(f"expected a size and 12 other fields, found {line!r}")
        if row is not None:
            rows.append(row)
    return tuple(rows)


def _placed(parts: list[str], line: str) -> Placed:
    time_us, algorithm, bus = (_number(part, line) for part in parts[:3])
    # A million or more wrong values are printed as 1e+06.
    wrong = None if parts[3] == "N/A" else _number(parts[3], line)
    if wrong is not None and not wrong.is_integer():
        raise UnreadableOutput(f"expected a number of wrong values or N/A, found {line!r}")
    return Placed(time_us, algorithm, bus, None if wrong is None else int(wrong))


def _number(text: str, line: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise UnreadableOutput(f"{text!r} in {line!r}: expected a number")
    return number


def _tool(text: str) -> str:
    """Return the tool's name. Versions before 2.17 do not print one."""
    tests, library = _TESTS.search(text), _LIBRARY.search(text)
    name = f"nccl-tests {tests[1]}" if tests else "nccl-tests"
    return f"{name}, NCCL {library[1]}" if library else name


def _errors(rows: tuple[Row, ...], bounds: re.Match[str]) -> tuple[str, ...]:
    errors = [
        f"{placed.wrong} wrong values at {row.size} bytes, {place}"
        for row in rows
        for place, placed in (("out of place", row.out_of_place), ("in place", row.in_place))
        if placed.wrong
    ]
    if bounds[1] != "0" or bounds[2] != "OK":
        errors.append(f"{bounds[1]} values out of bounds: {bounds[2]}")
    return tuple(errors)
