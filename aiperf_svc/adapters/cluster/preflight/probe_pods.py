"""Short-lived pods that check something before the stack is created: their manifests, and how they
are run, awaited and removed.

Pod Security `restricted` admits them, they have no token, and they have a deadline.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable, retried
from aiperf_svc.adapters.cluster.watching.startup_failure import (
    IMAGE_STATES,
    StartupFailureDetector,
    pod_problems,
)
from aiperf_svc.config.placement import Placement
from aiperf_svc.config.units import format_cpu, format_size
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.core.cluster.conditions import containers_of, has_ended
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import TTL_ANNOTATION
from aiperf_svc.plan.network import PREFLIGHT
from aiperf_svc.plan.pods import OPT_OUT_ANNOTATIONS, OPT_OUT_LABELS, USER, ImagePlan, Requests
from aiperf_svc.plan.stack import StackPlan

POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
DEADLINE_S = 90
"""Deadline of the pod, which ends it even if the runner is gone."""
POLL_S = 0.5
REMOVE_S = 10.0
"""Time for which a failed removal is retried."""
UNPLACED_S = 10.0
"""Timeout until the pod is assigned to a node."""


def restricted_pod(
    name: str,
    containers: Sequence[Json],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    image: ImagePlan,
    placement: Placement,
    deadline_s: int,
) -> Json:
    """Return the manifest of a pod that runs once, on a node that satisfies the placement."""
    terms = [
        {"key": label, "operator": "In", "values": list(values)}
        for label, values in placement.require_nodes.items()
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    priority = placement.priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**OPT_OUT_LABELS, **labels},
            # `gc` removes the pod of a killed runner.
            "annotations": {
                **OPT_OUT_ANNOTATIONS,
                **(annotations or {}),
                TTL_ANNOTATION: str(deadline_s),
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_s,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [{"name": each} for each in image.pull_secrets],
            "nodeSelector": placement.node_selector,
            **({"affinity": affinity} if terms else {}),
            **({"priorityClassName": priority} if priority else {}),
            "tolerations": [
                {k: v for k, v in each.model_dump().items() if v} for each in placement.tolerations
            ],
            "securityContext": POD_SECURITY,
            "containers": list(containers),
        },
    }


def restricted_container(
    name: str, command: Sequence[str], *, image: ImagePlan, requests: Requests
) -> Json:
    """Return a container that uses the end of its log as its termination message if it fails."""
    memory, limit = format_size(requests.memory_bytes), requests.cpu_limit_millis
    return {
        "name": name,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": list(command),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {
                "cpu": format_cpu(requests.cpu_millis),
                "memory": memory,
                "ephemeral-storage": format_size(requests.storage_bytes),
            },
            "limits": {
                **({"cpu": format_cpu(limit)} if limit else {}),
                "memory": memory,
                "ephemeral-storage": format_size(requests.storage_limit_bytes),
            },
        },
        "securityContext": CONTAINER_SECURITY,
    }


def idle_pod(plan: StackPlan, name: str, program: str = "", *arguments: str) -> Json:
    """Return the manifest of a pod that runs a Python program and ends with it. It has the
    resources of the deadline's pod, the smallest of the stack: a LimitRange or quota that admits
    that pod admits this one."""
    worker, command = plan.load_pod, ("python", "-P", "-c", program, *arguments)
    container = restricted_container(
        PREFLIGHT, command, image=worker.image, requests=plan.deadline.requests
    )
    return restricted_pod(
        name,
        [container],
        labels=plan.identity.labels(PREFLIGHT),
        annotations=plan.identity.annotations,
        image=worker.image,
        placement=worker.placement,
        deadline_s=DEADLINE_S,
    )


def pod_name(plan: StackPlan) -> str:
    return f"{plan.identity.name(PREFLIGHT)}-{secrets.token_hex(3)}"


class WaitedPod(msgspec.Struct, frozen=True):
    """A pod in the expected state, or the reason why it did not reach it."""

    pod: Json | None
    failure: str = ""
    is_image_missing: bool = False

    def problem(self, name: str, intro: str = "") -> Check:
        """Return the check of this name as not done. It fails only if the image is missing."""
        state: State = "failed" if self.is_image_missing else "not checked"
        return Check(name, state, intro + self.failure)


async def run_pod(
    cluster: Cluster,
    namespace: str,
    pod: Json,
    *,
    until: Callable[[Json], bool] = has_ended,
    longest_s: float = DEADLINE_S,
) -> WaitedPod:
    """Run a pod until it has ended or satisfies `until`, and remove it. Raises Unreachable, and
    EnvironmentProblem if the pod may remain."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    its_path = f"{path}/{pod['metadata']['name']}"
    may_exist = True
    try:
        try:
            await cluster.post(path, pod)
        except Refused as error:
            may_exist = error.is_temporary
            return WaitedPod(None, f"the pod for this check cannot be created: {error}")
        waited = await wait_for_pod(cluster, its_path, until=until, longest_s=longest_s)
    finally:
        # Remove the pod even if the caller was cancelled or the response was lost.
        if may_exist:
            await asyncio.shield(remove_made(cluster, its_path, grace_s=0))
    if waited.pod is not None or waited.is_image_missing:
        return waited
    why = f"does not start: {waited.failure}" if waited.failure else f"ran for {longest_s:.0f} s"
    return WaitedPod(None, f"the pod for this check {why}")


async def wait_for_pod(
    cluster: Cluster, path: str, *, until: Callable[[Json], bool], longest_s: float
) -> WaitedPod:
    """Wait until a pod satisfies `until` or no longer can, or until the timeout. Raises Refused,
    Unreachable."""
    detector = StartupFailureDetector(unschedulable_s=UNPLACED_S)
    end_mono_s = time.monotonic() + longest_s
    while time.monotonic() < end_mono_s:
        pod = await cluster.get(path)
        if until(pod):
            return WaitedPod(pod)
        line = detector.handle([pod], [], now_s=time.monotonic())
        if line:
            problems = pod_problems(pod, UNPLACED_S)
            is_image = any(each.state in IMAGE_STATES for each in problems)
            return WaitedPod(None, line, is_image)
        await asyncio.sleep(POLL_S)
    return WaitedPod(None)


async def remove_made(
    cluster: Cluster, path: str, *, uid: str | None = None, grace_s: int | None = None
) -> None:
    """Delete an object that a check has created, or may have created although the API server
    reported an error. Raises EnvironmentProblem that names it if it may remain."""
    removing = partial(cluster.delete, path, uid=uid, grace_s=grace_s)
    try:
        await retried(removing, within_s=REMOVE_S, pause_s=POLL_S)
    except (Refused, Unreachable) as error:
        raise EnvironmentProblem(
            f"what a check has made may be left, remove it: kubectl delete --raw {path}: {error}"
        ) from error


def end_message(pod: Json) -> str:
    (container, *_) = containers_of(pod) or [{}]
    ended = container.get("state", {}).get("terminated") or {}
    message = one_line(ended.get("message") or pod["status"].get("message") or "")
    return message or str(ended.get("reason", "no response"))
