"""Reads and changes the Jobs of a stack and their pods, for the collector's pod.

All pods of a Job share a template, so a problem of the template fails the Job if none of its pods
has run yet. A problem of any other pod is left to the pod's deadline and to the retries of its
index. A pod without a node has no deadline: its Job fails when no pod of any Job has run for a
while.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from aiperf_svc.adapters.cluster.api.pod_client import ApiRefusal, ApiServer, Response
from aiperf_svc.adapters.cluster.watching.startup_failure import IMAGE_STATES, pod_problems
from aiperf_svc.core.cluster.conditions import all_containers_of, has_ended, index_of
from aiperf_svc.core.experiments.fan_out import JobSeen, read_indexes
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR, JOB_LABEL, STACK_LABEL, TTL_ANNOTATION

DELETED = "its Job was deleted during the experiment"
Found = TypeVar("Found")
TEMPLATE_STATES = frozenset(
    {*IMAGE_STATES, "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""States that the pod template causes."""
WAITING = "waiting"
"""State of a Job that should have running pods, while no pod of any Job runs."""
NO_PODS = "the Job creates no pods; see `kubectl describe job`"
NOT_STARTED = "pod {} does not start; see `kubectl describe pod`"


class ClusterJobs:
    """Blocking calls; each raises EnvironmentProblem."""

    def __init__(self, api: ApiServer, *, namespace: str, stack: str) -> None:
        self._api, self._stack = api, stack
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._anchor = f"/api/v1/namespaces/{namespace}/configmaps/{ANCHOR}-{stack}"

    def see(self, name: str) -> JobSeen | None:
        """Return the state of a Job; None if it does not exist."""
        return self._request(lambda: job_seen(self._api.get(f"{self._jobs}/{name}").body))

    def set_parallelism(self, name: str, parallelism: int) -> bool:
        """Set how many pods of a Job may run; return whether the Job exists."""
        changes = {"spec": {"parallelism": parallelism}}
        return bool(self._request(lambda: self._api.patch(f"{self._jobs}/{name}", changes)))

    def left_s(self) -> float:
        """Return the seconds until the stack deletes itself."""
        found = self._request(lambda: _left_s(self._api.get(self._anchor)))
        return math.inf if found is None else found

    def pods(self) -> list[Json]:
        """Return the pods of all Jobs of the stack."""
        selector = quote(f"{STACK_LABEL}={self._stack},{JOB_LABEL}")
        path = f"{self._pods}?labelSelector={selector}&resourceVersion=0"
        return self._request(lambda: self._api.get(path).body.get("items")) or []

    def _request(self, call: Callable[[], Found]) -> Found | None:
        """Return the result of a request; None if the object does not exist."""
        try:
            return call()
        except ApiRefusal as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise EnvironmentProblem(f"the API server refuses a request: {error}") from error
        except OSError as error:
            text = one_line(str(error))
            raise EnvironmentProblem(f"cannot reach the API server: {text}") from error
        except Exception as error:
            # An incomplete response, another format, or the response of a proxy.
            text = one_line(f"{type(error).__name__}: {error}")
            raise EnvironmentProblem(f"invalid response of the API server: {text}") from error


def _left_s(found: Response) -> float:
    metadata = found.body["metadata"]
    created_s = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    ttl_s = float((metadata.get("annotations") or {}).get(TTL_ANNOTATION, math.inf))
    return created_s + ttl_s - found.server_wall_s


def job_seen(job: Json) -> JobSeen:
    status = job.get("status") or {}
    return JobSeen(
        job["metadata"]["name"],
        completed=read_indexes(status.get("completedIndexes") or ""),
        failed=read_indexes(status.get("failedIndexes") or ""),
        pods=(status.get("active") or 0) + (status.get("terminating") or 0),
        problem=DELETED if "deletionTimestamp" in job["metadata"] else _problem(status),
    )


def absent_job(name: str, pods: Sequence[Json], *, was_there: bool) -> JobSeen:
    """Return the state of a Job that does not exist: either it is not created yet, or it was
    deleted. A deleted Job's pods outlive it."""
    alive = [pod for pod in pods if job_of(pod) == name and not has_ended(pod)]
    problem = DELETED if was_there else ""
    return JobSeen(name, frozenset(), frozenset(), len(alive), problem)


