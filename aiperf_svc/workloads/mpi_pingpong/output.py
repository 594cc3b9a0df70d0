"""Reads the output of IMB-MPI1 PingPong and of our script, which prints the same rows."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from aiperf_svc.workloads.steps import UnreadableOutput

HEADER = ("#bytes", "#repetitions", "t[usec]", "Mbytes/sec")
_IMB = re.compile(r"^#\s+Intel\(R\) MPI Benchmarks ([\d.]+)", re.MULTILINE)
_MPI4PY = re.compile(r"^# (mpi4py .+)$", re.MULTILINE)
_SENT = re.compile(r"^# each process sent (\d+) bytes$", re.MULTILINE)


class Row(NamedTuple):
    """Results for one message size."""

    size: int
    repetitions: int
    time_us: float
    """Half a round trip."""


class PingPongOutput(NamedTuple):
    """Output of the program."""

    tool: str
    rows: tuple[Row, ...]
    sent_bytes: int | None
    """Payload that each process sent, warm-up included; None: not reported."""


def sizes_to(maxlog: int) -> tuple[int, ...]:
    """Return the measured message sizes in bytes."""
    return (0, *(2**power for power in range(maxlog + 1)))


def read_output(text: str, sizes: Sequence[int]) -> PingPongOutput:
    """Return the rows of all `sizes`. Raises UnreadableOutput."""
    imb, ours = _IMB.search(text), _MPI4PY.search(text)
    if imb is None and ours is None:
        raise UnreadableOutput(
            "expected a line with the version of the Intel MPI Benchmarks or of mpi4py; "
            f"it begins with {text[:200]!r}"
        )
    rows = _rows(text)
    measured = tuple(row.size for row in rows)
    if measured != tuple(sizes):
        missing = [size for size in sizes if size not in measured]
        found_rows = f"no row of {missing[0]} bytes" if missing else f"rows of {measured} bytes"
        raise UnreadableOutput(
            f"expected rows of 0 to {sizes[-1]} bytes, found {found_rows}; "
            f"the output ends with {text[-200:]!r}"
        )
    sent = _SENT.search(text)
    return PingPongOutput(
        tool=f"IMB-MPI1 {imb[1]}" if imb else ours[1] if ours else "",
        rows=rows,
        sent_bytes=int(sent[1]) if sent else None,
    )


def read_row(line: str) -> Row | None:
    """Return the row in a line of output; None if the line is not a row."""
    parts = line.split()
    if len(parts) != len(HEADER):
        return None
    try:
        row = Row(int(parts[0]), int(parts[1]), float(parts[2]))
        float(parts[3])
    except ValueError:
        return None
    return row if row.size >= 0 and row.repetitions > 0 and 0 < row.time_us < 1e12 else None


def _rows(text: str) -> tuple[Row, ...]:
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if tuple(line.split()) == HEADER]
    if len(starts) != 1:
        raise UnreadableOutput(
            f"expected one line {' '.join(HEADER)!r}, found {len(starts)}; "
            f"the output ends with {text[-200:]!r}"
        )
    rows = []
    for line in lines[starts[0] + 1 :]:
        if not line.strip() or line.startswith("#"):
            break
        row = read_row(line)
        if row is None:
            raise UnreadableOutput(f"expected size, repetitions, time and rate, found {line!r}")
        rows.append(row)
    return tuple(rows)
