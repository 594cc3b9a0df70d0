"""Records when replicas of a server are desired, created and ready, from the messages of watches.

API times are whole seconds by the clocks of several machines. Here the time of a moment is when the
first message that shows it arrived, by one clock.

    watch messages ──> ReplicaLog.handle ──> FollowReplica (for its log and its own page)
                                └── report ──> records manager
"""

from collections.abc import Mapping
from typing import NamedTuple

from aiperf_svc.core.cluster.conditions import containers_of, has_condition
from aiperf_svc.core.cluster.facts import gpus_of, server_container
from aiperf_svc.core.scaling.report import DesiredChange, Replica, ScalingReport
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

POD, EVENT, HPA = "Pod", "Event", "HorizontalPodAutoscaler"
SCALED_OBJECT, ADAPTER = "ScaledObject", "DynamoGraphDeploymentScalingAdapter"
DESIRED = {
    "Deployment": ("spec", "replicas"),
    "StatefulSet": ("spec", "replicas"),
    ADAPTER: ("spec", "replicas"),
    HPA: ("status", "desiredReplicas"),
}
"""Member of each kind of object with the number of desired replicas."""
WITH_TEMPLATE = ("Deployment", "StatefulSet")
GRAPH_LABELS = ("nvidia.com/dynamo-graph-deployment-name", "nvidia.com/dynamo-component")
"""Labels that Dynamo's operator adds to the pods of a graph: the graph's name and the component."""
_PULLED, _RESCALED = "Pulled", "SuccessfulRescale"


class FollowReplica(NamedTuple):
    """Instruction: from now on, look for the replica's log line and its first token."""

    uid: str
    name: str
    container: str
    """Name of the server's container, since a pod may have others."""


