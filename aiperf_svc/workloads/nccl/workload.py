"""Runs one program of nccl-tests, with one process per GPU."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.units import SizeBytes
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.cluster.facts import is_gpu
from aiperf_svc.core.results.measured import Column, MetricInfo, Table
from aiperf_svc.workloads.mpi_launch import Transport, open_mpi, rdma_privilege
from aiperf_svc.workloads.nccl.output import Row, read_output, read_row
from aiperf_svc.workloads.steps import (
    Output,
    Plot,
    Rank,
    Reading,
    Step,
    Tool,
    UnreadableOutput,
    size_plot,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload, gpu_problems


class NcclSpec(WorkloadSpec):
    """One operation of nccl-tests between all GPUs, for sizes that double."""

    kind: Literal["nccl"] = "nccl"
    operation: Literal[
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "alltoall",
        "gather",
        "scatter",
        "sendrecv",
    ] = "all_reduce"
    """The program is `OPERATION_perf` of nccl-tests, built with `MPI=1`."""
    min_bytes: SizeBytes = 8
    """Smallest message size."""
    max_bytes: SizeBytes = 2**30
    """Largest message size. Each size is twice the previous one, from `min_bytes` on."""
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs per rank, with one process for each."""
    ranks: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Number of ranks. With `deployment.ranks.nodes: apart`, each has its own node."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Timed operations per size."""
    warmup: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Untimed operations before these."""
    datatype: Literal["float", "double", "half", "bfloat16", "int8", "int32"] = "float"
    transport: Transport = "tcp"
    """Transport between nodes. `rdma` needs an RDMA device in `deployment.ranks.devices`, in
    addition to the GPUs."""

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        if not 0 < self.min_bytes <= self.max_bytes:
            raise ValueError(
                f"{{min_bytes}} {self.min_bytes} and {{max_bytes}} {self.max_bytes} leave no size"
            )
        return self

    @property
    def sizes(self) -> int:
        """Return the number of measured sizes."""
        return (self.max_bytes // self.min_bytes).bit_length()


Config = WorkloadConfig[NcclSpec]
_GB = 1e9


class Nccl(ToolWorkload[NcclSpec]):
    """The kind `nccl`."""

    kind = "nccl"
    summary = "bandwidth of a collective operation between GPUs, by nccl-tests"
    spec = NcclSpec
    rank_key = "ranks"
    tools = (Tool("mpirun", "openmpi-bin"), Tool("all_reduce_perf", ""))
    metrics = (
        MetricInfo(
            tag="bus_bandwidth",
            name="Bus bandwidth, average of all sizes",
            unit="bytes/s",
            better="higher",
            formula="`# Avg bus bandwidth`, the mean of all busbw values",
        ),
        MetricInfo(
            tag="bus_bandwidth_peak",
            name="Peak bus bandwidth",
            unit="bytes/s",
            better="higher",
            formula="largest busbw of all rows, out-of-place and in-place",
        ),
        MetricInfo(
            tag="latency",
            name="Latency at the smallest size",
            unit="us",
            better="lower",
            formula="out-of-place time(us) of the first row with a size above 0",
        ),
    )

    def tools_of(self, config: Config) -> tuple[Tool, ...]:
        return (self.tools[0], Tool(f"{config.workload.operation}_perf", ""))

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        program = [f"{spec.operation}_perf", "-b", str(spec.min_bytes), "-e", str(spec.max_bytes)]
        program += ["-f", "2", "-g", "1", "-n", str(spec.iterations), "-w", str(spec.warmup)]
        program += ["-c", "1", "-d", spec.datatype]
        command = open_mpi(
            [(rank, spec.gpus) for rank in ranks],
            program,
            spec,
            # The processes only meet through MPI; the measured messages are NCCL's.
            "tcp",
            shares_memory=True,
            env=_env(spec, ranks),
        )
        return (
            Step(
                name=spec.operation,
                commands=(command,),
                agent_ranks=tuple(rank.number for rank in ranks[1:]),
                timeout_ns=timeout_of(spec, HOUR_NS),
            ),
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        spec = config.workload
        output = read_output(outputs[0].text, gpus=spec.ranks * spec.gpus, sizes=spec.sizes)
        # A size that gives each GPU less than 16 bytes is measured without data, and reported as
        # such.
        smallest = next((row for row in output.rows if row.size), None)
        if smallest is None:
            raise UnreadableOutput("every row has the size 0: raise workload.max_bytes")
        peak = max(max(row.out_of_place.bus_gb_s, row.in_place.bus_gb_s) for row in output.rows)
        facts = {"transport": spec.transport, "gpus": str(spec.ranks * spec.gpus)}
        if output.reduced_to is not None:
            facts["max_bytes"] = f"reduced to {output.reduced_to} by the GPUs' memory"
        return Reading(
            values={
                "bus_bandwidth": output.average_gb_s * _GB,
                "bus_bandwidth_peak": peak * _GB,
                "latency": smallest.out_of_place.time_us,
            },
            tables=(
                Table(
                    name="nccl",
                    columns=(
                        Column("size", "bytes"),
                        Column("time", "us"),
                        Column("algorithm_bandwidth", "bytes/s"),
                        Column("bus_bandwidth", "bytes/s"),
                        Column("in_place_time", "us"),
                        Column("in_place_algorithm_bandwidth", "bytes/s"),
                        Column("in_place_bus_bandwidth", "bytes/s"),
                    ),
                    rows=tuple(_cells(row) for row in output.rows),
                ),
            ),
            tool=output.tool,
            errors=output.errors,
            facts=facts,
        )

    def device_problems(self, config: Config) -> list[str]:
        spec = config.workload
        found = gpu_problems(config, spec.gpus)
        if spec.transport == "rdma" and all(map(is_gpu, config.deployment.ranks.devices)):
            found.append(
                "workload.transport: rdma needs a device in addition to GPUs: name its resource in "
                "deployment.ranks.devices, such as rdma/hca_shared_devices_a: 1"
            )
        return found

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        return rdma_privilege(config.workload.transport)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (
            size_plot("nccl", "Bus bandwidth by size", "bus_bandwidth", "in_place_bus_bandwidth"),
            size_plot("nccl", "Time by size", "time", "in_place_time"),
        )

    def progress(self, config: Config, line: str) -> str:
        row = read_row(line)
        return "" if row is None else f"{row.size} bytes: {row.out_of_place.bus_gb_s:g} GB/s"


def _env(spec: NcclSpec, ranks: Sequence[Rank]) -> dict[str, str]:
    """Return variables that make NCCL print its version and use the ranks' network."""
    env = {"NCCL_DEBUG": "VERSION"}
    if spec.transport == "tcp":
        env["NCCL_IB_DISABLE"] = "1"
    interfaces = {rank.interface for rank in ranks}
    if len(interfaces) == 1 and "" not in interfaces:
        env["NCCL_SOCKET_IFNAME"] = interfaces.pop()
    return env


def _cells(row: Row) -> tuple[float, ...]:
    halves = (row.out_of_place, row.in_place)
    return (
        row.size,
        *(
            cell
            for half in halves
            for cell in (half.time_us, half.algorithm_gb_s * _GB, half.bus_gb_s * _GB)
        ),
    )
