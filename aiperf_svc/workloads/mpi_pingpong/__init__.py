"""Latency and bandwidth of MPI messages between two ranks."""

from aiperf_svc.workloads.mpi_pingpong.workload import MpiPingPong as _MpiPingPong

WORKLOAD = _MpiPingPong()
