"""Compares a load with the highest rate measured on this machine. Pure."""

import math

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.plan.topology import Facts, Topology


def beyond_ceiling(config: BenchmarkConfig, facts: Facts, topology: Topology) -> list[str]:
    """Return warnings for the user before the run; empty if the load is below the ceiling or
    nothing was calibrated.

    This is a warning and not an error: the ceiling was measured with the server on the same cores,
    and a server elsewhere leaves them to the client. The verdict decides.
    """
    rate, key = config.load.peak_rate, f"load.{_key(config.load)}"
    if rate is None or not facts.is_calibrated:
        return []
    needed = math.ceil(rate / facts.worker_requests_per_s)
    if rate > facts.ceiling_requests_per_s:
        machines = math.ceil(rate / facts.ceiling_requests_per_s)
        return [
            f"{key} {rate:,.0f}/s is beyond the {facts.ceiling_requests_per_s:,.0f}/s "
            f"that this machine was calibrated at, its server included; {needed} workers on about "
            f"{machines} such machines would do"
        ]
    if topology.workers < needed:
        return [
            f"{key} {rate:,.0f}/s is more than {topology.workers} workers carry at the "
            f"calibrated {facts.worker_requests_per_s:,.0f}/s each; {needed} would do: raise "
            "workers.max or, where there is one, load.concurrency"
        ]
    return []


def _key(load: Load) -> str:
    """Return the key that sets the highest rate."""
    shapes = ("stages", "rate_series", "bursts", "user_centric")
    return next((key for key in shapes if getattr(load, key) is not None), "request_rate")
