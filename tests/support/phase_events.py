"""Phase machines for tests and the events that they handle."""

from typing import Any

import numpy as np

from aiperf_svc.config.load_shapes import Arrival
from aiperf_svc.core.control.control_intervals import grant_interval_s
from aiperf_svc.core.load.phase_machine import SETTLE_EVERY_S, PhaseMachine, PhaseRequested, Wait
from aiperf_svc.core.load.phase_plan import PhasePlan
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.credits import CreditsReturned
from aiperf_svc.protocol.messages.reports import WorkerCounts

P = Phase.PROFILING
NOW = 1_700_000_000 * 10**9
MS = 10**6
S = 10**9


def machine_of(*workers: str, **plan: Any) -> PhaseMachine:
    """Return a machine with one user per worker; `plan` changes this."""
    defaults = {"phase": P, "credits": None, "concurrency": len(workers)}
    return PhaseMachine(PhasePlan(**(defaults | plan)), workers)


def started(*workers: str, **plan: Any) -> PhaseMachine:
    machine = machine_of(*workers, **plan)
    machine.handle(PhaseRequested(NOW))
    return machine


def at_rate(rate: float, *workers: str, **plan: Any) -> PhaseMachine:
    """Return a machine for an open loop with constant intervals."""
    arrival = Arrival(pattern="constant")
    return started(*workers, request_rate=rate, concurrency=0, arrival=arrival, **plan)


def returned(worker: str, *, is_idle: bool = True, **counts: Any) -> CreditsReturned:
    return CreditsReturned(
        "run", worker, 1, counts=WorkerCounts(P, **counts), is_idle=is_idle, taken_mono_ns=NOW
    )


def settle(workers: int) -> Wait:
    return Wait(SETTLE_EVERY_S, ends_on_news=True, then_s=grant_interval_s(workers))


def due(*times_ns: int) -> bytes:
    return np.array(times_ns, dtype="<i8").tobytes()
