"""The replicas that start during a load: the runner's report, and the results derived from it.

This module has only types, which the runner reads without NumPy.
"""

from collections.abc import Iterator

import msgspec

from aiperf_svc.domain.shown_table import ShownTable

MOMENTS = {
    "created": "the API server has the pod",
    "scheduled": "it has a node",
    "pulled": "its image is on the node",
    "running": "its container has started",
    "loaded": "a line of its log shows that the model is loaded",
    "ready": "its readiness probe has passed",
    "first_token": "its own counter of generated tokens has begun to count",
}
"""Moments of a replica in their usual order, and what each means."""
NEEDS_GPU = ("scheduled", "first_token")
"""The moments between which a replica has its GPUs and does no work."""


class Replica(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pod of the server, as the watch has seen it. Times are by the clock of the run's records
    manager, at which the message came that shows them."""

    name: str
    node: str = ""
    gpus: int = 0
    was_there: bool = False
    """True if it existed before the watch."""
    image: str = ""
    """What the kubelet reports of its image: pulled and how long that took, or already present."""
    wall_ns: dict[str, int] = {}
    """Time of each of `MOMENTS` that was seen."""
    gone_wall_ns: int = 0
    """Time at which its deletion was requested; 0: not seen."""


class DesiredChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Another number of replicas is desired."""

    at_wall_ns: int
    source: str
    """The object that desires it: `Deployment llm`."""
    before: int
    after: int
    reason: str = ""
    """Why, as the autoscaler reports it."""


class ScalingReport(msgspec.Struct, kw_only=True, omit_defaults=True, tag="scaling"):
    replicas: tuple[Replica, ...] = ()
    changes: tuple[DesiredChange, ...] = ()
    not_watched: tuple[str, ...] = ()
    """Types of objects that could not be watched, each with the reason."""
    since_wall_ns: int = 0
    """Time at which the watch began."""
    until_wall_ns: int = 0
    """Time until which it is complete."""


class ReplicaTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that came up during the load. Times are in seconds from the load's start."""

    name: str
    node: str
    gpus: int
    image: str
    moments_s: dict[str, float]
    """Time of each of `MOMENTS` that was seen."""
    gone_s: float | None
    idle_s: float | None
    """Time from its node to its first token, or to its end if it gave none; None without a
    node."""


class ScaleUp(msgspec.Struct, frozen=True, kw_only=True):
    """An increase of the desired replicas, and what came of it. Times are in seconds; None: not
    seen."""

    source: str
    reason: str
    before: int
    after: int
    replicas: tuple[str, ...]
    """Names of the replicas that it made."""
    load_changed_s: float | None
    """When the load that it answers had increased, from the load's start; None: an event asked for
    it."""
    desired_s: float
    """When it was decided, from the load's start."""
    decision_s: float | None
    """Time from the change of the load to the decision."""
    scale_up_s: float | None
    """Time from the decision until all its replicas are ready."""
    use_s: float | None
    """Time from the readiness of the last one until all have given a token of the load."""
    recovery_s: float | None
    """Time from the change of the load, or without one from the decision, until the SLO holds
    again."""
    judged_s: float
    """Time in which it could do so: until the load changes again."""


class ScalingResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the replicas of a server followed the load."""

    scale_ups: tuple[ScaleUp, ...]
    replicas: tuple[ReplicaTimeline, ...]
    """Those that came up during the load, in the order of their creation."""
    desired: tuple[tuple[float, int], ...]
    """Time and number of each change of the desired replicas."""
    ready: tuple[tuple[float, int], ...]
    """The same of replicas that are ready."""
    limit: str
    """What `recovery_s` is judged by, in words; empty: it is not judged."""
    idle_gpu_s: float
    """GPU time without work: of each replica its GPUs times `idle_s`."""
    not_watched: tuple[str, ...] = ()


def scaling_tables(result: ScalingResult | None) -> list[ShownTable]:
    """Return the increases, and the moments of each replica; nothing of a run that did not watch
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
    heads = ("replica", "node", *names, "without work")
    return [
        ShownTable("Scaling", ("replicas", "by", *steps), ups, texts=(0, 1)),
        ShownTable(title, heads, replicas, list(_notes(result)), texts=(0, 1)),
    ]


def _notes(result: ScalingResult) -> Iterator[str]:
    """Yield what is to be known of the tables."""
    if not result.scale_ups:
        yield "no increase of the desired replicas was seen"
    if result.scale_ups and result.limit:
        yield f"the SLO holds again when {result.limit}"
    reasons = dict.fromkeys(each.reason for each in result.scale_ups if each.reason)
    yield from (f"reason of the autoscaler: {reason}" for reason in reasons)
    if result.not_watched:
        yield f"not watched: {', '.join(result.not_watched)}"


def seconds(value: float | None) -> str:
    """Return a time in words; a dash for none."""
    return "–" if value is None else f"{value:.1f} s"
