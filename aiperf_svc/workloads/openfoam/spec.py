"""The keys of `workload: {kind: openfoam}`."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.workloads.mpi_launch import Transport


class OpenFoamSpec(WorkloadSpec):
    """One solution of the cavity by all processes together."""

    kind: Literal["openfoam"] = "openfoam"
    size: Literal["XS", "S", "M", "XL"] = "S"
    """Cells and time steps: XS 20³ and 20, S 100³ and 500, M 200³ and 2000, XL 400³ and 100."""
    processes: Annotated[int, Field(ge=1, le=100_000)] = 2
    """MPI processes of all nodes together."""
    nodes: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Ranks, among which the processes are divided."""
    iterative_method: Literal["fixed-iter", "fixed-norm"] = "fixed-iter"
    """`fixed-iter`: each time step does the same number of solver iterations, so that the work is
    the same on all hardware; `fixed-norm`: each solves the pressure to a residual of 1e-4."""
    transport: Transport = "tcp"
    """`rdma` needs `deployment.ranks.devices`."""

    @field_validator("size", mode="before")
    @classmethod
    def _has_a_definition(cls, value: object) -> object:
        if value == "XXL":
            raise ValueError("no published case defines this size; expected XS, S, M or XL")
        return value

    @model_validator(mode="after")
    def _uses_each_node(self) -> Self:
        if self.processes < self.nodes:
            raise ValueError(
                f"{{processes}} {self.processes} leaves some of {{nodes}} {self.nodes} without work"
            )
        return self
