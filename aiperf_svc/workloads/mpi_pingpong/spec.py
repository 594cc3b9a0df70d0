"""The keys of `workload: {kind: mpi-pingpong}`."""

from typing import Annotated, Literal

from pydantic import Field

from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.workloads.mpi_launch import Transport


class MpiPingPongSpec(WorkloadSpec):
    """A message goes from one rank to another and comes back, for each size."""

    kind: Literal["mpi-pingpong"] = "mpi-pingpong"
    transport: Transport = "tcp"
    """`rdma` needs `deployment.ranks.devices`."""
    maxlog: Annotated[int, Field(ge=0, le=30)] = 22
    """Sizes are 0 bytes and all powers of two to 2^maxlog bytes."""
    iterations: Annotated[int, Field(ge=1, le=10_000_000)] = 1_000
    """Round trips of each size. Sizes above 40 MiB / iterations have fewer, as many as move 40 MiB
    one way."""
    program: Literal["mpi4py", "imb"] = "mpi4py"
    """`mpi4py`: a script of this project that needs Python and mpi4py; `imb`: IMB-MPI1 of the Intel
    MPI Benchmarks, which the image must have on PATH."""
    mpi: Literal["open-mpi", "intel-mpi"] = "open-mpi"
    """Whose `mpirun` is on PATH."""
