"""Speed and latency of a volume, measured by fio."""

from aiperf_svc.workloads.fio.workload import Fio as _Fio

WORKLOAD = _Fio()
