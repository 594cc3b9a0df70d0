"""Says what keeps the pods of Jobs from running, and why those that failed did.

A problem that all pods of a Job have, since they share a template, ends the Job when none of its
pods has ever run; otherwise the pod is left to its deadline, and its index to its retries. A pod
that has no node has no deadline: its Job ends when nothing has run for long. Pure: the time is an
argument.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiperf_svc.adapters.cluster.watching.startup_failure import IMAGE_STATES, pod_problems
from aiperf_svc.adapters.jobs.cluster_jobs import Object, index_of, job_of
from aiperf_svc.domain.foreign_text import one_line

OF_TEMPLATE = frozenset(
    {*IMAGE_STATES, "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""States that follow from the template of a pod."""
WAITING = "waiting"
"""State of a Job that should have pods, while nothing runs."""
NO_PODS = "the Job makes no pods; kubectl describe job says why"
NOT_STARTED = "pod {} does not start; kubectl describe pod says why"


class Troubles(NamedTuple):
    """What the pods show."""

    hopeless: dict[str, str]
    """Jobs whose pods cannot start, with the reason."""
    failed: list[tuple[str, str, int, str]]
    """Pods that have failed, each once: name, Job, index and reason."""


class PodTroubles:
    """The pods of all Jobs, from one look to the next."""

    def __init__(self, *, unplaced_s: float) -> None:
        """`unplaced_s` is the longest time that no pod of any Job runs, while some should."""
        self._unplaced_s = unplaced_s
        self._since: dict[tuple[str, str], float] = {}
        self._started: set[str] = set()
        """Jobs of which a pod has run."""
        self._told: set[str] = set()
        self._lines: dict[str, str] = {}
        """What was last wrong with each pod."""

    def look(self, pods: Sequence[Object], released: Iterable[str], *, now_s: float) -> Troubles:
        """Take in the pods as they are; `released` are the Jobs that should have some."""
        present: dict[tuple[str, str], tuple[str, float]] = {}
        waiting = dict.fromkeys(released, NO_PODS)
        for pod in pods:
            job = job_of(pod)
            if pod.get("status", {}).get("phase") in ("Running", "Succeeded"):
                self._started.add(job)
            if waiting.get(job) == NO_PODS and pod.get("status", {}).get("phase") == "Pending":
                waiting[job] = NOT_STARTED.format(pod["metadata"]["name"])
            for each in pod_problems(pod, self._unplaced_s):
                self._lines[pod["metadata"]["name"]] = each.line
                if each.state in OF_TEMPLATE:
                    present[job, each.state] = (each.line, each.limit_s)
                elif each.state == "Unschedulable" and job in waiting:
                    waiting[job] = each.line
        if not any(pod.get("status", {}).get("phase") == "Running" for pod in pods):
            for job, line in waiting.items():
                # The next attempt of an index has no pod for a while.
                if line != NO_PODS or job not in self._started:
                    present[job, WAITING] = (line, self._unplaced_s)
        self._since = {key: self._since.get(key, now_s) for key in present}
        hopeless = {
            job: line
            for (job, state), (line, limit_s) in present.items()
            if (job not in self._started or state == WAITING)
            and now_s - self._since[job, state] >= limit_s
        }
        return Troubles(hopeless, list(self._failures(pods)))

    def _failures(self, pods: Sequence[Object]) -> Iterable[tuple[str, str, int, str]]:
        for pod in pods:
            name = pod["metadata"]["name"]
            if pod.get("status", {}).get("phase") == "Failed" and name not in self._told:
                self._told.add(name)
                yield name, job_of(pod), index_of(pod), self._why(pod)

    def _why(self, pod: Object) -> str:
        status, name = pod["status"], pod["metadata"]["name"]
        words = [f"pod {name} failed"]
        if status.get("reason") or status.get("message"):
            words.append(": ".join(filter(None, (status.get("reason"), status.get("message")))))
        listed = (
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        )
        for each in listed:
            ended = (each.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                how = ended.get("reason", "Error")
                words.append(f"container {each['name']}: {how}, exit code {ended['exitCode']}")
        words += [self._lines[name]] if name in self._lines else []
        return one_line("; ".join(words))
