"""The maximum that stacks take of a cluster at one time, and for how long, checked against the
limits of their config (`deployment.limits`). Pure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.deployment import Limits
from aiperf_svc.config.events import Event
from aiperf_svc.config.target import HOST
from aiperf_svc.config.units import format_cpu, format_duration, format_size
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.number_text import cores, count, gibibytes, significant
from aiperf_svc.plan.pods import HOSTNAME, PodPlan
from aiperf_svc.plan.release import max_replicas

SURGE = 0.25
"""Share of its pods that Kubernetes adds to a Deployment during a rolling update."""


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum resources taken of a cluster."""

    nodes: int
    pods: int
    gpus: int
    cpu_millis: int
    memory_bytes: int
    time_ns: int
    """Time in ns from the creation of the first object until everything has removed itself."""

    @property
    def gpu_hours(self) -> float:
        """Return the GPU hours if all GPUs are held the whole time."""
        return self.gpus * self.time_ns / HOUR_NS

    @property
    def as_json(self) -> dict[str, float]:
        """Return the content of a JSON object, with the time in seconds."""
        found = msgspec.structs.asdict(self)
        return {**found, "time_s": found.pop("time_ns") / 1e9}

    @property
    def text(self) -> str:
        """Return one line for reviewers."""
        time = format_duration(self.time_ns)
        hours = f"({significant(self.gpu_hours, 3)} GPU-hours)"
        gpus = f", {count(self.gpus, 'GPU')} {hours}" if self.gpus else ""
        return (
            f"{count(self.pods, 'pod')} on at most {count(self.nodes, 'node')}, "
            f"{cores(self.cpu_millis)} CPU, {gibibytes(self.memory_bytes)} memory{gpus} "
            f"for at most {time}"
        )


def max_nodes(pods: Sequence[PodPlan], at_once: Mapping[str, int]) -> int:
    """Return the maximum number of nodes of these pods: those that their placement names, and one
    for each pod that may run anywhere. `at_once` maps pod names to replicas."""
    named: set[str] = set()
    others = 0
    for pod in pods:
        names = _nodes_of(pod)
        named |= names
        if not names:
            others += (
                min(1, at_once[pod.name]) if pod.replicas_on == "together" else (at_once[pod.name])
            )
    return min(len(named) + others, sum(at_once[pod.name] for pod in pods))


def with_events(
    at_once: Mapping[str, int], events: Sequence[Event], target: PodPlan | None, deployment: str
) -> dict[str, int]:
    """Return the maximum replicas of each pod by name, while the events of a load scale the stack's
    own Deployments and restart its target, whose Deployment is called `deployment`."""
    peak, is_restarted = dict(at_once), False
    for event in events:
        is_own = event.deployment in (None, deployment)
        if event.do == "scale" and not event.foreign:
            name = HOST if is_own else f"Deployment/{event.deployment}"
            peak[name] = max(peak.get(name, 0), event.replicas or 0)
        is_restarted |= event.do == "restart" and is_own
    if target is not None and is_restarted and target.rollout == "RollingUpdate":
        peak[HOST] += math.ceil(peak[HOST] * SURGE)
    return peak


def with_autoscalers(at_once: Mapping[str, int], objects: Sequence[Json]) -> dict[str, int]:
    """Return the maximum replicas of each pod by name, with the autoscalers among the objects of a
    release."""
    peak = dict(at_once)
    for name, replicas in max_replicas(objects).items():
        peak[name] = max(peak[name], replicas)
    return peak


def _nodes_of(pod: PodPlan) -> set[str]:
    """Return the names of the nodes to which the placement limits a pod; empty: any."""
    if any(each.node for each in pod.sets):
        return {each.node for each in pod.sets}
    place = pod.placement
    if HOSTNAME in place.node_selector:
        return {place.node_selector[HOSTNAME]}
    return set(place.require_nodes.get(HOSTNAME, ()))


def of_stacks(stacks: Sequence[Sequence[Footprint]], *, at_once: int) -> Footprint:
    """Return the footprint of several members that run at the same time. Each member has one stack
    after the other, or `at_once` of them."""

    def most(name: str) -> int:
        ordered = [sorted((getattr(each, name) for each in m), reverse=True) for m in stacks]
        return sum(sum(values[:at_once]) for values in ordered)

    return Footprint(
        nodes=most("nodes"),
        pods=most("pods"),
        gpus=most("gpus"),
        cpu_millis=most("cpu_millis"),
        memory_bytes=most("memory_bytes"),
        # A stack may begin once the previous one has removed itself.
        time_ns=max(
            -(-len(member) // at_once) * max(each.time_ns for each in member) for member in stacks
        ),
    )


def of_one_stack(shapes: Sequence[Footprint]) -> Footprint:
    """Return the footprint of one stack that changes from each of these shapes to the next."""
    whole = of_stacks([shapes], at_once=1)
    return msgspec.structs.replace(whole, time_ns=max(each.time_ns for each in shapes))


LIMITS: Final[Mapping[str, tuple[str, Callable[[int], str]]]] = {
    "nodes": ("nodes", str),
    "pods": ("pods", str),
    "gpus": ("gpus", str),
    "cpu": ("cpu_millis", format_cpu),
    "memory": ("memory_bytes", format_size),
    "time": ("time_ns", format_duration),
}
"""Maps the name of a limit to its field of a footprint and the format of both values."""


def check_limits(limits: Limits, found: Footprint) -> None:
    """Raise ConfigError naming each exceeded limit, with both values."""
    exceeded = [
        f"{name} {text(value)}, limit {text(limit)}"
        for name, (field, text) in LIMITS.items()
        if (limit := getattr(limits, name)) is not None and (value := getattr(found, field)) > limit
    ]
    if not exceeded:
        return
    remedies = ["lower what the stack asks for (workers, deployment.pods, deployment.target)"]
    if limits.nodes is not None and found.nodes > limits.nodes:
        remedies.append(f"name the nodes (deployment.placement.require_nodes: {{{HOSTNAME}: […]}})")
    if limits.time is not None and found.time_ns > limits.time:
        remedies.append("lower deployment.ttl")
    raise ConfigError(
        f"deployment.limits: the stacks may take more: {'; '.join(exceeded)}; "
        f"{', '.join(remedies)}, or raise the limit"
    )
