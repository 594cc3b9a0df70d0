"""Disturbances during the load: what happens to the server, when, and for how long."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.load import Load
from aiperf_svc.config.units import DurationNs, PositiveDurationNs, Share, format_duration

Kind = Literal[
    "kill", "stall", "delay", "loss", "delete-pod", "evict", "drain", "restart", "scale", "cut",
    "cpu"
]  # fmt: skip
TEMPORARY_KINDS: tuple[Kind, ...] = ("stall", "delay", "loss", "drain", "cut", "cpu")
"""Kinds that are undone after `duration`. `scale` without one is undone at the end of the load."""
LOCAL_KINDS: tuple[Kind, ...] = ("kill", "stall", "delay")
"""Kinds that a local run supports."""
CLUSTER_KINDS: tuple[Kind, ...] = (
    "kill", "stall", "delay", "loss", "delete-pod", "evict", "drain", "restart", "scale", "cut",
    "cpu"
)  # fmt: skip
"""Kinds that a stack supports."""
PACKET_KINDS: tuple[Kind, ...] = ("delay", "loss")
"""Kinds that a container in the pod of a stack's own target applies to the packets it sends."""
OWN_TARGET_KINDS: tuple[Kind, ...] = ("cut", *PACKET_KINDS)
"""Kinds that a stack supports for its own target only, not for a Deployment given by name."""
POOL_KINDS: tuple[Kind, ...] = ("delete-pod", "evict", "drain", "kill", "stall", "cpu")
"""Kinds that a pool of a release supports."""
SIGNALS: tuple[Kind, ...] = ("kill", "stall")
"""Kinds that send a signal to a process of a pod."""
MIN_BASELINE_NS = 10 * SECOND_NS
"""Minimum undisturbed time before an event, which is the baseline of its effects."""


