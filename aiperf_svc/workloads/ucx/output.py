"""Reads the CSV of ucx_perftest with `-v -f`, and the log lines of UCX between its rows."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from aiperf_svc.core.results.measured import Column, Table
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from aiperf_svc.workloads.ucx.spec import UcxSpec

TABLE = "by message size"
_HEADER = (
    "batch,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"
)
_VERSION = re.compile(r"UCX\s+INFO\s+Version (\S+)")
_MIB = 2**20
"""A MB of ucx_perftest."""


def time_of(spec: UcxSpec) -> str:
    """Return the column for the time of a message. With many messages in flight it is not a
    latency, and ucx_perftest's table for people calls it overhead."""
    return "latency" if spec.is_latency else "overhead"


class Row(NamedTuple):
    """Results for one message size."""

    size: int
    latency_us: float
    """Median."""
    bandwidth: float
    """Bits per second."""


def read_both(spec: UcxSpec, outputs: Sequence[Output]) -> Reading:
    """Return the reading of one pair. The client prints the numbers.

    It reports no bytes, since sizes and iterations do not determine what UCX sends.
    """
    client = next(output for output in outputs if not output.is_server)
    rows = _rows(spec, client)
    versions = {output.rank: _version(output) for output in outputs}
    time = time_of(spec)
    columns = (
        Column("size", "bytes"),
        Column(f"{time}_p50", "us"),
        Column(time, "us"),
        Column("bandwidth", "bit/s"),
        Column("message_rate", "ops/s"),
    )
    used = sorted(set(re.findall(r"ep_cfg\[\d+\]: (.+)", client.text)))
    return Reading(
        values=_values(spec, rows),
        tables=(Table(name=TABLE, columns=columns, rows=rows),),
        tool=versions[client.rank],
        tools=versions,
        # This version may not print the transports and devices that UCX chose.
        facts={"transports": "; ".join(used)} if used else {},
    )


def _rows(spec: UcxSpec, output: Output) -> tuple[tuple[float, ...], ...]:
    where = f"ucx_perftest on rank {output.rank}"
    lines = [line for line in output.text.splitlines() if line and not line.startswith("[")]
    if not lines or lines[0] != _HEADER:
        raise UnreadableOutput(
            f"{where}: it begins with {output.text[:200]!r}; expected the line {_HEADER!r}"
        )
    rows = []
    for line, (size, iterations) in zip(lines[1:], spec.sizes.items(), strict=False):
        numbers = _numbers(line)
        if not numbers:
            raise UnreadableOutput(f"{where}: {line!r}; expected numbers as {_HEADER!r} has them")
        if (numbers[0], numbers[1]) != (size, iterations):
            raise UnreadableOutput(
                f"{where}: {line!r}; expected {iterations} iterations of {size} bytes"
            )
        _, _, p50, _, latency, _, _, _, rate = numbers
        rows.append((float(size), p50, latency, _bandwidth(numbers), rate))
    if len(lines) - 1 != len(spec.sizes):
        raise UnreadableOutput(
            f"{where}: {len(lines) - 1} message sizes; expected {len(spec.sizes)}"
        )
    return tuple(rows)


def read_line(line: str) -> Row | None:
    """Return the values in a line for one message size; None if it has none."""
    numbers = _numbers(line)
    if not numbers:
        return None
    return Row(size=int(numbers[0]), latency_us=numbers[2], bandwidth=_bandwidth(numbers))


def _numbers(line: str) -> list[float]:
    """Return the numbers of a row; empty if the line is not a row."""
    try:
        numbers = [float(field) for field in line.split(",")]
    except ValueError:
        return []
    is_whole = len(numbers) == len(_HEADER.split(",")) and all(n - n == 0 for n in numbers)
    return numbers if is_whole else []


def _bandwidth(numbers: Sequence[float]) -> float:
    """Return the bits per second of a row. Its MB/s have two decimals, which are imprecise for
    small messages. For those the whole number of messages per second is more exact."""
    size, _, _, _, _, _, megabytes, _, rate = numbers
    return (size * rate if rate > 100 * megabytes else megabytes * _MIB) * 8


def _values(spec: UcxSpec, rows: Sequence[tuple[float, ...]]) -> dict[str, float]:
    if spec.is_latency:
        _, p50, latency, _, _ = rows[0]
        return {"latency": p50, "latency_avg": latency}
    return {
        "bandwidth": max(row[3] for row in rows),
        "message_rate": max(row[4] for row in rows),
    }


def _version(output: Output) -> str:
    text = output.text + output.stderr.decode("utf-8", "replace")
    match = _VERSION.search(text)
    if match is None:
        raise UnreadableOutput(
            f"ucx_perftest on rank {output.rank}: expected a line 'UCX INFO Version ...'; it "
            f"begins with {text[:200]!r}"
        )
    return f"UCX {match[1]}"
