"""Whether a load goes beyond what this machine was measured to give; pure."""

import math

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.plan.topology import Facts, Topology


def beyond_ceiling(config: BenchmarkConfig, facts: Facts, topology: Topology) -> list[str]:
    """What to tell the user before the run; empty when all is well or nothing was calibrated.

    A warning and no refusal: the ceiling was measured with the server on the same cores, and a
    server elsewhere leaves them to the client. The verdict has the last word.
    """
    rate = config.load.request_rate
    if rate is None or not facts.is_calibrated:
        return []
    needed = math.ceil(rate / facts.worker_requests_per_s)
    if rate > facts.ceiling_requests_per_s:
        machines = math.ceil(rate / facts.ceiling_requests_per_s)
        return [
            f"load.request_rate {rate:,.0f}/s is beyond the {facts.ceiling_requests_per_s:,.0f}/s "
            f"that this machine was calibrated at, its server included; {needed} workers on about "
            f"{machines} such machines would do"
        ]
    if topology.workers < needed:
        return [
            f"load.request_rate {rate:,.0f}/s is more than {topology.workers} workers carry at the "
            f"calibrated {facts.worker_requests_per_s:,.0f}/s each; {needed} would do: raise "
            "workers.max or, where there is one, load.concurrency"
        ]
    return []