class Event(Model):
    """One disturbance. It must be verified, or the run is invalid."""

    at: DurationNs
    """Time from the start of the measured load."""
    do: Kind
    """`kill` ends processes of the server (SIGKILL), `stall` stops them and lets them continue
    after `duration` (SIGSTOP, SIGCONT), `delay` adds `latency` to each time to first token of the
    mock server. In a stack: `delete-pod`, `evict`, `drain` the node of a pod, `restart` the
    Deployment, `scale` it to `replicas`, `cut` the target off by a NetworkPolicy, keep
    `cores` busy in its container (`cpu`), add `latency` to each packet that the target sends
    (`delay`), or lose a share of them (`loss`)."""
    duration: PositiveDurationNs | None = None
    """Time after which it is undone. `scale` without one is undone at the end of the load."""
    latency: PositiveDurationNs | None = None
    """Time that `delay` adds."""
    loss: Annotated[Share, Field(gt=0, lt=1)] | None = None
    """Share of the packets that `loss` drops: `1%`."""
    pick: Literal["one", "all"] = "one"
    """Which of several processes or pods: `one`, chosen by the seed, or `all`."""
    process: Annotated[str, Field(min_length=1)] | None = None
    """For a local run: PID or name of the process. Default: the mock server's processes that listen
    at the endpoint's URL."""
    replicas: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """Number of replicas that `scale` sets."""
    cores: Annotated[int, Field(gt=0, le=1_000)] | None = None
    """Number of busy loops of `cpu`. They stay within the limit of the container."""
    grace: DurationNs | None = None
    """Termination grace period of `delete-pod`. Default: that of the pod."""
    deployment: Annotated[str, Field(pattern=r"^([a-z0-9-]+/)?[a-z0-9.-]+$")] | None = None
    """For a stack: name of one of its Deployments, or with `foreign` of another one,
    `NAMESPACE/NAME`. Default: the stack's own target."""
    pool: Annotated[str, Field(min_length=1)] | None = None
    """For a stack: pool of its release (`deployment.target.pools`), no matter what created the
    pods."""
    foreign: bool = False
    """Allow disturbing what this tool did not start. It must be named."""

    @property
    def others(self) -> tuple[str, str] | None:
        """Namespace and name of the foreign Deployment that it disturbs."""
        if not self.foreign or self.deployment is None:
            return None
        namespace, _, name = self.deployment.partition("/")
        return namespace, name

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        is_lasting = self.do in TEMPORARY_KINDS
        if is_lasting and self.duration is None:
            raise ValueError(f"{{do}} {self.do} needs {{duration}}, after which it is undone")
        if not is_lasting and self.duration is not None and self.do != "scale":
            kinds = ", ".join((*TEMPORARY_KINDS, "scale"))
            raise ValueError(f"{{duration}} is for {{do}} {kinds}, not {self.do}")
        needed = {"latency": "delay", "loss": "loss", "replicas": "scale", "cores": "cpu"}
        for name, kind in needed.items():
            if (self.do == kind) != (getattr(self, name) is not None):
                raise ValueError(f"{{{name}}} is for {{do}} {kind}, which needs it")
        if self.grace is not None and self.do != "delete-pod":
            raise ValueError(f"{{grace}} is for {{do}} delete-pod, not {self.do}")
        if self.pool is not None:
            self._check_pool()
        self._check_foreign()
        return self

    def _check_pool(self) -> None:
        if self.deployment is not None or self.process is not None:
            raise ValueError("{pool} stands in place of {deployment} and {process}")
        if self.do not in POOL_KINDS:
            raise ValueError(
                f"{{pool}} is for {{do}} {', '.join(POOL_KINDS)}, not {self.do}; "
                "{deployment} names what can be restarted or scaled"
            )

    def _check_foreign(self) -> None:
        if self.process is not None and self.deployment is not None:
            raise ValueError(
                "{process} is for a local run, {deployment} for a stack; leave out one of them"
            )
        key = "process" if self.process is not None else "deployment"
        named = self.process or self.deployment
        is_others = self.process is not None or "/" in (self.deployment or "")
        if is_others and not self.foreign:
            raise ValueError(
                f"{{{key}}} {named!r} was not started by this tool; add {{foreign}}: true to "
                "disturb it"
            )
        if self.foreign and not is_others:
            raise ValueError(
                "{foreign} needs the name of what may be disturbed: {process}, or {deployment} as "
                "NAMESPACE/NAME"
            )
        if self.deployment is not None and self.do in OWN_TARGET_KINDS:
            raise ValueError(
                f"{{do}} {self.do} is for the stack's own target; leave out {{deployment}}"
            )
        if self.foreign and self.do == "scale" and self.duration is None:
            raise ValueError("{do} scale of a {deployment} outside the stack needs {duration}")
        if self.do == "delay" and self.process is not None:
            raise ValueError("{do} delay is for the mock server; leave out {process}")

    @property
    def end(self) -> int:
        """Time at which it is undone, in ns."""
        return self.at + (self.duration or 0)


def schedule_problem(events: tuple[Event, ...], load: Load) -> str:
    """Return why these events cannot be measured under this load; empty if they can."""
    if not load.is_open_loop:
        return (
            "{events} need an open loop ({load.request_rate}): users of a closed loop wait for the "
            "server, so requests that they do not send would not count as lost"
        )
    end, free_from = load.end, load.ramp
    if end is None and load.requests is not None and load.request_rate is not None:
        end = round(load.requests / load.request_rate * SECOND_NS)
    for number, event in enumerate(events):
        name = f"{{events}}: number {number + 1} ({event.do} at {format_duration(event.at)})"
        if end is not None and event.end >= end:
            return f"{name} ends after the load, which ends at {format_duration(end)}"
        if event.at < free_from + MIN_BASELINE_NS:
            before = "the start of the load or of the ramp" if not number else "the event before"
            return (
                f"{name} is less than {format_duration(MIN_BASELINE_NS)} after the end of {before} "
                f"({format_duration(free_from)}); it is compared with the time before it"
            )
        free_from = event.end
    return ""
