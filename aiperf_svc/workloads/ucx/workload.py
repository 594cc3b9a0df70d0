"""Runs ucx_perftest's server on one rank and its client on the other."""

from collections.abc import Sequence

from aiperf_svc.config.base import MINUTE_NS
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.workloads.pairs import pair_labels, pair_name, pairs
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Step,
    Tool,
    size_plot,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload
from aiperf_svc.workloads.ucx.output import TABLE, read_both, read_line, time_of
from aiperf_svc.workloads.ucx.spec import UcxSpec

Config = WorkloadConfig[UcxSpec]

_BATCH = "batch"
"""The file of message sizes, which both ends read. Its name is the title of the first column."""
_BANDWIDTH = (
    MetricInfo(
        tag="bandwidth",
        name="Peak bandwidth",
        unit="bit/s",
        better="higher",
        formula="largest overall_bw of all message sizes, times 2^20 * 8; or size * overall_mr * 8 "
        "if that has more digits",
    ),
    MetricInfo(
        tag="message_rate",
        name="Peak message rate",
        unit="ops/s",
        better="higher",
        formula="largest overall_mr of all message sizes",
    ),
)
_LATENCY = (
    MetricInfo(
        tag="latency",
        name="Latency of 1 byte, median",
        unit="us",
        better="lower",
        formula="50.0_percentile_lat of the smallest message: half a round trip",
    ),
    MetricInfo(
        tag="latency_avg",
        name="Latency of 1 byte, average",
        unit="us",
        better="lower",
        formula="overall_lat of the smallest message",
    ),
)


class Ucx(ToolWorkload[UcxSpec]):
    """The kind `ucx`."""

    kind = "ucx"
    summary = "latency or bandwidth by message size over TCP or RDMA, by ucx_perftest"
    spec = UcxSpec
    tools = (Tool("ucx_perftest", "ucx-utils"),)
    metrics = (*_BANDWIDTH, *_LATENCY)

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        return _LATENCY if config.workload.is_latency else _BANDWIDTH

    def problems(self, config: Config) -> list[str]:
        if not config.workload.needs_device or config.deployment.ranks.devices:
            return []
        names = ", ".join(name for name in config.workload.transports if name != "tcp")
        return [
            f"workload.transports: {names}: needs an RDMA device; name its resource in "
            "deployment.ranks.devices"
        ]

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        return ("IPC_LOCK",) if config.workload.needs_device else ()

    def files(self, config: Config) -> dict[str, bytes]:
        spec = config.workload
        lines = [f"{size} -s {size} -n {n} -w {spec.warmup}\n" for size, n in spec.sizes.items()]
        return {_BATCH: "".join(lines).encode()}

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        name = f"ucp_{spec.test}" if spec.test.startswith(("put", "am")) else spec.test
        # The server needs the batch file too: without it, it exits after one size.
        common = ("-p", str(spec.port), "-t", name, "-b", _BATCH, "-f", "-v")
        return tuple(
            Step(
                name=pair_name((client, server)),
                labels=pair_labels((client, server)),
                servers=(
                    Command(
                        rank=server.number,
                        argv=("ucx_perftest", *common),
                        env=_environment(spec, server),
                        listens_on=spec.port,
                    ),
                ),
                commands=(
                    Command(
                        rank=client.number,
                        argv=("ucx_perftest", server.address, *common),
                        env=_environment(spec, client),
                    ),
                ),
                timeout_ns=timeout_of(spec, 15 * MINUTE_NS),
            )
            for client, server in pairs(config, ranks, is_directed=not spec.is_latency)
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        return read_both(config.workload, outputs)

    def progress(self, config: Config, line: str) -> str:
        row = read_line(line)
        if row is None:
            return ""
        if config.workload.is_latency:
            return f"{row.size} bytes: {row.latency_us:g} us"
        return f"{row.size} bytes: {row.bandwidth / 10**9:.4g} Gbit/s"

    def plots(self, config: Config) -> tuple[Plot, ...]:
        headline = self.metrics_of(config)[0]
        time = time_of(config.workload)
        return (
            Plot(title=f"{headline.name} between nodes", kind="matrix", name=headline.tag),
            size_plot(
                TABLE,
                f"{time.capitalize()} by message size",
                f"{time}_p50" if config.workload.is_latency else time,
            ),
            size_plot(TABLE, "Bandwidth by message size", "bandwidth"),
        )


def _environment(spec: UcxSpec, rank: Rank) -> dict[str, str]:
    # At this level UCX prints its version and the selected transports before it measures.
    env = {"UCX_TLS": ",".join(spec.transports), "UCX_LOG_LEVEL": "info"}
    if rank.interface and not spec.needs_device:
        # Otherwise UCX may use any interface that is up.
        env["UCX_NET_DEVICES"] = rank.interface
    return env
