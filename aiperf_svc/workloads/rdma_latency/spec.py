"""The keys of `workload: {kind: rdma-latency}`."""

from typing import Literal

from aiperf_svc.workloads.perftest import PerftestSpec


class RdmaLatencySpec(PerftestSpec):
    """`ib_write_lat` or `ib_read_lat` between two ranks, for sizes from 2 bytes to 8 MiB. These use
    one queue pair."""

    kind: Literal["rdma-latency"] = "rdma-latency"
