"""The load: how many requests are sent, when, and for how long."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.load_shapes import (
    Agentic,
    Arrival,
    Bursts,
    Cancellation,
    Rate,
    RatePoint,
    Stage,
    SteadyState,
    UserCentric,
    Warmup,
)
from aiperf_svc.config.units import (
    DurationNs,
    PositiveDurationNs,
    UnboundedDurationNs,
    format_duration,
    format_share,
)
from aiperf_svc.domain.number_text import significant


class Load(Model):
    """The amount of load and its duration.

    Closed loop: `concurrency` users, each sending its next request when the response to the last
    one has ended. Open loop: `request_rate` requests a second whatever the server does, or with
    `fixed_schedule` each request at the time of its row in a trace; at most `concurrency` at a
    time when that is given too.
    """

    concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Closed loop: number of users, each of whom sends the next request when the previous response
    has ended. Open loop: limit on the requests in flight."""
    request_rate: Rate | None = None
    """Open loop: requests, or conversations, per second, no matter how slow the server is."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] | None = None
    """Open loop: a sequence of rates. The load ends with the last stage."""
    rate_series: Annotated[tuple[RatePoint, ...], Field(min_length=2)] | None = None
    """Open loop: a rate that changes linearly from point to point. Two points at the same time are
    a step. The load ends with the last point."""
    bursts: Bursts | None = None
    """Open loop: repeated bursts. Between bursts, requests are sent at `request_rate`, or not at
    all without it."""
    user_centric: UserCentric | None = None
    """Open loop: users who each take a turn of their conversation at a regular interval."""
    arrival: Arrival = Arrival()
    fixed_schedule: bool = False
    """Open loop: send each row of the trace at its own time. The load ends with the last row."""
    fixed_schedule_auto_offset: bool | None = None
    """Send the first row immediately. If false, it is sent at its own time, counted from time zero
    of the trace. Default: true without a start offset."""
    fixed_schedule_start_offset: DurationNs | None = None
    """Time in the trace at which the schedule starts. Earlier rows are left out."""
    fixed_schedule_end_offset: DurationNs | None = None
    """Time in the trace after which rows are left out."""
    replay_speedup: Annotated[float, Field(gt=0)] = 1.0
    """Speed of the replay relative to the trace: 2 is twice as fast."""
    requests: Annotated[int, Field(gt=0)] | None = None
    """Stop after this number of requests."""
    duration: PositiveDurationNs | None = None
    """Stop after this time, or after `requests` if that comes first."""
    min_duration: PositiveDurationNs | None = None
    """Stop after the first whole number of passes over the dataset that takes at least this time,
    so each prompt, conversation or session tree is started equally often. Replaces `requests` and
    `duration`."""
    grace_period: UnboundedDurationNs = 30 * SECOND_NS
    """Time after `duration` in which requests in flight may complete before they are cancelled.
    `inf`: until `endpoint.request_timeout`."""
    ramp: DurationNs = 0
    """Time over which concurrency or rate grows linearly from zero."""
    prefill_concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Limit on the requests that wait for their first token. Default: no limit."""
    prefill_ramp: DurationNs = 0
    """Time over which `prefill_concurrency` grows linearly from one."""
    samples_per_query: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Requests that are sent together as one query. The next query is sent when all of them have
    ended. Needs as many users, and one worker."""
    cancellation: Cancellation | None = None
    """Requests whose clients disconnect before the response has ended."""
    warmup: Warmup | None = None
    agentic: Agentic | None = None
    """Start in the middle of the session trees of an agent trace, with a warm cache, as on a server
    that has been in use for a while."""
    steady_state: SteadyState | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.samples_per_query > 1:
            self._check_queries()
        if self.fixed_schedule or self.rate_points:
            return self
        if self.concurrency is None and not self.is_open_loop:
            raise ValueError(
                "a load needs {concurrency} (closed loop) or {request_rate} (open loop)"
            )
        if self.requests is None and not self.duration and not self.min_duration:
            raise ValueError(
                "a load needs {requests}, {duration} or {min_duration}, or the run would never end"
            )
        if not self.is_open_loop and self.arrival != Arrival():
            raise ValueError(
                "{arrival.pattern} needs {request_rate}: a closed loop has no arrivals"
            )
        for name, length in (("duration", self.duration), ("min_duration", self.min_duration)):
            if length and self.ramp > length:
                ramp, limit = format_duration(self.ramp), format_duration(length)
                raise ValueError(f"{{ramp}} {ramp} is longer than {{{name}}} {limit}")
        return self

    @model_validator(mode="after")
    def _passes_fit(self) -> Self:
        if self.min_duration and (name := self._first_set("requests", "duration", *_SCHEDULES)):
            raise ValueError(
                f"{{{_NAMES.get(name, name)}}} and {{min_duration}} both end the load; set one of "
                "them"
            )
        return self

    @model_validator(mode="after")
    def _has_one_schedule(self) -> Self:
        """Refuse two keys that both define when requests are sent."""
        schedule = self._first_set(*_SCHEDULES)
        if not schedule:
            return self
        others = ["request_rate", *_SCHEDULES, "bursts", "ramp"]
        if schedule == "bursts":
            others.remove("request_rate")
        if schedule in ("fixed_schedule", "user_centric"):
            others.append("arrival")
        if name := self._first_set(*(each for each in others if each != schedule)):
            raise ValueError(
                f"{{{_NAMES.get(name, name)}}} and {{{_NAMES.get(schedule, schedule)}}} both "
                "define when requests are sent; set one of them"
            )
        return self

    @model_validator(mode="after")
    def _prefill_fits(self) -> Self:
        slots = self.prefill_concurrency
        if slots is None:
            if self.prefill_ramp:
                raise ValueError("{prefill_ramp} needs {prefill_concurrency}")
        elif self.concurrency is not None and slots > self.concurrency:
            raise ValueError(
                f"{{prefill_concurrency}} {slots} is above {{concurrency}} {self.concurrency}: it "
                "would limit nothing"
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if not self.fixed_schedule:
            if key := self._first_set(*SCHEDULE_PARTS):
                raise ValueError(f"{{{key}}} needs {{fixed_schedule}}")
            return self
        start, end = self.fixed_schedule_start_offset, self.fixed_schedule_end_offset
        if start is not None and self.fixed_schedule_auto_offset:
            raise ValueError(
                "{fixed_schedule_auto_offset} and {fixed_schedule_start_offset} both set the start "
                "of the schedule; leave out one of them"
            )
        if end is not None and end < (start or 0):
            raise ValueError(
                f"{{fixed_schedule_end_offset}} {format_duration(end)} is before "
                f"{{fixed_schedule_start_offset}} {format_duration(start or 0)}"
            )
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        times = [point.at for point in self.rate_series or ()]
        if times and (times[0] != 0 or times != sorted(times) or times[-1] == 0):
            raise ValueError(
                "{rate_series}: expected points in the order of their times, the first at 0s"
            )
        if self.rate_points and not any(rate for _, rate in self.rate_points):
            name = "stages" if self.stages else "rate_series"
            raise ValueError(f"{{{name}}}: every rate is 0; nothing would be sent")
        return self

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        warmup = self.warmup
        if warmup is None:
            return self
        if warmup.arrival is not None and not self.is_open_loop and warmup.request_rate is None:
            raise ValueError(
                "{warmup.arrival.pattern} needs {warmup.request_rate}: a closed loop has no "
                "arrivals"
            )
        follows = self.fixed_schedule or self.user_centric is not None
        if follows and warmup.request_rate is None:
            source = "fixed_schedule" if self.fixed_schedule else "user_centric.rate"
            for name, text in (("ramp", "ramp"), ("arrival", "arrival.pattern")):
                if getattr(warmup, name):
                    raise ValueError(
                        f"{{warmup.{text}}} needs {{warmup.request_rate}}: without one the warmup "
                        f"follows {{{source}}} too"
                    )
        slots = warmup.prefill_concurrency or self.prefill_concurrency
        users = warmup.concurrency or self.concurrency
        if warmup.prefill_ramp and slots is None:
            raise ValueError("{warmup.prefill_ramp} needs {warmup.prefill_concurrency}")
        if warmup.prefill_concurrency and users and warmup.prefill_concurrency > users:
            whose = "warmup.concurrency" if warmup.concurrency else "concurrency"
            raise ValueError(
                f"{{warmup.prefill_concurrency}} {warmup.prefill_concurrency} is above {{{whose}}} "
                f"{users}: it would limit nothing"
            )
        return self

    @model_validator(mode="after")
    def _agentic_fits(self) -> Self:
        if self.agentic is None:
            return self
        if self.is_open_loop:
            raise ValueError(
                "{agentic} begins with one session tree of each user; expected {concurrency} alone"
            )
        if self.warmup is not None:
            raise ValueError("{agentic} has a warmup of its own; leave out {warmup}")
        return self

    @property
    def has_warmup(self) -> bool:
        """Whether requests are sent before the measurement."""
        return self.warmup is not None or self.agentic is not None

    @property
    def limits_prefill(self) -> bool:
        """Whether the measurement or its warmup limits the requests in prefill."""
        in_warmup = self.warmup is not None and self.warmup.prefill_concurrency is not None
        return self.prefill_concurrency is not None or in_warmup

    def _check_queries(self) -> None:
        size = self.samples_per_query
        if self.is_open_loop or self.concurrency != size or self.ramp:
            raise ValueError(
                f"{{samples_per_query}} {size} needs {{concurrency}} {size}, and neither a "
                "schedule nor {ramp}: one query is in flight at a time"
            )
        own = ("concurrency", "request_rate", "ramp", "prefill_concurrency")
        if self.warmup is not None and any(getattr(self.warmup, name) for name in own):
            raise ValueError(
                f"{{samples_per_query}} {size}: the warmup sends queries too; leave out its own "
                "load ({warmup.concurrency})"
            )
        if name := self._first_set("cancellation", "prefill_concurrency"):
            raise ValueError(
                f"{{samples_per_query}} {size} sends and waits for whole queries; leave out "
                f"{{{_NAMES.get(name, name)}}}"
            )
        for limits in (self, self.warmup):
            if limits is not None and limits.requests is not None and limits.requests % size:
                raise ValueError(
                    f"{{samples_per_query}} {size}: {limits.requests} requests are not whole "
                    "queries"
                )

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are due by the clock rather than by the previous response."""
        of_one_rate = self.request_rate is not None or self.fixed_schedule
        has_shape = self.bursts is not None or self.user_centric is not None
        return of_one_rate or has_shape or bool(self.rate_points)

    @property
    def rate_points(self) -> tuple[tuple[int, float], ...]:
        """Times in ns and rates of a changing rate; empty for a constant one."""
        points = [(point.at, point.rate) for point in self.rate_series or ()]
        start = 0
        for stage in self.stages or ():
            points += [(start, stage.rate), (start + stage.duration, stage.rate)]
            start += stage.duration
        return tuple(points)

    @property
    def peak_rate(self) -> float | None:
        """Highest rate of an open loop; None in closed loop, or if a trace determines it."""
        rates = [rate for _, rate in self.rate_points]
        rates += [self.request_rate] if self.request_rate is not None else []
        rates += [each.rate for each in (self.bursts, self.user_centric) if each is not None]
        return max(rates, default=None)

    @property
    def end(self) -> int | None:
        """Time after which nothing is sent; None if only a number of requests or a trace ends the
        load."""
        ends = [self.duration, self.rate_points[-1][0] if self.rate_points else None]
        return min((each for each in ends if each is not None), default=None)

    @property
    def longest_schedule(self) -> int | None:
        """Time until the last row of a fixed schedule is due at the latest; None if unknown."""
        if self.fixed_schedule_end_offset is None:
            return None
        length = self.fixed_schedule_end_offset - (self.fixed_schedule_start_offset or 0)
        return round(length / self.replay_speedup)


