"""Training and evaluation of a model with PyTorch."""

from aiperf_svc.workloads.pytorch.workload import PyTorch as _PyTorch

WORKLOAD = _PyTorch()
