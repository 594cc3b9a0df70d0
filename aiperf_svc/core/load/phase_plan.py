"""The plan of a phase: its load, its length, and how it starts and ends."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.config.load_shapes import Arrival, Bursts, UserCentric
from aiperf_svc.config.urls import address_of, is_loopback
from aiperf_svc.core.load.arrivals import BurstCurve, Curve, curve_of
from aiperf_svc.core.load.entry_order import order_of
from aiperf_svc.core.load.user_schedule import UserSchedule
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.dataset import DatasetShape

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
    """Times in ns and rates of a changing rate, which replaces `request_rate`."""
    schedule_ns: bytes = b""
    """Due time of each conversation of a fixed schedule, from the start of the phase, as int64
    little-endian; empty if there is none."""
    bursts: Bursts | None = None
    """Bursts, between which `request_rate` applies, or nothing is sent."""
    user_centric: UserCentric | None = None
    """Users with their own clocks, which replace `request_rate`."""
    turns: bytes = b""
    """Turns of each dataset entry of the phase, uint16 little-endian; only with `user_centric`."""
    arrival: Arrival = Arrival()
    random_seed: int = 0
    duration_ns: int = 0
    """Time from the start to the stop; 0: until the credits run out."""
    min_duration_ns: int = 0
    pass_size: int = 0
    """If set, the phase ends with the first multiple of this number of conversations that is
    granted once `min_duration_ns` has elapsed."""
    grace_ns: int = 0
    """Time from the stop at the end of the duration until requests in flight are cancelled."""
    ramp_ns: int = 0
    prefill_concurrency: int = 0
    """Maximum requests that wait for their first token; 0: no limit."""
    prefill_ramp_ns: int = 0
    is_target_near: bool = False
    """Whether connections to the target stay on the machine."""

    @property
    def is_open_loop(self) -> bool:
        """True if requests are due by the clock rather than by the previous response."""
        has_rate = self.request_rate is not None or self.curve is not None
        return has_rate or self.user_centric is not None or bool(self.schedule_ns)

    @property
    def max_workers(self) -> int | None:
        """Maximum number of workers that can take part. A worker without a place under a limit
        could not send its credits. None: all of them."""
        limits = [limit for limit in (self.concurrency, self.prefill_concurrency) if limit]
        return min(limits, default=None)

    @property
    def curve(self) -> Curve | None:
        """The rate over time, if it changes."""
        if self.rate_points:
            return curve_of(self.rate_points)
        if self.bursts is None:
            return None
        return BurstCurve(
            usual=self.request_rate or 0.0,
            burst=self.bursts.rate,
            length_s=self.bursts.length / 1e9,
            every_s=self.bursts.every / 1e9,
        )


def plan_phase(phase: Phase, config: BenchmarkConfig, shape: DatasetShape) -> PhasePlan | None:
    """Plan a phase; None for a warmup if the config has none."""
    load = config.load
    if phase is Phase.PROFILING:
        made = _plan(phase, load, config, shape, load.requests, load.end)
        if load.min_duration is None:
            return made
        entries = shape.entry_count - shape.warmup_entries
        minima = {"min_duration_ns": load.min_duration, "pass_size": entries}
        return msgspec.structs.replace(made, **minima)
    warmup = load.warmup
    if load.agentic is not None:
        # The first tree of each user, once.
        made = _plan(phase, load, config, shape, None, load.agentic.warmup_grace)
        return msgspec.structs.replace(made, credits=load.concurrency, grace_ns=0)
    if warmup is None:
        return None
    made = _plan(phase, _load_of_warmup(load), config, shape, warmup.requests, warmup.duration)
    if warmup.conversations is not None:
        # A trace has no more requests than rows.
        max_conversations = warmup.conversations if made.credits is None else made.credits
        credits = min(warmup.conversations, max_conversations)
        return msgspec.structs.replace(made, credits=credits, last_turns=0)
    return made


def _load_of_warmup(load: Load) -> Load:
    """Return the load of a warmup: the measurement's, except for the warmup's own keys."""
    warmup = load.warmup
    assert warmup is not None
    has_rate = warmup.request_rate is not None
    return load.model_copy(
        update={
            "concurrency": warmup.concurrency or load.concurrency,
            "request_rate": warmup.request_rate or _mean_rate(load),
            "stages": None,
            "rate_series": None,
            "bursts": None,
            "user_centric": None if has_rate else load.user_centric,
            "fixed_schedule": load.fixed_schedule and not has_rate,
            "arrival": warmup.arrival or load.arrival,
            "grace_period": warmup.grace_period,
            "ramp": warmup.ramp,
            "prefill_concurrency": warmup.prefill_concurrency or load.prefill_concurrency,
            "prefill_ramp": warmup.prefill_ramp,
        }
    )


def _users(load: Load, credits: int | None) -> int:
    """Return the users of the phase, or the maximum requests in flight; 0: no limit. Users without
    a conversation are excluded, but keep their positions in a ramp."""
    users = load.concurrency or 0
    return users if credits is None or load.ramp or load.is_open_loop else min(users, credits)


def _plan(
    phase: Phase,
    load: Load,
    config: BenchmarkConfig,
    shape: DatasetShape,
    requests: int | None,
    duration: int | None,
) -> PhasePlan:
    turns = turns_of(phase, shape)
    users = load.user_centric
    first: Sequence[int] = np.frombuffer(shape.first_turns, dtype="<u2").tolist()
    if users:
        first = UserSchedule(users=users.users, rate=users.rate, turns=turns).first
    order = order_of(config, len(turns)) if requests is not None and len(turns) else None
    # So many conversations have at least as many requests.
    taken = turns if order is None else turns[order.entries(requests or 0)]
    credits, last_turns = credits_for(requests, taken, first)
    scheduled = len(shape.due_ns) // 8
    if load.fixed_schedule and (credits is None or credits > scheduled):
        # A trace is replayed once.
        credits, last_turns = scheduled, 0
    return PhasePlan(
        phase=phase,
        credits=credits,
        last_turns=last_turns,
        concurrency=_users(load, credits),
        request_rate=load.request_rate,
        rate_points=load.rate_points,
        bursts=load.bursts,
        user_centric=users,
        turns=turns.astype("<u2").tobytes() if users else b"",
        schedule_ns=shape.due_ns if load.fixed_schedule else b"",
        arrival=load.arrival,
        random_seed=config.random_seed,
        duration_ns=duration or 0,
        grace_ns=config.endpoint.grace_ns(load.grace_period),
        ramp_ns=load.ramp,
        prefill_concurrency=load.prefill_concurrency or 0,
        prefill_ramp_ns=load.prefill_ramp,
        is_target_near=all(is_loopback(address_of(u).host) for u in config.endpoint.first_hops),
    )


def _mean_rate(load: Load) -> float | None:
    """Return the rate of a warmup: the load's, or the mean of a changing rate."""
    points, bursts = load.rate_points, load.bursts
    if points:
        return curve_of(points).expected(points[-1][0] / 1e9) / (points[-1][0] / 1e9)
    if bursts is None:
        return load.request_rate
    usual, share = load.request_rate or 0.0, bursts.length / bursts.every
    return usual + share * (bursts.rate - usual)


