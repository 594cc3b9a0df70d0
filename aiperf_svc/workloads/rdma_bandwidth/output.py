"""Reads the table of `ib_write_bw` and `ib_read_bw` with `--report_gbits`."""

from collections.abc import Sequence

from aiperf_svc.core.results.measured import Column, Table
from aiperf_svc.workloads.perftest import TABLE, client_rows
from aiperf_svc.workloads.steps import Output, Reading

_HEADER = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]"
_HALF_OF_LAST = 0.005
"""Most by which rounding changes an average in Gbit/s."""
_FOUR_DIGITS = 10.0
"""Average from which on two decimals are four digits."""
_COLUMNS = (
    Column("size", "bytes"),
    Column("bandwidth_peak", "bit/s"),
    Column("bandwidth", "bit/s"),
    Column("message_rate", "ops/s"),
)


def read_bandwidth(outputs: Sequence[Output]) -> Reading:
    """The reading of one pair."""
    rows = tuple(
        (size, peak * 1e9, _average(size, average, rate) * 1e9, rate * 1e6)
        for size, _, peak, average, rate in client_rows(outputs, _HEADER, 5)
    )
    return Reading(
        values={
            "bandwidth": max(row[2] for row in rows),
            "bandwidth_peak": max(row[1] for row in rows),
            "message_rate": max(row[3] for row in rows),
        },
        tables=(Table(name=TABLE, columns=_COLUMNS, rows=rows),),
    )


def _average(size: float, printed: float, rate: float) -> float:
    """The average in Gbit/s: of small messages by their rate, which has six decimals of a million a
    second. The two decimals of the average are a tenth of what messages of two bytes make."""
    by_rate = rate * size * 8e-3
    is_same = abs(by_rate - printed) <= _HALF_OF_LAST * 1.001
    return by_rate if printed < _FOUR_DIGITS and is_same else printed
