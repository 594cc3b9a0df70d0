"""Measures a ping-pong between two ranks by IMB-MPI1 or by a script of mpi4py."""

from collections.abc import Sequence
from importlib.resources import files as resources
from typing import Annotated, Literal

from pydantic import Field

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.results.measured import Column, MetricInfo, Table
from aiperf_svc.workloads.mpi_launch import (
    Transport,
    intel_mpi,
    open_mpi,
    rdma_privilege,
    rdma_problems,
)
from aiperf_svc.workloads.mpi_pingpong.output import read_output, read_row, sizes_to
from aiperf_svc.workloads.pairs import Pair, pair_labels, pair_name, pairs
from aiperf_svc.workloads.steps import (
    ClaimedBytes,
    Output,
    Plot,
    Rank,
    Reading,
    Step,
    Tool,
    margin_ns,
    size_plot,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload


class MpiPingPongSpec(WorkloadSpec):
    """Settings: for each size, a message is sent from one rank to another and back."""

    kind: Literal["mpi-pingpong"] = "mpi-pingpong"
    transport: Transport = "tcp"
    """`rdma` needs `deployment.ranks.devices`."""
    maxlog: Annotated[int, Field(ge=0, le=30)] = 22
    """Message sizes are 0 bytes and all powers of two up to 2^maxlog bytes."""
    iterations: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000
    """Round trips per size. Sizes above 40 MiB / iterations have fewer: as many as transfer 40 MiB
    one way."""
    program: Literal["mpi4py", "imb"] = "mpi4py"
    """`mpi4py`: a script of this project that needs Python and mpi4py; `imb`: IMB-MPI1 of the Intel
    MPI Benchmarks, which the image must have on PATH."""
    mpi: Literal["open-mpi", "intel-mpi"] = "open-mpi"
    """MPI implementation of the `mpirun` on PATH."""


Config = WorkloadConfig[MpiPingPongSpec]
_SCRIPT = "pingpong.py"
_MAX_SIZE_NS = 10 * SECOND_NS
"""Maximum time of one message size: IMB-MPI1 then ends it."""


class MpiPingPong(ToolWorkload[MpiPingPongSpec]):
    """The kind `mpi-pingpong`."""

    kind = "mpi-pingpong"
    summary = "latency and bandwidth of MPI messages between two ranks, by message size"
    spec = MpiPingPongSpec
    tools = (Tool("mpirun", "openmpi-bin"), Tool("python3", "python3-mpi4py"))
    metrics = (
        MetricInfo(
            tag="latency",
            name="Latency at 0 bytes",
            unit="us",
            better="lower",
            formula="t[usec] at 0 bytes: half the mean round-trip time",
        ),
        MetricInfo(
            tag="bandwidth",
            name="Peak bandwidth",
            unit="bytes/s",
            better="higher",
            formula="largest #bytes / t[usec] of all rows",
        ),
    )

    def tools_of(self, config: Config) -> tuple[Tool, ...]:
        spec = config.workload
        mpirun, program = self.tools
        if spec.mpi != "open-mpi":
            mpirun = Tool("mpirun", "")
        return (mpirun, Tool("IMB-MPI1", "") if spec.program == "imb" else program)

    def files(self, config: Config) -> dict[str, bytes]:
        if config.workload.program == "imb":
            return {}
        return {_SCRIPT: (resources(__package__) / "on_ranks" / _SCRIPT).read_bytes()}

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        """Return one step per pair. A round trip covers both directions, so each pair is measured
        once."""
        return tuple(_step(config, pair) for pair in pairs(config, ranks, is_directed=False))

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        spec = config.workload
        output = read_output(outputs[0].text, sizes_to(spec.maxlog))
        rates = [row.size / row.time_us * 1e6 for row in output.rows]
        claimed = {}
        if output.sent_bytes is not None and spec.transport == "tcp":
            both = ClaimedBytes(sent=output.sent_bytes, received=output.sent_bytes)
            claimed = dict.fromkeys((outputs[0].rank, *step.agent_ranks), both)
        return Reading(
            values={"latency": output.rows[0].time_us, "bandwidth": max(rates)},
            tables=(
                Table(
                    name="pingpong",
                    columns=(
                        Column("size", "bytes"),
                        Column("repetitions", "count"),
                        Column("latency", "us"),
                        Column("bandwidth", "bytes/s"),
                    ),
                    rows=tuple(
                        (row.size, row.repetitions, row.time_us, rate)
                        for row, rate in zip(output.rows, rates, strict=True)
                    ),
                ),
            ),
            tool=output.tool,
            claimed_bytes=claimed,
            facts={"transport": spec.transport, "mpi": spec.mpi},
        )

    def problems(self, config: Config) -> list[str]:
        return rdma_problems(config, config.workload.transport)

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        return rdma_privilege(config.workload.transport)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        by_size = (
            size_plot("pingpong", "Latency by message size", "latency"),
            size_plot("pingpong", "Bandwidth by message size", "bandwidth"),
        )
        if config.deployment.ranks.pairs == "one":
            return by_size
        return (
            Plot(title="Latency at 0 bytes between nodes", kind="matrix", name="latency"),
            Plot(title="Peak bandwidth between nodes", kind="matrix", name="bandwidth"),
            *by_size,
        )

    def progress(self, config: Config, line: str) -> str:
        row = read_row(line)
        return "" if row is None else f"{row.size} bytes: {row.time_us:g} us"


def _step(config: Config, pair: Pair) -> Step:
    spec = config.workload
    hosts = [(rank, 1) for rank in pair]
    program = ["IMB-MPI1", "PingPong", "-msglog", f"0:{spec.maxlog}"]
    program += ["-iter", str(spec.iterations)]
    if spec.program == "mpi4py":
        program = ["python3", _SCRIPT, str(spec.maxlog), str(spec.iterations)]
    launch = open_mpi if spec.mpi == "open-mpi" else intel_mpi
    return Step(
        name=pair_name(pair),
        commands=(launch(hosts, program, spec, spec.transport),),
        agent_ranks=(pair[1].number,),
        timeout_ns=timeout_of(spec, margin_ns((spec.maxlog + 2) * _MAX_SIZE_NS)),
        labels=pair_labels(pair),
    )
