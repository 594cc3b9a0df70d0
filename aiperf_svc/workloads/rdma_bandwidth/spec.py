"""The keys of `workload: {kind: rdma-bandwidth}`."""

from typing import Annotated, Literal

from pydantic import Field

from aiperf_svc.workloads.perftest import PerftestSpec


class RdmaBandwidthSpec(PerftestSpec):
    """`ib_write_bw` or `ib_read_bw` between two ranks, for sizes from 2 bytes to 8 MiB."""

    kind: Literal["rdma-bandwidth"] = "rdma-bandwidth"
    iterations: Annotated[int, Field(ge=5, le=20_000)] = 1000
    """Iterations for each message size. Above 20000 perftest does not report the peak."""
    qps: Annotated[int, Field(gt=0, le=16_384)] = 1
    """Queue pairs."""
