"""Settings of economics: what the target costs and consumes, to divide its throughput by."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Economics(Model):
    """The GPUs of the target, their price and their power."""

    gpus: Annotated[int, Field(gt=0)] | None = None
    """Number of GPUs that serve the target, for prefill and decode together. Default: the GPUs of
    `telemetry`, else those of the stack's own target."""
    price_per_gpu_hour: Amount | None = None
    """Price of one GPU for an hour, in US dollars."""
    kw_per_gpu: Amount | None = None
    """Power of the whole system per GPU, in kW, including its share of hosts, network and
    cooling."""
