"""Runs `ib_write_bw` or `ib_read_bw` between two ranks."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import Column, MetricInfo, Table
from aiperf_svc.workloads.perftest import TABLE, PerftestSpec, PerftestWorkload, client_rows
from aiperf_svc.workloads.steps import Output, Plot, Reading, Step, Tool, size_plot

_HEADER = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]"
_HALF_OF_LAST = 0.005
"""Maximum change of an average in Gbit/s by rounding."""
_FOUR_DIGITS = 10.0
"""Average from which two decimals are four digits."""
_COLUMNS = (
    Column("size", "bytes"),
    Column("bandwidth_peak", "bit/s"),
    Column("bandwidth", "bit/s"),
    Column("message_rate", "ops/s"),
)


def read_bandwidth(outputs: Sequence[Output]) -> Reading:
    """Return the reading of one pair."""
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
    """Return the average in Gbit/s. Small messages use their rate, which has six decimals of a
    million per second. The average's two decimals are a tenth of the rate of two-byte messages."""
    by_rate = rate * size * 8e-3
    is_same = abs(by_rate - printed) <= _HALF_OF_LAST * 1.001
    return by_rate if printed < _FOUR_DIGITS and is_same else printed


class RdmaBandwidthSpec(PerftestSpec):
    """`ib_write_bw` or `ib_read_bw` between two ranks, for sizes from 2 bytes to 8 MiB."""

    kind: Literal["rdma-bandwidth"] = "rdma-bandwidth"
    iterations: Annotated[int, Field(ge=5, le=20_000)] = 1000
    """Iterations for each message size. Above 20,000, perftest does not report the peak."""
    qps: Annotated[int, Field(gt=0, le=16_384)] = 1
    """Number of queue pairs."""

    @field_validator("extra_args")
    @classmethod
    def _has_one_direction(cls, extra_args: tuple[str, ...]) -> tuple[str, ...]:
        for each in extra_args:
            if each == "-b" or each.startswith("--bi"):
                raise ValueError(
                    f"{each} adds up both directions, but the results are for one direction; leave "
                    "it out"
                )
        return extra_args


Config = WorkloadConfig[RdmaBandwidthSpec]


class RdmaBandwidth(PerftestWorkload[RdmaBandwidthSpec]):
    """The kind `rdma-bandwidth`."""

    kind = "rdma-bandwidth"
    summary = "bandwidth of RDMA reads or writes by message size, by perftest"
    spec = RdmaBandwidthSpec
    suffix = "bw"
    is_directed = True
    tools = (Tool("ib_write_bw", "perftest"), Tool("ib_read_bw", "perftest"))
    metrics = (
        MetricInfo(
            tag="bandwidth",
            name="Bandwidth",
            unit="bit/s",
            better="higher",
            formula="largest BW average[Gb/sec] of all message sizes, times 10^9",
        ),
        MetricInfo(
            tag="bandwidth_peak",
            name="Peak bandwidth",
            unit="bit/s",
            better="higher",
            formula="largest BW peak[Gb/sec] of all message sizes, times 10^9",
        ),
        MetricInfo(
            tag="message_rate",
            name="Message rate",
            unit="ops/s",
            better="higher",
            formula="largest MsgRate[Mpps] of all message sizes, times 10^6",
        ),
    )

    def own_arguments(self, spec: RdmaBandwidthSpec) -> tuple[str, ...]:
        return ("--report_gbits", "-q", str(spec.qps))

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        return read_bandwidth(outputs)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (
            Plot(title="Bandwidth between nodes", kind="matrix", name="bandwidth"),
            size_plot(TABLE, "Bandwidth by message size", "bandwidth"),
        )