def _problem(status: Json) -> str:
    for each in status.get("conditions") or ():
        # With this reason, the failures of the indexes describe the problem.
        is_whole = each.get("reason") != "FailedIndexes"
        if each["type"] in ("Failed", "FailureTarget") and each["status"] == "True" and is_whole:
            return one_line(f"its Job has failed: {each.get('reason')}: {each.get('message')}")
    return ""


def job_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][JOB_LABEL])


class Failures(NamedTuple):
    jobs: dict[str, str]
    """Jobs whose pods cannot start, with the reason."""
    pods: list[tuple[str, str, int, str]]
    """Failed pods, each reported once: name, Job, index and reason."""


class JobPods:
    """Follows the pods of all Jobs. Callers pass the time."""

    def __init__(self, *, unplaced_s: float) -> None:
        """`unplaced_s` limits how long no pod of any Job runs while some should."""
        self._unplaced_s = unplaced_s
        self._since: dict[tuple[str, str], float] = {}
        self._started: set[str] = set()
        """Jobs that have had a running pod."""
        self._reported: set[str] = set()
        self._lines: dict[str, str] = {}
        """The last problem of each pod."""

    def handle(self, pods: Sequence[Json], released: Iterable[str], *, now_s: float) -> Failures:
        """Record the pods as they are at `now_s`, and return the failures. `released` are the Jobs
        that should have pods."""
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
                if each.state in TEMPLATE_STATES:
                    present[job, each.state] = (each.line, each.limit_s)
                elif each.state == "Unschedulable" and job in waiting:
                    waiting[job] = each.line
        if not any(pod.get("status", {}).get("phase") == "Running" for pod in pods):
            for job, line in waiting.items():
                # Between two attempts an index has no pod for a while.
                if line != NO_PODS or job not in self._started:
                    present[job, WAITING] = (line, self._unplaced_s)
        self._since = {key: self._since.get(key, now_s) for key in present}
        failed_jobs = {
            job: line
            for (job, state), (line, limit_s) in present.items()
            if (job not in self._started or state == WAITING)
            and now_s - self._since[job, state] >= limit_s
        }
        return Failures(failed_jobs, list(self._failed_pods(pods)))

    def _failed_pods(self, pods: Sequence[Json]) -> Iterable[tuple[str, str, int, str]]:
        for pod in pods:
            name = pod["metadata"]["name"]
            if pod.get("status", {}).get("phase") == "Failed" and name not in self._reported:
                self._reported.add(name)
                yield name, job_of(pod), index_of(pod), self._failure_reason(pod)

    def _failure_reason(self, pod: Json) -> str:
        status, name = pod["status"], pod["metadata"]["name"]
        parts = [f"pod {name} failed"]
        if status.get("reason") or status.get("message"):
            parts.append(": ".join(filter(None, (status.get("reason"), status.get("message")))))
        for each in all_containers_of(pod):
            ended = (each.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                reason = ended.get("reason", "Error")
                parts.append(f"container {each['name']}: {reason}, exit code {ended['exitCode']}")
        parts += [self._lines[name]] if name in self._lines else []
        return one_line("; ".join(parts))


class JobShares:
    """The parallelism that each Job should have. Values are sent until the cluster accepts them."""

    def __init__(self, cluster: ClusterJobs) -> None:
        self._cluster = cluster
        self._wanted: dict[str, int] = {}
        self._pending: set[str] = set()
        """Jobs whose parallelism the cluster has not accepted."""

    def set(self, job: str, parallelism: int) -> None:
        """Set what a Job should have. `apply` sends it."""
        self._wanted[job] = parallelism
        self._pending.add(job)

    @property
    def released(self) -> list[str]:
        """Jobs that may run pods."""
        return [name for name, share in self._wanted.items() if share]

    async def apply(self) -> None:
        """Send the cluster each parallelism that it does not have. Raises EnvironmentProblem."""
        for name in sorted(self._pending):
            # A value that is set during a request is sent with the next one.
            self._pending.discard(name)
            is_applied = False
            try:
                is_applied = await asyncio.to_thread(
                    self._cluster.set_parallelism, name, self._wanted[name]
                )
            finally:
                if not is_applied:
                    self._pending.add(name)
