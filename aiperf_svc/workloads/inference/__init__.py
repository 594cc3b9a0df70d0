"""An inference load: requests to a server, by users or at a rate."""

from aiperf_svc.workloads.inference.workload import Inference as _Inference

WORKLOAD = _Inference()
