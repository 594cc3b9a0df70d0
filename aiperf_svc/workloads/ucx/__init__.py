"""Latency or bandwidth between two ranks over any network that UCX has a transport for."""

from aiperf_svc.workloads.ucx.workload import Ucx as _Ucx

WORKLOAD = _Ucx()
