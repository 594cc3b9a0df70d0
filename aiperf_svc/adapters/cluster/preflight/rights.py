"""The rights that a user needs to create a stack, and the check for missing ones."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.identity import ANCHOR, LEASE
from aiperf_svc.plan.queue import WORKLOADS
from aiperf_svc.plan.release import group_of, name_of, resource_of, watched_objects
from aiperf_svc.plan.stack import StackPlan

MAKE = ("create", "get", "list", "watch", "patch", "delete")
"""Verbs that Pulumi uses on each object: server-side apply is a patch, and a deletion is watched
until the object is gone. The leak check uses list."""
AWAIT = ("get", "list", "watch")
"""Verbs for objects that Pulumi reads to decide whether others are ready."""
PROBE = ("create", "get", "delete")
OPERATOR_GROUP, OPERATOR_TYPES = "monitoring.coreos.com", ("podmonitors", "prometheusrules")
"""API group of the Prometheus operator, and the types that a stack creates."""
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Right(msgspec.Struct, frozen=True, order=True):
    """Right to use a verb on objects of a type."""

    group: str
    resource: str
    """Plural name, with its subresource: `pods/log`."""
    verb: str
    namespace: str = ""
    """Namespace in which it is needed; empty for the whole cluster."""
    name: str = ""
    """Name of the single object; empty for all objects."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f" {self.name}" if self.name else "")


def _rights(
    group: str, resource: str, verbs: Iterable[str], namespace: str = "", name: str = ""
) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb, namespace, name) for verb in verbs)


def namespace_of(plan: StackPlan) -> str:
    """Return the stack's namespace. A namespace that Pulumi names does not exist yet, so only
    rights in all namespaces apply to it, and any name gives the same result."""
    return plan.config.deployment.namespace.name or f"aiperf-{plan.identity.stack}"


