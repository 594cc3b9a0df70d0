"""Runs `ib_write_lat` or `ib_read_lat` between two ranks."""

from collections.abc import Sequence
from typing import Literal

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import Column, MetricInfo, Table
from aiperf_svc.workloads.perftest import TABLE, PerftestSpec, PerftestWorkload, client_rows
from aiperf_svc.workloads.steps import Output, Plot, Reading, Step, Tool, size_plot

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
    """Return the reading of one pair. The values are those of the smallest message."""
    rows = tuple((size, *times) for size, _, *times in client_rows(outputs, _HEADER, 9))
    smallest = min(rows)
    values = {column.name: value for column, value in zip(_COLUMNS, smallest, strict=True)}
    del values["size"], values["latency_stdev"]
    return Reading(values=values, tables=(Table(name=TABLE, columns=_COLUMNS, rows=rows),))


class RdmaLatencySpec(PerftestSpec):
    """`ib_write_lat` or `ib_read_lat` between two ranks, for sizes from 2 bytes to 8 MiB. These use
    one queue pair."""

    kind: Literal["rdma-latency"] = "rdma-latency"


Config = WorkloadConfig[RdmaLatencySpec]


def _metric(tag: str, name: str, field: str, *, in_table: bool = True) -> MetricInfo:
    return MetricInfo(
        tag=tag,
        name=f"{name} latency of 2 bytes",
        unit="us",
        better="lower",
        formula=f"{field} of the smallest message: half a round trip for writes, a whole one for "
        "reads",
        in_table=in_table,
    )


class RdmaLatency(PerftestWorkload[RdmaLatencySpec]):
    """The kind `rdma-latency`."""

    kind = "rdma-latency"
    summary = "latency of RDMA reads or writes by message size, by perftest"
    spec = RdmaLatencySpec
    suffix = "lat"
    is_directed = False
    tools = (Tool("ib_write_lat", "perftest"), Tool("ib_read_lat", "perftest"))
    metrics = (
        _metric("latency", "Typical", "t_typical"),
        _metric("latency_avg", "Average", "t_avg"),
        _metric("latency_min", "Minimum", "t_min"),
        _metric("latency_p99", "p99", "99% percentile"),
        _metric("latency_p999", "p99.9", "99.9% percentile"),
        _metric("latency_max", "Maximum", "t_max", in_table=False),
    )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        return read_latency(outputs)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (
            Plot(title="Typical latency between nodes", kind="matrix", name="latency"),
            size_plot(TABLE, "Latency by message size", "latency", "latency_p99"),
        )