_SCHEDULES = ("stages", "rate_series", "fixed_schedule", "user_centric", "bursts")
"""Keys that define when requests are sent, except those of a constant rate and of a closed loop."""
_NAMES = {
    "arrival": "arrival.pattern",
    "cancellation": "cancellation.rate",
    "user_centric": "user_centric.rate",
}
"""Names of parts in messages that differ from their keys."""
SCHEDULE_PARTS = (
    "fixed_schedule_auto_offset",
    "fixed_schedule_start_offset",
    "fixed_schedule_end_offset",
    "replay_speedup",
)


def describe_load(load: Load, *, with_pattern: bool = False) -> list[str]:
    """Describe how requests are sent, without the end of the load; with the arrival pattern if it
    applies."""
    pattern = f" ({load.arrival.pattern})" if with_pattern else ""
    parts = []
    if load.request_rate is not None:
        parts.append(f"{significant(load.request_rate, 6)} requests/s{pattern}")
    if load.rate_points:
        parts.append(_changing_rate(load) + pattern)
    if load.bursts is not None:
        parts.append(_bursts(load) + (pattern if load.request_rate is None else ""))
    if load.user_centric is not None:
        users = load.user_centric
        parts.append(f"{users.rate:g} requests/s of {users.users:,} users, each by its own clock")
    if load.fixed_schedule:
        parts.append(_schedule(load))
    if load.concurrency is not None:
        parts.append(f"{load.concurrency:,} concurrent")
    if load.prefill_concurrency is not None:
        parts.append(f"{load.prefill_concurrency:,} in prefill")
    if load.cancellation is not None and load.cancellation.rate:
        after = format_duration(load.cancellation.delay)
        parts.append(
            f"{format_share(load.cancellation.rate)} of the clients disconnect after {after}"
        )
    return parts


def _changing_rate(load: Load) -> str:
    if load.stages:
        return ", ".join(f"{s.rate:g}/s for {format_duration(s.duration)}" for s in load.stages)
    rates = [rate for _, rate in load.rate_points]
    return f"{min(rates):g} to {max(rates):g} requests/s in {len(rates)} points"


def _bursts(load: Load) -> str:
    bursts = load.bursts
    assert bursts is not None
    every, length = format_duration(bursts.every), format_duration(bursts.length)
    return f"every {every} a burst of {bursts.rate:g} requests/s for {length}"


def _schedule(load: Load) -> str:
    start, end = load.fixed_schedule_start_offset, load.fixed_schedule_end_offset
    parts = ["the trace's own times"]
    parts += [f"from {format_duration(start)}"] if start is not None else []
    parts += [f"to {format_duration(end)}"] if end is not None else []
    parts += [f"at {load.replay_speedup:g} times its speed"] if load.replay_speedup != 1 else []
    return " ".join(parts)
