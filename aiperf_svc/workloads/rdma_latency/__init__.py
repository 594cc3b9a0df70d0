"""Latency of RDMA reads or writes between two ranks, measured by perftest."""

from aiperf_svc.workloads.rdma_latency.workload import RdmaLatency as _RdmaLatency

WORKLOAD = _RdmaLatency()
