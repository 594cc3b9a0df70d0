"""Bandwidth of a collective operation between GPUs, by nccl-tests."""

from aiperf_svc.workloads.nccl.workload import Nccl as _Nccl

WORKLOAD = _Nccl()