class ReplicaLog:
    """The replicas with these labels, and the objects that desire them."""

    def __init__(self, labels: Mapping[str, str], port: int) -> None:
        """`port` is the port of the server's metrics page."""
        self._labels, self._port = labels, port
        self._replicas: dict[str, Replica] = {}
        """By UID."""
        self._containers: dict[str, str] = {}
        """Name of the server's container, by pod UID."""
        self._desired: dict[tuple[str, str], int] = {}
        self._workloads: set[str] = set()
        """Objects whose pods have the labels."""
        self._adapters: dict[str, Json] = {}
        """Graph and component that each of Dynamo's adapters scales, by adapter name."""
        self._graphs: set[tuple[str | None, ...]] = set()
        """Graphs and components of the replicas."""
        self._changes: list[DesiredChange] = []
        self._rescales: dict[str, str] = {}
        """Latest reason of each autoscaler, by name."""
        self._triggers: dict[str, str] = {}
        """Active KEDA triggers, by workload."""
        self._scaled: dict[str, str] = {}
        """Workload that each autoscaler scales."""
        self._followed: set[str] = set()
        self.not_watched: list[str] = []
        self.since_wall_ns = 0
        """Time at which the watch began."""

    def handle(
        self, kind: str, change: str, found: Json, *, now_wall_ns: int, is_first: bool = False
    ) -> list[FollowReplica]:
        """Record an object that was added, modified or deleted. `is_first`: it existed when the
        watch began."""
        if kind == POD:
            return self._handle_pod(change, found, now_wall_ns, is_first)
        if kind == EVENT:
            if not is_first:
                self._handle_event(found, now_wall_ns)
        elif kind == SCALED_OBJECT:
            self._handle_trigger(found)
        elif change != "DELETED":
            self._handle_desired(kind, found, now_wall_ns, is_first)
        return []

    def note(self, uid: str, moment: str, now_wall_ns: int) -> None:
        """Record a moment that the replica's log or page shows."""
        if uid in self._replicas:
            self._replicas[uid].wall_ns.setdefault(moment, now_wall_ns)

    def is_gone(self, uid: str) -> bool:
        """Return whether the deletion of a replica was requested."""
        return bool(self._replicas[uid].gone_wall_ns)

    def is_ready(self, uid: str) -> bool:
        """Return whether a replica has been ready."""
        return "ready" in self._replicas[uid].wall_ns

    def report(self, now_wall_ns: int = 0) -> ScalingReport:
        """Return everything known so far."""
        return ScalingReport(
            replicas=tuple(self._replicas.values()),
            changes=tuple(self._changes),
            not_watched=tuple(self.not_watched),
            since_wall_ns=self.since_wall_ns,
            until_wall_ns=now_wall_ns,
        )

    def _handle_pod(
        self, change: str, pod: Json, now_wall_ns: int, is_first: bool
    ) -> list[FollowReplica]:
        metadata, spec = pod["metadata"], pod["spec"]
        uid = metadata["uid"]
        if uid not in self._replicas:
            if change == "DELETED":
                return []
            self._replicas[uid] = Replica(
                name=metadata["name"], gpus=gpus_of(spec), was_there=is_first, wall_ns={}
            )
            labels = metadata.get("labels") or {}
            self._graphs.add(tuple(labels.get(each) for each in GRAPH_LABELS))
        replica = self._replicas[uid]
        if change == "DELETED" or "deletionTimestamp" in metadata:
            replica.gone_wall_ns = replica.gone_wall_ns or now_wall_ns
            return []
        replica.node = spec.get("nodeName") or replica.node
        container = self._containers[uid] = server_container(spec, self._port)
        is_running = any(
            each["name"] == container and "running" in (each.get("state") or {})
            for each in containers_of(pod)
        )
        seen = {
            "created": True,
            "scheduled": has_condition(pod, "PodScheduled"),
            "running": is_running,
            "ready": has_condition(pod, "Ready"),
        }
        for moment, has_come in seen.items():
            if has_come:
                replica.wall_ns.setdefault(moment, now_wall_ns)
        if not is_running or uid in self._followed or replica.was_there:
            return []
        self._followed.add(uid)
        return [FollowReplica(uid, replica.name, container)]

    def _handle_event(self, event: Json, now_wall_ns: int) -> None:
        about, reason = event["involvedObject"], event.get("reason")
        text = one_line(str(event.get("message") or ""))
        container = f"spec.containers{{{self._containers.get(about.get('uid'))}}}"
        if reason == _PULLED and about.get("fieldPath") == container:
            replica = self._replicas[about["uid"]]
            replica.wall_ns.setdefault("pulled", now_wall_ns)
            replica.image = replica.image or text
        elif reason == _RESCALED and about.get("kind") == HPA:
            _, _, why = text.partition("reason: ")
            self._rescales[about["name"]] = why or text
            self._explain(about["name"])

    def _handle_trigger(self, found: Json) -> None:
        """Record that a KEDA trigger is active. KEDA itself scales from zero in that case."""
        scaled = found["spec"]["scaleTargetRef"]
        name = found["metadata"]["name"]
        workload = f"{scaled.get('kind', 'Deployment')} {scaled['name']}"
        is_active = has_condition(found, "Active")
        self._triggers[workload] = f"ScaledObject {name} is active" if is_active else ""

    def _explain(self, autoscaler: str) -> None:
        """Add the reason of an autoscaler to the last change of its workload."""
        sources = (f"{HPA} {autoscaler}", self._scaled.get(autoscaler, ""))
        for source in sources:
            last = next((c for c in reversed(self._changes) if c.source == source), None)
            if last is not None and not last.reason:
                last.reason = self._rescales[autoscaler]

    def _handle_desired(self, kind: str, found: Json, now_wall_ns: int, is_first: bool) -> None:
        part, field = DESIRED[kind]
        name, number = found["metadata"]["name"], (found.get(part) or {}).get(field)
        is_own = self._is_relevant(kind, found)
        if number is None:
            return
        before = self._desired.get((kind, name))
        self._desired[kind, name] = number
        if is_first or not is_own or before is None or before == number:
            return
        source = f"{kind} {name}"
        change = DesiredChange(at_wall_ns=now_wall_ns, source=source, before=before, after=number)
        change.reason = self._triggers.get(source, "") if not before else ""
        self._changes.append(change)

    def _is_relevant(self, kind: str, found: Json) -> bool:
        """Return whether an object concerns these replicas."""
        name = found["metadata"]["name"]
        if kind in WITH_TEMPLATE:
            labels = found["spec"]["template"]["metadata"].get("labels") or {}
            is_own = self._labels.items() <= labels.items()
            self._workloads |= {f"{kind} {name}"} if is_own else set()
            return is_own
        if kind == HPA:
            scaled = found["spec"]["scaleTargetRef"]
            self._scaled[name] = f"{scaled['kind']} {scaled['name']}"
            if scaled["kind"] == ADAPTER:
                return self._has_graph(self._adapters.get(scaled["name"], {}))
            # An object without a template creates its pods through other objects.
            return self._scaled[name] in self._workloads or scaled["kind"] not in WITH_TEMPLATE
        self._adapters[name] = found["spec"].get("dgdRef") or {}
        return self._has_graph(self._adapters[name])

    def _has_graph(self, reference: Json) -> bool:
        """Return whether the replicas may belong to this graph and component, by their labels or,
        before there is a replica, by the requested labels."""
        # An adapter for a group of components names no component.
        component = reference.get("serviceName") or reference.get("componentName")
        scaled = (reference.get("name"), component)
        own = self._graphs or {tuple(self._labels.get(each) for each in GRAPH_LABELS)}
        return any(
            all(None in pair or pair[0] == pair[1] for pair in zip(scaled, each, strict=True))
            for each in own
        )
