"""Runs `ib_write_bw` or `ib_read_bw` between two ranks."""

from collections.abc import Sequence

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.workloads.perftest import TABLE, device_problems, perftest_steps
from aiperf_svc.workloads.rdma_bandwidth.output import read_bandwidth
from aiperf_svc.workloads.rdma_bandwidth.spec import RdmaBandwidthSpec
from aiperf_svc.workloads.steps import Output, Plot, Rank, Reading, Role, Step, Tool
from aiperf_svc.workloads.tool import ToolWorkload

Config = WorkloadConfig[RdmaBandwidthSpec]


class RdmaBandwidth(ToolWorkload[RdmaBandwidthSpec]):
    """The kind `rdma-bandwidth`."""

    kind = "rdma-bandwidth"
    summary = "bandwidth of RDMA reads or writes by message size, by perftest"
    spec = RdmaBandwidthSpec
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

    def roles(self, spec: RdmaBandwidthSpec) -> tuple[Role, ...]:
        return (Role("rank", 2),)

    def tools_of(self, config: Config) -> tuple[Tool, ...]:
        return (Tool(f"ib_{config.workload.mode}_bw", "perftest"),)

    def problems(self, config: Config) -> list[str]:
        return device_problems(config)

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        return ("IPC_LOCK",)

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        own = ("--report_gbits", "-q", str(spec.qps))
        return perftest_steps(config, ranks, f"ib_{spec.mode}_bw", own, is_directed=True)

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        return read_bandwidth(outputs)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (
            Plot(title="Bandwidth between nodes", kind="matrix", name="bandwidth"),
            Plot(
                title="Bandwidth by message size",
                kind="table",
                name=TABLE,
                x="size",
                y=("bandwidth",),
                x_is_log=True,
                y_is_log=True,
            ),
        )
