"""The plan of a phase: its load, its length, and how it starts and ends."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.config.load_shapes import Arrival
from aiperf_svc.config.urls import address_of, is_loopback
from aiperf_svc.core.load.rate_curve import curve_of
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import DatasetShape

Turns = NDArray[np.uint16]


class PhasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One phase as the config and the dataset define it."""

    phase: Phase
    credits: int | None
    """Number of conversations to run; None: as many as fit into the duration."""
    last_turns: int = 0
    """Turns to run of the last conversation; 0: all."""
    concurrency: int = 0
    """Total over all workers: users in closed loop, the cap in open loop (0: none)."""
    request_rate: float | None = None
    """Conversations per second in open loop; None: closed loop, or a fixed schedule."""
    rate_points: tuple[tuple[int, float], ...] = ()
    """Times in ns and rates of a rate that changes, in place of `request_rate`."""
    schedule_ns: bytes = b""
    """Due time of each conversation of a fixed schedule, from the start of the phase, as int64
    little-endian; empty: there is none."""
    arrival: Arrival = Arrival()
    random_seed: int = 0
    duration_ns: int = 0
    """Time from the start to the stop; 0: until the credits run out."""
    grace_ns: int = 0
    """Time from the stop at the end of the duration until requests in flight are cancelled."""
    ramp_ns: int = 0
    is_target_near: bool = False
    """Whether connections to the target cross no network."""

    @property
    def is_open_loop(self) -> bool:
        """True if requests are due by the clock rather than by the previous response."""
        has_rate = self.request_rate is not None or bool(self.rate_points)
        return has_rate or bool(self.schedule_ns)


def plan_phase(phase: Phase, config: BenchmarkConfig, shape: DatasetShape) -> PhasePlan | None:
    """Plan a phase; None for a warmup that the config does not have."""
    load = config.load
    limits = load.warmup if phase is Phase.WARMUP else load
    if limits is None:
        return None
    turns = turns_of(phase, shape)
    credits, last_turns = credits_for(limits.requests, turns)
    scheduled = len(shape.due_ns) // 8
    if load.fixed_schedule and (credits is None or credits > scheduled):
        # A trace is replayed once.
        credits, last_turns = scheduled, 0
    is_warmup = phase is Phase.WARMUP
    return PhasePlan(
        phase=phase,
        credits=credits,
        last_turns=last_turns,
        concurrency=load.concurrency or 0,
        request_rate=_mean_rate(load) if is_warmup else load.request_rate,
        rate_points=() if is_warmup else load.rate_points,
        schedule_ns=shape.due_ns,
        arrival=load.arrival,
        random_seed=config.random_seed,
        duration_ns=(limits.duration if is_warmup else load.end) or 0,
        grace_ns=limits.grace_period,
        ramp_ns=0 if is_warmup else load.ramp,
        is_target_near=all(is_loopback(address_of(url).host) for url in config.endpoint.all_urls),
    )


def _mean_rate(load: Load) -> float | None:
    """Return the rate of a warmup: the load's, or the mean of one that changes."""
    points = load.rate_points
    if not points:
        return load.request_rate
    return curve_of(points).expected(points[-1][0] / 1e9) / (points[-1][0] / 1e9)


def turns_of(phase: Phase, shape: DatasetShape) -> Turns:
    """Return the number of turns of each dataset entry that a phase runs; empty if every entry has
    one."""
    turns = np.frombuffer(shape.turns, dtype="<u2")
    split = len(turns) - shape.warmup_entries
    is_own = phase is Phase.WARMUP and shape.warmup_entries
    return turns[split:] if is_own else turns[:split]


def credits_for(requests: int | None, turns: Turns) -> tuple[int | None, int]:
    """Return the number of conversations that make up `requests`, and the turns of the last one (0:
    all).

    Conversation `i` is entry `i` modulo the length of `turns`.
    """
    if requests is None or not len(turns):
        return requests, 0
    sums = np.cumsum(turns, dtype=np.int64)
    rounds, rest = divmod(requests, int(sums[-1]))
    if rest == 0:
        return rounds * len(turns), 0
    last = int(np.searchsorted(sums, rest, side="left"))
    before = int(sums[last - 1]) if last else 0
    is_whole = rest - before == turns[last]
    return rounds * len(turns) + last + 1, 0 if is_whole else rest - before