def needed_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return every right needed to create, watch and remove the stack."""
    namespace = namespace_of(plan)
    is_guest = plan.config.deployment.namespace.mode == "existing"
    rights: list[Right] = []

    def add(group: str, verbs: Sequence[str], *resources: str) -> None:
        for each in resources:
            rights.extend(_rights(group, each, verbs, namespace))

    add("", MAKE, "configmaps", "secrets", "serviceaccounts", "services")
    add("apps", MAKE, "deployments")
    add("rbac.authorization.k8s.io", MAKE, "roles", "rolebindings")
    add("policy", MAKE, "poddisruptionbudgets")
    add("coordination.k8s.io", MAKE, "leases")
    if plan.policies:
        add("networking.k8s.io", MAKE, "networkpolicies")
    expose = plan.config.deployment.results.expose
    if expose == "Ingress":
        add("networking.k8s.io", MAKE, "ingresses")
    if expose == "LoadBalancer":
        # Pulumi waits until the Service has endpoints.
        add("", AWAIT, "endpoints")
    if plan.config.deployment.monitoring == "prometheus-operator":
        add(OPERATOR_GROUP, MAKE, *OPERATOR_TYPES)
    add("", AWAIT, "pods", "events")
    add("apps", AWAIT, "replicasets")
    if plan.release is not None:
        for each in plan.release.objects:
            where = "" if name_of(each) in plan.release.cluster_scoped else namespace
            rights += _rights(group_of(each), resource_of(each["kind"]), MAKE, where)
    if plan.jobs:
        add("batch", MAKE, "jobs")
    if plan.ranks is not None:
        add("apps", MAKE, "statefulsets")
        if any(volume.kind == "shared-claim" for volume in plan.ranks.all_volumes):
            add("", MAKE, "persistentvolumeclaims")
    add("", ("get",), "pods/log")
    if plan.queue is not None:
        group, workloads = WORKLOADS
        add(group, ("get", "delete"), workloads)
    rights += event_rights(plan)
    if not is_guest:
        of_all = ("create", "list", "watch")
        rights += [Right("", "namespaces", verb, name="" if verb in of_all else namespace)
                   for verb in MAKE]  # fmt: skip
    return tuple(dict.fromkeys(rights))


EXEC = ("", "pods/exec", ("get", "create"))
"""Right for most events. A WebSocket starts as a GET; newer API servers also require `create`."""
EVICT = ("", "pods/eviction", ("create",))
CHANGE = ("apps", "deployments", ("patch",))
EVENT_RIGHTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "delete-pod": ("", "pods", ("delete",)),
    "evict": EVICT,
    "drain": EVICT,
    "restart": CHANGE,
    "scale": CHANGE,
}
"""API group, resource and verbs for the kinds of events that need another right, in the namespace
of the disturbed object."""


def made_types(plans: Iterable[StackPlan]) -> tuple[str, ...]:
    """Return the types of the objects that a stack creates in its namespace: `deployments.apps`."""
    made = {
        f"{right.resource}.{right.group}" if right.group else right.resource
        for plan in plans
        for right in needed_rights(plan)
        if right.verb == "create" and right.resource != "namespaces" and "/" not in right.resource
    }
    return tuple(sorted(made))


def event_rights(plan: StackPlan) -> list[Right]:
    config, rights = plan.config.inference, list[Right]()
    for event in config.events if config is not None else ():
        namespace = event.others[0] if event.others else namespace_of(plan)
        needed = [EVENT_RIGHTS.get(event.do, EXEC)]
        if event.do != "cut":
            needed.append(("", "pods", ("list",)))
        if event.pool is None:
            needed += [("apps", "replicasets", ("list",)), ("apps", "deployments", ("get",))]
        for each in needed:
            rights += _rights(*each, namespace)
        if event.do == "drain":
            rights += _rights("", "nodes", ("get", "patch"))
    return list(dict.fromkeys(rights))


def granted_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return the rights that the Roles of the deadline and the collector grant. Kubernetes lets
    users grant only rights that they have themselves."""
    namespace = namespace_of(plan)
    if plan.config.deployment.namespace.mode == "existing":
        resource, name = "configmaps", plan.identity.name(ANCHOR)
    else:
        resource, name = "namespaces", namespace
    ends = ("get", "delete")
    rights = list(_rights("", resource, ends, namespace, name))
    if plan.budget and plan.budget.hold is not None:
        rights += _rights("policy", "poddisruptionbudgets", ends, namespace, plan.budget.name)
    lease = plan.identity.name(LEASE)
    rights.append(Right("coordination.k8s.io", "leases", "patch", namespace, lease))
    if plan.release:
        read = watched_objects(plan.config.deployment.target, plan.release.objects)
        rights.append(Right("", "pods", "list", namespace))
        rights += [Right(group, kind, "get", namespace, name) for group, kind, name in read]
        for each in plan.release.deleted_first:
            name = each["metadata"]["name"]
            rights += _rights(group_of(each), resource_of(each["kind"]), ends, namespace, name)
    for job in plan.jobs:
        name = plan.identity.name(job.pod.name)
        rights += _rights("batch", "jobs", ("get", "patch"), namespace, name)
    if plan.jobs:
        rights.append(Right("", "pods", "list", namespace))
        anchor = Right("", "configmaps", "get", namespace, plan.identity.name(ANCHOR))
        rights += [] if anchor in rights else [anchor]
    return tuple(rights)


def port_forward_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return the rights for a port-forward. A WebSocket starts as a GET; newer API servers also
    require `create`."""
    return _rights("", "pods/portforward", ("get", "create"), namespace_of(plan))


def proxy_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return the rights for the API server's proxy, the fallback for the results."""
    return _rights("", "services/proxy", ("get", "create"), namespace_of(plan))


def probe_rights(namespace: str) -> tuple[Right, ...]:
    """Return the rights to run a pod for a check and to remove it."""
    return _rights("", "pods", PROBE, namespace)


