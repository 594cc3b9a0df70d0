"""The keys of `workload: {kind: nccl}`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.units import SizeBytes
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.workloads.mpi_launch import Transport


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
    """The program is `OPERATION_perf`, built with `MPI=1`."""
    min_bytes: SizeBytes = 8
    """Smallest size."""
    max_bytes: SizeBytes = 2**30
    """Sizes are min_bytes and its doubles up to this one."""
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of each rank; each has a process of its own."""
    ranks: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Nodes, with `deployment.ranks.nodes: apart`."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Operations of each size."""
    warmup: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Operations before them that are not timed."""
    datatype: Literal["float", "double", "half", "bfloat16", "int8", "int32"] = "float"
    transport: Transport = "tcp"
    """Between nodes. `rdma` needs an RDMA device beside the GPUs in `deployment.ranks.devices`."""

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        if not 0 < self.min_bytes <= self.max_bytes:
            raise ValueError(
                f"{{min_bytes}} {self.min_bytes} and {{max_bytes}} {self.max_bytes} leave no size"
            )
        return self

    @property
    def sizes(self) -> int:
        """How many sizes are measured."""
        return (self.max_bytes // self.min_bytes).bit_length()
