"""Detects lost parts of a stack during a run, from the objects' statuses. Pure."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from aiperf_svc.core.cluster.conditions import conditions_of, containers_of, has_condition
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import COMPONENT_LABEL, TTL_ANNOTATION

ABSENT_LISTS = 2
"""Number of consecutive lists without a pod until it counts as gone: a list may be stale."""
FINISHED_LISTS = 5
"""Number of consecutive lists in which a pod may have finished without an error before it counts as
lost. Pods finish with their run, and the cluster may report that first."""
FINISHED = "ended with exit code 0"
DISRUPTIONS = {
    "EvictionByEvictionAPI": "was evicted, as by a drain of its node",
    "PreemptionByScheduler": "was evicted by the scheduler to make room for a pod of higher "
    "priority",
    "DeletionByTaintManager": "was deleted because its node got a taint that it does not tolerate",
    "DeletionByPodGC": "was deleted because its node is gone",
    "TerminationByKubelet": "was ended by its node, which ran short of memory or disk",
}
"""Reasons of the condition DisruptionTarget."""


class Loss(msgspec.Struct, frozen=True):
    """A loss that the run cannot recover from."""

    component: str
    """Component of the lost pod; empty for a root of the whole stack."""
    line: str
    """What happened, in one line."""


class RunLosses:
    """The stack's objects as first seen, and their changes since."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}
        """UIDs by kind and name."""
        self._pods: dict[str, Json] = {}
        """Pods as first seen, by UID."""
        self._absent: dict[str, int] = {}
        self._finished: dict[str, int] = {}
        self._reported: set[str] = set()

    def handle_root(self, kind: str, name: str, found: Json | None) -> Loss | None:
        """Record the state of a Namespace or anchor, and return its loss. `found` is None if it
        does not exist."""
        root = f"{kind} {name}"
        uid = found["metadata"]["uid"] if found else ""
        is_same = uid == self._roots.setdefault(root, uid)
        if found and is_same and "deletionTimestamp" not in found["metadata"]:
            return None
        if root in self._reported:
            return None
        self._reported.add(root)
        if found and _is_overdue(found["metadata"]):
            return Loss("", f"deployment.ttl has expired: the stack deleted its {root}")
        return Loss("", f"{root} was deleted during the run")

    def handle_pods(self, listed: Sequence[Json]) -> tuple[Loss, ...]:
        """Record the pods, and return those lost since the previous list."""
        present = {pod["metadata"]["uid"]: pod for pod in listed}
        if not self._pods:
            self._pods = present
        lost: list[Loss] = []
        for uid, first in self._pods.items():
            pod = present.get(uid)
            self._absent[uid] = 0 if pod else self._absent.get(uid, 0) + 1
            if uid in self._reported:
                continue
            cause = loss_cause(pod, first) if pod else self._absence(uid)
            self._finished[uid] = self._finished.get(uid, 0) + 1 if cause == FINISHED else 0
            if cause and (cause != FINISHED or self._finished[uid] >= FINISHED_LISTS):
                self._reported.add(uid)
                metadata = first["metadata"]
                component = metadata["labels"].get(COMPONENT_LABEL, "")
                lost.append(Loss(component, f"pod {metadata['name']} {cause}"))
        return tuple(lost)

    def _absence(self, uid: str) -> str:
        return "was deleted" if self._absent[uid] >= ABSENT_LISTS else ""


def loss_cause(pod: Json, first: Json) -> str:
    """Return how a pod was lost after it was first seen; empty if it still works."""
    metadata, status = pod["metadata"], pod.get("status", {})
    if has_condition(pod, "DisruptionTarget"):
        reason = conditions_of(pod)["DisruptionTarget"].get("reason", "")
        return DISRUPTIONS.get(reason) or f"was disrupted: {one_line(reason)}"
    if status.get("phase") == "Failed":
        message = one_line(" ".join((status.get("message") or "").split()))
        end = "was evicted" if status.get("reason") == "Evicted" else "failed"
        return f"{end}: {message or status.get('reason') or 'no reason given'}"
    before = {each["name"]: each for each in containers_of(first)}
    for each in containers_of(pod):
        restarts = each.get("restartCount", 0)
        if restarts > before.get(each["name"], {}).get("restartCount", 0):
            return _end_text((each.get("lastState") or {}).get("terminated") or {})
        # The containers of a pod end before the deleted pod is gone.
        ended = (each.get("state") or {}).get("terminated")
        if ended and "deletionTimestamp" not in metadata:
            return _end_text(ended)
    return "was deleted" if "deletionTimestamp" in metadata else ""


def _end_text(ended: Json) -> str:
    reason, code = ended.get("reason", "Error"), ended.get("exitCode", "?")
    if reason == "OOMKilled":
        return "was killed: out of memory (OOMKilled); raise its memory (deployment.pods)"
    return FINISHED if code == 0 else f"ended: {reason}, exit code {code}"


def _is_overdue(metadata: Json) -> bool:
    """Return whether an object was deleted because its TTL had expired."""
    ttl = (metadata.get("annotations") or {}).get(TTL_ANNOTATION, "")
    if not ttl.isdecimal() or "deletionTimestamp" not in metadata:
        return False
    created, deleted = (
        datetime.fromisoformat(metadata[key]) for key in ("creationTimestamp", "deletionTimestamp")
    )
    return (deleted - created).total_seconds() >= float(ttl)
