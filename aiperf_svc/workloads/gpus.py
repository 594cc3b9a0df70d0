"""GPUs among the extended resources of a rank."""

from typing import Any

from aiperf_svc.config.workload import WorkloadConfig


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU or a part of one: `nvidia.com/gpu`,
    `nvidia.com/mig-1g.5gb`."""
    name = resource.rpartition("/")[2]
    return name == "gpu" or name.startswith(("gpu.", "mig-"))


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
