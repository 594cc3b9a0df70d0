"""A stack as one group of pods in a queue of Kueue.

Kueue admits the pods of a group together or not at all, so two stacks never hold half of the
cluster each. All pods except the deadline's are in the group: the deadline's must run while the
others wait. No pod of the group runs before all of them exist, so the creation of an object must
not depend on another pod's readiness.

    labels       kueue.x-k8s.io/queue-name, kueue.x-k8s.io/pod-group-name
    annotations  kueue.x-k8s.io/pod-group-total-count
                 kueue.x-k8s.io/retriable-in-group: "false", so Kueue waits for no replacements of
                 ended pods

Pods that are deleted before they have run keep Kueue's finalizer until the group's Workload is
deleted, so the removal of a stack deletes it (`adapters/cluster/teardown/removal.py`).
"""

from functools import partial

import msgspec

from aiperf_svc.config.deployment import Deployment
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.stack_kind import KindPods

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
MANAGED_LABEL = "kueue.x-k8s.io/managed"
"""Label that Kueue's webhook adds to managed pods, and the name of its finalizer."""
TOTAL_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE_ANNOTATION = "kueue.x-k8s.io/retriable-in-group"
WORKLOADS = ("kueue.x-k8s.io", "workloads")
"""API group and type of Workloads."""
KUEUE = f"/apis/{WORKLOADS[0]}/v1beta1"
"""Path of that group."""
GATE = "kueue.x-k8s.io/admission"
"""Scheduling gate of a pod that is not yet admitted."""
MAX_TEMPLATES = 8
"""Maximum number of different pods in a group: Kueue's limit on the pod sets of a Workload."""
OPERATIONS = 16
"""Number of parallel operations of Pulumi: it creates the Deployments of the group together, since
each waits for the others. Pulumi's default depends on the number of cores."""


class QueuePlan(msgspec.Struct, frozen=True):
    """The queue of a stack."""

    name: str
    """LocalQueue in the namespace."""
    group: str
    """Name of the group, and of its Workload."""
    pods: int
    """Number of pods in the group."""
    timeout_s: int


def plan_queue(
    deployment: Deployment, identity: Identity, made: KindPods, *, has_shapes: bool
) -> tuple[QueuePlan | None, KindPods]:
    """Return the queue of a stack, and its pods with the labels of the group. `has_shapes`: the
    stack changes from one shape to the next. Raises ConfigError for a stack that cannot be one
    group."""
    if deployment.queue is None:
        return None, made
    pods = made.pods
    templates = sum(len(pod.sets) or 1 for pod in pods)
    if made.jobs:
        problem = "the pods of Jobs (experiment.fan_out) are made one after another"
    elif made.release is not None:
        problem = (
            "the pods of deployment.target.kind: release are made by a chart or an operator; give "
            "them the queue there, and leave it out here"
        )
    elif has_shapes:
        problem = (
            "each shape would wait in the queue again, after the time to live has begun; give each "
            "a stack of its own (experiment.parallel: 2)"
        )
    elif templates > MAX_TEMPLATES:
        problem = (
            f"the stack has {templates} different pods, and a group of Kueue at most "
            f"{MAX_TEMPLATES}; use deployment.layout: compact, or no names of nodes for the ranks"
        )
    else:
        total = sum(pod.replicas for pod in pods)
        # Every run has its own group: Kueue allows no change of one.
        group = f"{identity.name('benchmark')}-{identity.run_id[:8]}"
        queue = QueuePlan(deployment.queue, group, total, seconds(deployment.queue_timeout))
        return queue, made.changed(partial(_marked, queue=queue))
    raise ConfigError(f"deployment.queue: {problem}")


def _marked(pod: PodPlan, queue: QueuePlan) -> PodPlan:
    return msgspec.structs.replace(
        pod,
        labels={**pod.labels, QUEUE_LABEL: queue.name, GROUP_LABEL: queue.group},
        annotations={
            **pod.annotations,
            TOTAL_ANNOTATION: str(queue.pods),
            RETRIABLE_ANNOTATION: "false",
        },
        # Kubernetes and Pulumi count the time from the creation.
        ready_timeout_s=pod.ready_timeout_s + queue.timeout_s,
    )