def turns_of(phase: Phase, shape: DatasetShape) -> Turns:
    """Return the number of turns of each dataset entry that a phase runs; empty if every entry has
    one."""
    turns = np.frombuffer(shape.turns, dtype="<u2")
    split = len(turns) - shape.warmup_entries
    is_own = phase is Phase.WARMUP and shape.warmup_entries
    return turns[split:] if is_own else turns[:split]


def credits_for(
    requests: int | None, turns: Turns, first: Sequence[int] = ()
) -> tuple[int | None, int]:
    """Return the number of conversations with `requests` in total, and the turns of the last one
    (0: all).

    Conversation `i` is entry `i` modulo the length of `turns`. `first` has the remaining turns of
    the first conversations (0: all).
    """
    if requests is None or not len(turns):
        return requests, 0
    for index, remaining in enumerate(first):
        whole = int(turns[index % len(turns)])
        took = min(remaining or whole, whole)
        if requests <= took:
            return index + 1, requests if requests < whole else 0
        requests -= took
    if first:
        credits, last_turns = credits_for(requests, np.roll(turns, -(len(first) % len(turns))))
        return (credits or 0) + len(first), last_turns
    sums = np.cumsum(turns, dtype=np.int64)
    rounds, rest = divmod(requests, int(sums[-1]))
    if rest == 0:
        return rounds * len(turns), 0
    last = int(np.searchsorted(sums, rest, side="left"))
    before = int(sums[last - 1]) if last else 0
    is_whole = rest - before == turns[last]
    return rounds * len(turns) + last + 1, 0 if is_whole else rest - before
