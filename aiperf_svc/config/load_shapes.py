"""Parts of a load: how its requests are spaced, how its rate changes, and what clients do."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.units import (
    DurationNs,
    PositiveDurationNs,
    Share,
    UnboundedDurationNs,
    format_duration,
    format_share,
)

MAX_RATE = 1_000_000
"""Maximum rate in requests per second. Due requests wait in memory until they are sent, so a
mistyped rate would fill the memory."""
Rate = Annotated[float, Field(gt=0, le=MAX_RATE)]
_NEVER_S = 4e9
"""Time that is later than any due time, within 64 bits of nanoseconds."""


class Arrival(Model):
    """The spacing of requests in open loop."""

    pattern: Literal["constant", "poisson", "gamma"] = "poisson"
    """Spacing of the requests of an open loop."""
    burstiness: Annotated[float, Field(ge=0.001)] = 1.0
    """Shape of the gamma distribution: 1 is Poisson, below 1 is burstier, above 1 is more regular.
    At 0.001, about a thousand requests arrive together."""

    @model_validator(mode="after")
    def _burstiness_belongs_to_gamma(self) -> Self:
        if self.burstiness != 1.0 and self.pattern != "gamma":
            raise ValueError(
                f"{{burstiness}} {self.burstiness:g} needs {{pattern}} gamma, not {self.pattern}"
            )
        return self


class Warmup(Model):
    """Requests sent before the measurement and left out of the results. Its load is that of the
    measurement, at the mean of a changing rate and without a ramp, except for the keys that are set
    here."""

    requests: Annotated[int, Field(gt=0)] | None = None
    """Number of warmup requests, which are excluded from the results."""
    conversations: Annotated[int, Field(gt=0)] | None = None
    """Number of warmup conversations, instead of `requests`."""
    duration: PositiveDurationNs | None = None
    """Length of the warmup."""
    grace_period: UnboundedDurationNs = 30 * SECOND_NS
    """Grace period of the warmup."""
    concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Concurrency of the warmup. Default: that of the measurement."""
    request_rate: Rate | None = None
    """Rate of the warmup, which is then an open loop. Default: that of the measurement."""
    arrival: Arrival | None = None
    """Spacing of the warmup's requests. Default: that of the measurement."""
    ramp: DurationNs = 0
    """Time over which the warmup's concurrency or rate grows linearly from zero."""
    prefill_concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Limit on the warmup's requests that wait for their first token. Default: that of the
    measurement."""
    prefill_ramp: DurationNs = 0
    """Time over which `prefill_concurrency` grows linearly from one."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.requests is not None and self.conversations is not None:
            raise ValueError(
                "{requests} and {conversations} both set the size of the warmup; set one of them"
            )
        if self.requests is None and self.conversations is None and not self.duration:
            raise ValueError("a warmup needs {requests} or {duration}")
        if self.duration and self.ramp > self.duration:
            ramp, duration = format_duration(self.ramp), format_duration(self.duration)
            raise ValueError(f"{{ramp}} {ramp} is longer than {{duration}} {duration}")
        return self


class SteadyState(Model):
    """The part of the measurement whose metrics are shown beside those of the whole, either by
    shares of its time or by its concurrency. It is fixed before the run, so it cannot be picked to
    suit the results."""

    skip_start: Annotated[Share, Field(ge=0, lt=1)] = 0.0
    """Share of the load's duration to exclude at its beginning."""
    skip_end: Annotated[Share, Field(ge=0, lt=1)] = 0.0
    """Share of the load's duration to exclude at its end."""
    concurrency: Annotated[Share, Field(gt=0, le=1)] | None = None
    """Use the longest period in which at least this share of the peak concurrency was in flight."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        skipped = self.skip_start + self.skip_end
        if (self.concurrency is None) == (not skipped):
            raise ValueError(
                "a steady state needs either {skip_start} or {skip_end}, or {concurrency}"
            )
        if skipped >= 1:
            raise ValueError(
                f"{{skip_start}} and {{skip_end}} leave out {skipped:.0%} of the load; expected "
                "less than 100%"
            )
        return self

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.concurrency is not None:
            return f"at least {format_share(self.concurrency)} of the peak concurrency"
        parts = (("first", self.skip_start), ("last", self.skip_end))
        return "without the " + " and the ".join(f"{n} {format_share(v)}" for n, v in parts if v)


class Stage(Model):
    """A time with one rate."""

    rate: Annotated[float, Field(ge=0, le=MAX_RATE)]
    duration: PositiveDurationNs


class RatePoint(Model):
    """A point of a rate that changes."""

    at: DurationNs
    rate: Annotated[float, Field(ge=0, le=MAX_RATE)]


class Bursts(Model):
    """A higher rate that recurs periodically."""

    rate: Rate
    """Requests per second during a burst, in place of the usual rate."""
    length: PositiveDurationNs
    every: PositiveDurationNs
    """Period. Each ends with its burst, so the first burst begins `every - length` after the
    start."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length >= self.every:
            length, every = format_duration(self.length), format_duration(self.every)
            raise ValueError(f"{{length}} {length} is not shorter than {{every}} {every}")
        return self


class UserCentric(Model):
    """Users who each take a turn of their conversation at a regular interval."""

    rate: Rate
    """Open loop: requests per second of all users together. Each user takes a turn of a
    conversation every `users / rate` seconds."""
    users: Annotated[int, Field(gt=0, le=1_000_000)]
    """Number of users that share `rate`."""

    @property
    def turn_gap_ns(self) -> int:
        """Time between two turns of the same user."""
        return round(min(self.users / self.rate, _NEVER_S) * 1e9)


class Cancellation(Model):
    """Clients that close their connections before their responses have ended."""

    rate: Share | None = None
    """Share of the requests whose clients disconnect before the response has ended, chosen at
    random."""
    delay: DurationNs = 0
    """Time after such a request has been sent completely until its client disconnects. A response
    that ends earlier is complete."""

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if self.rate is None:
            raise ValueError("{delay} needs {rate}, the share of requests whose clients disconnect")
        return self


class TrajectoryStart(Model):
    """Where in their recorded time the first session trees begin."""

    min: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Earliest start within a user's first session tree, as a fraction of its recorded duration, or
    of its requests if it has no times."""
    max: Annotated[float, Field(ge=0, le=1)] = 0.75
    """Latest start within a user's first session tree, as the same kind of fraction."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"{{min}} {self.min:g} is above {{max}} {self.max:g}")
        return self


class Agentic(Model):
    """Replay of agent traces on a server that has been in use for a while. The first tree of each
    user starts somewhere in its middle, after one-token requests that fill the server's cache with
    the tree's prompts up to there. Later trees start at their beginning."""

    start: TrajectoryStart = TrajectoryStart()
    warmup_requests: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Warmup requests of each user, in addition to the last one of each open stream: the next ones
    of its session tree, with one output token each and without pauses."""
    warmup_grace: PositiveDurationNs = 1_800 * SECOND_NS
    """Timeout of this warmup. If one of its requests fails, the run ends."""
    burst: bool = False
    """Send the first request of each user immediately, instead of after its recorded delay."""
    system_idle_cap: PositiveDurationNs | None = None
    """Maximum time without a request in flight while requests wait for their recorded times. After
    it, all waiting requests are moved to earlier times by the same amount. Needs one worker."""
    trajectory_idle_cap: PositiveDurationNs | None = None
    """Like `system_idle_cap`, but for each session tree separately and with any number of
    workers."""
