"""The numbers by which throughput becomes economics: GPUs, their price, power and energy.

What follows from them, such as tokens a second for each GPU, is in the catalog of metrics. The
number of GPUs is that of the config, else that of the pages of GPUs, else that of the stack's own
target. The energy is used only if it is that of all GPUs.
"""

from typing import NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig


class EconomicNumbers(NamedTuple):
    """Scalars of the catalog, and where they are from."""

    scalars: dict[str, float]
    text: str = ""
    """For readers; empty if the number of GPUs is unknown."""


def economic_numbers(
    config: BenchmarkConfig, *, counted: int, joules: float | None
) -> EconomicNumbers:
    """Return what is known of a run. `counted` GPUs are on its pages, which show `joules` of
    energy under load; None: unknown."""
    economics = config.economics
    gpus, source = _gpus(config, counted)
    if not gpus:
        return EconomicNumbers({})
    found = {"gpu_count": float(gpus)}
    text = f"economics: {gpus} GPU{'s' * (gpus != 1)}, by {source}"
    if economics.price_per_gpu_hour is not None:
        found["price_per_gpu_hour"] = economics.price_per_gpu_hour
        text += f", ${economics.price_per_gpu_hour:g} a GPU hour"
    if economics.kw_per_gpu is not None:
        found["kw_per_gpu"] = economics.kw_per_gpu
        text += f", {economics.kw_per_gpu:g} kW a GPU"
    if joules is not None and counted == gpus:
        found["gpu_joules"] = joules
    elif joules is not None:
        text += f"; the energy is left out, since it is that of {counted} GPU{'s' * (counted != 1)}"
    return EconomicNumbers(found, text)


def _gpus(config: BenchmarkConfig, counted: int) -> tuple[int, str]:
    if config.economics.gpus is not None:
        return config.economics.gpus, "economics.gpus"
    if counted:
        return counted, "telemetry"
    target = config.deployment.target
    own = target.gpu.count * target.replicas if target.gpu is not None else 0
    return own, "deployment.target"
