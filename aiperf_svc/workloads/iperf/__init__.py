"""Bandwidth between two ranks over TCP or UDP, measured by iperf3."""

from aiperf_svc.workloads.iperf.workload import Iperf as _Iperf

WORKLOAD = _Iperf()