def watch_rights(namespace: str) -> tuple[Right, ...]:
    """Return the rights to watch the replicas of a server, their scaler, and when each replica is
    ready. Types of KEDA and Dynamo are watched if the cluster has them."""
    watched = (
        ("", "pods"),
        ("", "events"),
        ("apps", "deployments"),
        ("apps", "statefulsets"),
        ("autoscaling", "horizontalpodautoscalers"),
    )
    read = ("pods/log", "pods/proxy")
    return (
        *(Right(*kind, verb, namespace) for kind in watched for verb in ("list", "watch")),
        *(Right("", each, "get", namespace) for each in read),
    )


async def denied(cluster: Cluster, rights: Iterable[Right]) -> frozenset[Right]:
    """Return the rights that the user lacks. Raises Refused, Unreachable."""
    wanted = tuple(dict.fromkeys(rights))
    responses = await asyncio.gather(*(_is_allowed(cluster, right) for right in wanted))
    return frozenset(r for r, allowed in zip(wanted, responses, strict=True) if not allowed)


async def _is_allowed(cluster: Cluster, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = msgspec.structs.asdict(right) | {"resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
    }
    response = await cluster.post(ACCESS_REVIEWS, review)
    return bool(response["status"]["allowed"])


def judge_rights(plan: StackPlan, missing: frozenset[Right]) -> Check:
    """Check whether the stack can be created and removed."""
    needed = needed_rights(plan)
    lacking = [right for right in needed if right in missing]
    where = f"in namespace {namespace_of(plan)}"
    if lacking:
        listed = ", ".join(map(str, lacking[:12])) + (" …" if len(lacking) > 12 else "")
        return Check(
            "permissions",
            "failed",
            f"{len(lacking)} of {len(needed)} rights are missing {where}: {listed}",
            "ask for them, or use another context; docs/stacks.md has a Role to apply",
        )
    return Check("permissions", "ok", f"all {len(needed)} rights {where}")


def judge_deadline(plan: StackPlan, missing: frozenset[Right]) -> Check:
    lacking = [right for right in granted_rights(plan) if right in missing]
    escalate = Right("rbac.authorization.k8s.io", "roles", "escalate", namespace_of(plan))
    if lacking and escalate in missing:
        return Check(
            "deadline's rights",
            "failed",
            "you cannot grant rights that you do not have yourself: "
            f"{', '.join(map(str, lacking))}",
            "use deployment.namespace.mode: existing in a namespace where you may delete "
            "ConfigMaps, or ask for the right to delete that namespace",
        )
    return Check("deadline's rights", "ok", "you can grant the deadline the right to end the stack")


def judge_results_access(plan: StackPlan, missing: frozenset[Right]) -> Check:
    """Check whether the runner can read the results."""
    expose = plan.config.deployment.results.expose
    forward = [right for right in port_forward_rights(plan) if right in missing]
    proxy = [right for right in proxy_rights(plan) if right in missing]
    if not forward:
        return Check("way to the results", "ok", "port-forward to the pod")
    lack = f"port-forward is not allowed ({', '.join(map(str, forward))})"
    if not proxy:
        return Check(
            "way to the results",
            "warning",
            f"{lack}; the API server's proxy is used instead",
            "grant get and create on pods/portforward",
        )
    if expose != "port-forward":
        return Check("way to the results", "ok", f"{expose}; {lack}")
    return Check(
        "way to the results",
        "failed",
        f"{lack}, and neither is the API server's proxy ({', '.join(map(str, proxy))})",
        "grant get and create on pods/portforward or services/proxy, or expose the results "
        "(deployment.results.expose)",
    )


def all_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return every right that the checks above need to look up."""
    escalate = Right("rbac.authorization.k8s.io", "roles", "escalate", namespace_of(plan))
    return (
        *needed_rights(plan),
        *granted_rights(plan),
        *port_forward_rights(plan),
        *proxy_rights(plan),
        escalate,
    )
