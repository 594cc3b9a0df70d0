"""Runs iperf3 servers on one rank and clients on the other."""

from collections.abc import Sequence

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.workloads.iperf.output import read_processes
from aiperf_svc.workloads.iperf.spec import IperfSpec
from aiperf_svc.workloads.pairs import pair_labels, pair_name, pairs
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Step,
    Tool,
    margin_ns,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

Config = WorkloadConfig[IperfSpec]

_BANDWIDTH = (
    MetricInfo(
        tag="bandwidth",
        name="Bandwidth received",
        unit="bit/s",
        better="higher",
        formula="receiver's end.sum_received.bits_per_second, summed over processes",
    ),
    MetricInfo(
        tag="bandwidth_sent",
        name="Bandwidth sent",
        unit="bit/s",
        better="higher",
        formula="sender's end.sum_sent.bits_per_second, summed over processes",
    ),
)
_TCP = (
    MetricInfo(
        tag="retransmits",
        name="Retransmits",
        unit="count",
        better="lower",
        formula="sender's end.sum_sent.retransmits, summed over processes",
    ),
    MetricInfo(
        tag="rtt",
        name="RTT under load",
        unit="us",
        better="lower",
        formula="average of the sender's intervals[].streams[].rtt without omitted intervals",
    ),
    MetricInfo(
        tag="rtt_min",
        name="RTT under load, min",
        unit="us",
        better="lower",
        formula="smallest of the sender's intervals[].streams[].rtt without omitted intervals",
        in_table=False,
    ),
    MetricInfo(
        tag="rtt_max",
        name="RTT under load, max",
        unit="us",
        better="lower",
        formula="largest of the sender's intervals[].streams[].rtt without omitted intervals",
        in_table=False,
    ),
    MetricInfo(
        tag="pmtu",
        name="Path MTU",
        unit="bytes",
        formula="smallest of the sender's intervals[].streams[].pmtu in the last interval",
        in_table=False,
    ),
)
_UDP = (
    MetricInfo(
        tag="loss",
        name="Datagrams lost",
        unit="ratio",
        better="lower",
        formula="receiver's end.sum_received.lost_packets divided by .packets, over all processes",
    ),
    MetricInfo(
        tag="jitter",
        name="Jitter",
        unit="us",
        better="lower",
        formula="average over processes of the receiver's end.sum_received.jitter_ms",
    ),
)
_CPU = tuple(
    MetricInfo(
        tag=f"cpu_{end}",
        name=f"CPU of the {end}",
        unit="ratio",
        better="lower",
        formula=f"{end}'s end.cpu_utilization_percent.host_total / 100, summed over processes; "
        "1 is one core",
    )
    for end in ("client", "server")
)


def _backward(info: MetricInfo) -> MetricInfo:
    return MetricInfo(
        tag=f"{info.tag}_backward",
        name=f"{info.name}, server to client",
        unit=info.unit,
        better=info.better,
        formula=info.formula.replace("sum_received", "sum_received_bidir_reverse").replace(
            "sum_sent", "sum_sent_bidir_reverse"
        ),
        in_table=info.in_table,
    )


class Iperf(ToolWorkload[IperfSpec]):
    """The kind `iperf`."""

    kind = "iperf"
    summary = "bandwidth between two nodes over TCP or UDP, by iperf3"
    spec = IperfSpec
    tools = (Tool("iperf3", "iperf3"),)
    shows_traffic = True
    metrics = (
        *_BANDWIDTH,
        *_TCP,
        *_UDP,
        *_CPU,
        *(_backward(info) for info in (*_BANDWIDTH, *_TCP, *_UDP)),
    )

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        spec = config.workload
        of_path = (*_BANDWIDTH, *(_TCP if spec.protocol == "tcp" else _UDP))
        if spec.bidirectional:
            return (*of_path, *_CPU, *(_backward(info) for info in of_path))
        return (*of_path, *_CPU)

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        expected_ns = spec.omit + spec.duration
        ports = range(spec.port, spec.port + spec.processes)
        steps = []
        for pair in pairs(config, ranks, is_directed=not spec.bidirectional):
            # The first rank of a pair sends: the client, or the server with `reverse`.
            client, server = reversed(pair) if spec.reverse else pair
            steps.append(
                Step(
                    name=pair_name(pair),
                    labels=pair_labels(pair),
                    servers=tuple(_server(server, port) for port in ports),
                    commands=tuple(
                        Command(rank=client.number, argv=_client(spec, server.address, port))
                        for port in ports
                    ),
                    timeout_ns=timeout_of(spec, margin_ns(expected_ns)),
                    expected_ns=expected_ns,
                )
            )
        return tuple(steps)

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        return read_processes(
            config.workload,
            clients=[output for output in outputs if not output.is_server],
            servers=[output for output in outputs if output.is_server],
        )

    def plots(self, config: Config) -> tuple[Plot, ...]:
        of_protocol = {
            "tcp": (Plot(title="RTT under load", kind="series", name="rtt"),),
            "udp": (Plot(title="Datagrams lost", kind="series", name="loss"),),
        }
        return (
            Plot(title="Bandwidth between nodes", kind="matrix", name="bandwidth"),
            Plot(title="Bandwidth received", kind="series", name="bandwidth"),
            *of_protocol[config.workload.protocol],
        )


def _server(rank: Rank, port: int) -> Command:
    """Return the command of a server. It exits by itself after one test and then prints its JSON,
    which SIGTERM would lose."""
    argv = ("iperf3", "-s", "-1", "-J", "-i", "1", "-p", str(port))
    return Command(rank=rank.number, argv=argv, listens_on=port)


def _client(spec: IperfSpec, address: str, port: int) -> tuple[str, ...]:
    argv = ["iperf3", "-c", address, "-p", str(port), "-J", "-i", "1", "--connect-timeout", "5000"]
    argv += ["-t", str(spec.duration // SECOND_NS), "-O", str(spec.omit // SECOND_NS)]
    argv += ["-P", str(spec.streams)]
    if spec.protocol == "udp":
        argv.append("-u")
    if spec.bitrate is not None:
        argv += ["-b", str(spec.bitrate)]
    if spec.reverse:
        argv.append("-R")
    if spec.bidirectional:
        argv.append("--bidir")
    if spec.window is not None:
        argv += ["-w", str(spec.window)]
    if spec.mss is not None:
        argv += ["-M", str(spec.mss)]
    return tuple(argv)
