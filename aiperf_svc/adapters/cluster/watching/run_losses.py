"""What of a stack is lost while its run is measured, judged from the objects' statuses. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.plan.identity import COMPONENT_LABEL, TTL_ANNOTATION

Object = dict[str, Any]
ABSENT_LOOKS = 2
"""In a row, after which a pod that is not listed counts as gone: one list may be an old one."""
DISRUPTIONS = {
    "EvictionByEvictionAPI": "was evicted: somebody drains its node",
    "PreemptionByScheduler": "was evicted by the scheduler to make room for a pod of higher "
    "priority",
    "DeletionByTaintManager": "was deleted because its node got a taint that it does not tolerate",
    "DeletionByPodGC": "was deleted because its node is gone",
    "TerminationByKubelet": "was ended by its node, which ran short of memory or disk",
}
"""Reasons of the condition DisruptionTarget."""


class Loss(msgspec.Struct, frozen=True):
    """Something that a run cannot have back."""

    component: str
    """Of a pod; empty: what the whole stack hangs on."""
    line: str
    """What happened, in one line."""


class RunLosses:
    """What was there when the run was first looked at, and what became of it."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}
        """Kind and name to UID."""
        self._pods: dict[str, Object] = {}
        """As they were first seen, by UID."""
        self._absent: dict[str, int] = {}
        self._told: set[str] = set()

    def handle_root(self, kind: str, name: str, found: Object | None) -> Loss | None:
        """A Namespace or anchor as it is; None: there is none."""
        words = f"{kind} {name}"
        uid = found["metadata"]["uid"] if found else ""
        is_same = uid == self._roots.setdefault(words, uid)
        if found and is_same and "deletionTimestamp" not in found["metadata"]:
            return None
        if words in self._told:
            return None
        self._told.add(words)
        if found and _is_overdue(found["metadata"]):
            return Loss("", f"deployment.ttl is over: the stack deleted its {words}")
        return Loss("", f"{words} was deleted by somebody while the run was measured")

    def handle_pods(self, listed: Sequence[Object]) -> tuple[Loss, ...]:
        """The pods as they are; what is lost since the look before."""
        there = {pod["metadata"]["uid"]: pod for pod in listed}
        if not self._pods:
            self._pods = there
        lost: list[Loss] = []
        for uid, first in self._pods.items():
            pod = there.get(uid)
            self._absent[uid] = 0 if pod else self._absent.get(uid, 0) + 1
            if uid in self._told:
                continue
            how = how_lost(pod, first) if pod else self._absence(uid)
            if how:
                self._told.add(uid)
                metadata = first["metadata"]
                component = metadata["labels"].get(COMPONENT_LABEL, "")
                lost.append(Loss(component, f"pod {metadata['name']} {how}"))
        return tuple(lost)

    def _absence(self, uid: str) -> str:
        return "was deleted" if self._absent[uid] >= ABSENT_LOOKS else ""


def how_lost(pod: Object, first: Object) -> str:
    """What became of a pod since it was first seen; empty when it still does its work."""
    metadata, status = pod["metadata"], pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            return DISRUPTIONS.get(reason) or f"was disrupted: {one_line(reason)}"
    if status.get("phase") == "Failed":
        message = one_line(" ".join((status.get("message") or "").split()))
        how = "was evicted" if status.get("reason") == "Evicted" else "failed"
        return f"{how}: {message or status.get('reason') or 'no reason given'}"
    before = {each["name"]: each for each in _containers(first)}
    for each in _containers(pod):
        restarts = each.get("restartCount", 0)
        if restarts > before.get(each["name"], {}).get("restartCount", 0):
            return _how_ended((each.get("lastState") or {}).get("terminated") or {})
        # A container that is told to end ends before its pod is gone.
        ended = (each.get("state") or {}).get("terminated")
        if ended and "deletionTimestamp" not in metadata:
            return _how_ended(ended)
    return "was deleted" if "deletionTimestamp" in metadata else ""


def _how_ended(ended: Object) -> str:
    reason, code = ended.get("reason", "Error"), ended.get("exitCode", "?")
    if reason == "OOMKilled":
        return "was killed: out of memory (OOMKilled); raise its memory (deployment.pods)"
    return f"ended: {reason}, exit code {code}"


def _containers(pod: Object) -> Iterable[Object]:
    return pod.get("status", {}).get("containerStatuses") or ()


def _is_overdue(metadata: Object) -> bool:
    """Whether its deletion came when its own time was over."""
    ttl = (metadata.get("annotations") or {}).get(TTL_ANNOTATION, "")
    if not ttl.isdecimal() or "deletionTimestamp" not in metadata:
        return False
    created, deleted = (
        datetime.fromisoformat(metadata[key]) for key in ("creationTimestamp", "deletionTimestamp")
    )
    return (deleted - created).total_seconds() >= float(ttl)
