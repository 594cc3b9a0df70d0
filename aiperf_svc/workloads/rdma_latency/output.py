"""Reads the table of `ib_write_lat` and `ib_read_lat`."""

from collections.abc import Sequence

from aiperf_svc.core.results.measured import Column, Table
from aiperf_svc.workloads.perftest import TABLE, client_rows
from aiperf_svc.workloads.steps import Output, Reading

_HEADER = (
    "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
    "99% percentile[usec] 99.9% percentile[usec]"
)
_COLUMNS = (
    Column("size", "bytes"),
    Column("latency_min", "us"),
    Column("latency_max", "us"),
    Column("latency", "us"),
    Column("latency_avg", "us"),
    Column("latency_stdev", "us"),
    Column("latency_p99", "us"),
    Column("latency_p999", "us"),
)


def read_latency(outputs: Sequence[Output]) -> Reading:
    """The reading of one pair: the values are those of the smallest message."""
    rows = tuple((size, *times) for size, _, *times in client_rows(outputs, _HEADER, 9))
    smallest = min(rows)
    values = {column.name: value for column, value in zip(_COLUMNS, smallest, strict=True)}
    del values["size"], values["latency_stdev"]
    return Reading(values=values, tables=(Table(name=TABLE, columns=_COLUMNS, rows=rows),))
