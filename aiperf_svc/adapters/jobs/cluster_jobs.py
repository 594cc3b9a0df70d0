"""The Jobs of a stack, as the collector's pod reads and changes them."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from aiperf_svc.adapters.cluster.api.pod_client import ApiRefusal, ApiServer, Response
from aiperf_svc.core.experiments.fan_out import JobSeen, read_indexes
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.plan.identity import ANCHOR, JOB_LABEL, STACK_LABEL, TTL_ANNOTATION

DELETED = "its Job was deleted by somebody while the experiment was measured"
INDEX_KEY = "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]
Found = TypeVar("Found")


class ClusterJobs:
    """Blocking calls; each raises EnvironmentProblem."""

    def __init__(self, api: ApiServer, *, namespace: str, stack: str) -> None:
        self._api, self._stack = api, stack
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._anchor = f"/api/v1/namespaces/{namespace}/configmaps/{ANCHOR}-{stack}"

    def see(self, name: str) -> JobSeen | None:
        """Return the state of a Job; None if it does not exist."""
        return self._ask(lambda: job_seen(self._api.get(f"{self._jobs}/{name}").body))

    def set_parallelism(self, name: str, parallelism: int) -> bool:
        """Let so many pods of a Job run; return whether the Job exists."""
        changes = {"spec": {"parallelism": parallelism}}
        return bool(self._ask(lambda: self._api.patch(f"{self._jobs}/{name}", changes)))

    def left_s(self) -> float:
        """Return the seconds until the stack deletes itself."""
        found = self._ask(lambda: _left_s(self._api.get(self._anchor)))
        return math.inf if found is None else found

    def pods(self) -> list[Object]:
        """Return the pods of all Jobs of the stack."""
        selector = quote(f"{STACK_LABEL}={self._stack},{JOB_LABEL}")
        path = f"{self._pods}?labelSelector={selector}&resourceVersion=0"
        return self._ask(lambda: self._api.get(path).body.get("items")) or []

    def _ask(self, ask: Callable[[], Found]) -> Found | None:
        """Return what a request finds; None if the object does not exist."""
        try:
            return ask()
        except ApiRefusal as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise EnvironmentProblem(f"the API server refuses: {error}") from error
        except OSError as error:
            words = one_line(str(error))
            raise EnvironmentProblem(f"cannot reach the API server: {words}") from error
        except Exception as error:
            # Cut off in its middle, of another form, or a proxy's.
            words = one_line(f"{type(error).__name__}: {error}")
            raise EnvironmentProblem(f"the API server's response: {words}") from error


def _left_s(found: Response) -> float:
    metadata = found.body["metadata"]
    created_s = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    ttl_s = float((metadata.get("annotations") or {}).get(TTL_ANNOTATION, math.inf))
    return created_s + ttl_s - found.server_wall_s


def job_seen(job: Object) -> JobSeen:
    """Return what an object of a Job says."""
    status = job.get("status") or {}
    return JobSeen(
        job["metadata"]["name"],
        completed=read_indexes(status.get("completedIndexes") or ""),
        failed=read_indexes(status.get("failedIndexes") or ""),
        pods=(status.get("active") or 0) + (status.get("terminating") or 0),
        problem=DELETED if "deletionTimestamp" in job["metadata"] else _problem(status),
    )


def absent_job(name: str, pods: Sequence[Object], *, was_there: bool) -> JobSeen:
    """Return what follows from a Job that does not exist: it was not made yet, or was deleted. Its
    pods end after it."""
    alive = [pod for pod in pods if job_of(pod) == name and not has_ended(pod)]
    problem = DELETED if was_there else ""
    return JobSeen(name, frozenset(), frozenset(), len(alive), problem)


def has_ended(pod: Object) -> bool:
    """True if the containers of a pod have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _problem(status: Object) -> str:
    for each in status.get("conditions") or ():
        # With this reason, its failed indexes say what is wrong.
        is_whole = each.get("reason") != "FailedIndexes"
        if each["type"] in ("Failed", "FailureTarget") and each["status"] == "True" and is_whole:
            return one_line(f"its Job has failed: {each.get('reason')}: {each.get('message')}")
    return ""


def job_of(pod: Object) -> str:
    """Return the name of a pod's Job."""
    return str(pod["metadata"]["labels"][JOB_LABEL])


def index_of(pod: Object) -> int:
    """Return the index that a pod runs."""
    metadata = pod["metadata"]
    found = metadata["labels"].get(INDEX_KEY) or metadata.get("annotations", {}).get(INDEX_KEY)
    return int(found)
