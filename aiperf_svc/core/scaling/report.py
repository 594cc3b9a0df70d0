"""The replicas that start during a load: the runner's report, and the results derived from it.

This module only has types, which the runner imports without NumPy.
"""

from collections.abc import Iterator

import msgspec

from aiperf_svc.domain.shown_table import ShownTable

MOMENTS = {
    "created": "the API server has the pod",
    "scheduled": "it is assigned to a node",
    "pulled": "its image is on the node",
    "running": "its container has started",
    "loaded": "a line of its log shows that the model is loaded",
    "ready": "its readiness probe has passed",
    "first_token": "its own counter of generated tokens has begun to count",
}
"""Moments of a replica in their usual order, and their meanings."""
NEEDS_GPU = ("scheduled", "first_token")
"""The moments between which a replica holds its GPUs without working."""


class Replica(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pod of the server, as observed by the watch. Times are by the clock of the run's records
    manager, when the message with the moment arrived."""

    name: str
    node: str = ""
    gpus: int = 0
    was_there: bool = False
    """True if it existed before the watch."""
    image: str = ""
    """The kubelet's report on its image: pulled, and how long that took, or already present."""
    wall_ns: dict[str, int] = {}
    """Time of each observed moment of `MOMENTS`."""
    gone_wall_ns: int = 0
    """Time at which its deletion was requested; 0: not observed."""


class DesiredChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A change of the desired number of replicas."""

    at_wall_ns: int
    source: str
    """The object with the desired number: `Deployment llm`."""
    before: int
    after: int
    reason: str = ""
    """Reason reported by the autoscaler."""


class ScalingReport(msgspec.Struct, kw_only=True, omit_defaults=True, tag="scaling"):
    replicas: tuple[Replica, ...] = ()
    changes: tuple[DesiredChange, ...] = ()
    not_watched: tuple[str, ...] = ()
    """Types of objects that could not be watched, each with the reason."""
    since_wall_ns: int = 0
    """Time at which the watch began."""
    until_wall_ns: int = 0
    """Time until which the report is complete."""


class ReplicaTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that came up during the load. Times are in seconds from the load's start."""

    name: str
    node: str
    gpus: int
    image: str
    moments_s: dict[str, float]
    """Time of each observed moment of `MOMENTS`."""
    gone_s: float | None
    idle_s: float | None
    """Time from its node to its first token, or to its end without a token; None without a
    node."""


class ScaleUp(msgspec.Struct, frozen=True, kw_only=True):
    """An increase of the desired replicas, and its effects. Times are in seconds; None: not
    observed."""

    source: str
    reason: str
    before: int
    after: int
    replicas: tuple[str, ...]
    """Names of the replicas that it created."""
    load_changed_s: float | None
    """When the load that caused it had increased, from the load's start; None: an event caused
    it."""
    desired_s: float
    """When it was decided, from the load's start."""
    decision_s: float | None
    """Time from the change of the load to the decision."""
    scale_up_s: float | None
    """Time from the decision until all of its replicas are ready."""
    use_s: float | None
    """Time from the readiness of the last replica until all have generated a token of the load."""
    recovery_s: float | None
    """Time from the change of the load, or otherwise from the decision, until the SLO holds
    again."""
    judged_s: float
    """Available time for the recovery: until the load changes again."""


class ScalingResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the replicas of a server followed the load."""

    scale_ups: tuple[ScaleUp, ...]
    replicas: tuple[ReplicaTimeline, ...]
    """Replicas that came up during the load, in the order of their creation."""
    desired: tuple[tuple[float, int], ...]
    """Time and number at each change of the desired replicas."""
    ready: tuple[tuple[float, int], ...]
    """Time and number at each change of the ready replicas."""
    limit: str
    """Criterion of `recovery_s` as text; empty if it is not judged."""
    idle_gpu_s: float
    """GPU time without work: GPUs times `idle_s`, summed over the replicas."""
    not_watched: tuple[str, ...] = ()


def scaling_tables(result: ScalingResult | None) -> list[ShownTable]:
    """Return the increases and the moments of each replica; empty if the run did not watch
    them."""
    if result is None:
        return []
    ups = []
    for up in result.scale_ups:
        recovery = seconds(up.recovery_s)
        if up.recovery_s is None and result.limit:
            recovery = f"> {up.judged_s:.0f} s"
        times = (up.load_changed_s, up.decision_s, up.scale_up_s, up.use_s)
        made = f"{up.before} → {up.after} at {up.desired_s:.1f} s"
        ups.append([made, up.source, *map(seconds, times), recovery])
    replicas = []
    for each in result.replicas:
        moments = (each.moments_s.get(name) for name in MOMENTS)
        replicas.append([each.name, each.node, *map(seconds, moments), seconds(each.idle_s)])
    steps = ("load changed", "decision", "scale-up", "first token", "SLO holds again")
    names = (name.replace("_", " ") for name in MOMENTS)
    title = "Replicas, in seconds from the start of the load"
    heads = ("replica", "node", *names, "idle")
    return [
        ShownTable("Scaling", ("replicas", "by", *steps), ups, texts=(0, 1)),
        ShownTable(title, heads, replicas, list(_notes(result)), texts=(0, 1)),
    ]


def _notes(result: ScalingResult) -> Iterator[str]:
    """Yield notes on the tables."""
    if not result.scale_ups:
        yield "the desired number of replicas did not increase"
    if result.scale_ups and result.limit:
        yield f"the SLO holds again when {result.limit}"
    reasons = dict.fromkeys(each.reason for each in result.scale_ups if each.reason)
    yield from (f"the autoscaler's reason: {reason}" for reason in reasons)
    if result.not_watched:
        yield f"not watched: {', '.join(result.not_watched)}"


def seconds(value: float | None) -> str:
    """Return a time as text; a dash for None."""
    return "–" if value is None else f"{value:.1f} s"
