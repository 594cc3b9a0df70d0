"""GPUs among the extended resources of a rank."""

from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.cluster.facts import is_gpu


def gpu_problems(config: WorkloadConfig[Any], gpus: int) -> list[str]:
    """Return the problems if each rank needs this number of GPUs, one line each."""
    devices = config.deployment.ranks.devices
    count = sum(number for resource, number in devices.items() if is_gpu(resource))
    if count == gpus:
        return []
    return [
        f"workload.gpus: {gpus} in each rank, but deployment.ranks.devices has {count}: write "
        f"nvidia.com/gpu: {gpus} there, or the resource of your GPUs"
    ]
