"""Bandwidth of RDMA reads or writes between two ranks, measured by perftest."""

from aiperf_svc.workloads.rdma_bandwidth.workload import RdmaBandwidth as _RdmaBandwidth

WORKLOAD = _RdmaBandwidth()
