"""Decides whether a namespace's quotas and limit ranges admit a stack's pods."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import (
    format_quantity,
    list_pods,
    parse_quantity,
    try_list,
)
from aiperf_svc.adapters.cluster.preflight.capacity import Room, on_nodes
from aiperf_svc.config.deployment import Namespace
from aiperf_svc.config.target import HOST
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.conditions import has_ended
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.pods import PodPlan, Requests
from aiperf_svc.plan.stack import StackPlan

OF_JOBS, OF_OTHERS = "Terminating", "NotTerminating"
"""Scopes for pods with an active deadline, which only the pods of Jobs have, and for the others."""
MATCHING_SCOPES = frozenset({OF_JOBS, OF_OTHERS, "NotBestEffort"})
"""Scopes of quotas that match pods of the stack, all of which have requests."""


def quota_requests(
    plan: StackPlan, *, default_cpu_limit: str = "0", scopes: Collection[str] = ()
) -> dict[str, float]:
    """Return all resources of the stack that quotas with these scopes count, in cores, bytes and
    objects. `default_cpu_limit` applies to containers without a limit. The defaults of a release
    are unknown."""
    requested: Counter[str] = Counter()
    own = {pod.name: round(parse_quantity(default_cpu_limit) * 1000) for pod in plan.pods}
    for pod in plan.scheduled:
        count = plan.at_once[pod.name] if _is_in_scope(plan, pod, scopes) else 0
        requests = pod.total
        requested["pods"] += count
        requested["requests.cpu"] += count * requests.cpu_millis
        requested["limits.cpu"] += count * _cpu_limit_millis(pod, own.get(pod.name, 0))
        requested["requests.memory"] += count * requests.memory_bytes
        requested["requests.ephemeral-storage"] += count * requests.storage_bytes
        requested["limits.ephemeral-storage"] += count * requests.storage_limit_bytes
        if requests.gpu:
            requested[f"requests.{requests.gpu.resource}"] += count * requests.gpu.count
        for name, number in requests.devices.items():
            requested[f"requests.{name}"] += count * number
        requested["services"] += pod.has_service
        requested["deployments"] += pod in plan.deployed
        requested["statefulsets"] += len(pod.sets)
        for volume in pod.all_volumes:
            if volume.kind in ("claim", "shared-claim"):
                claims = count if volume.kind == "claim" else 1
                requested["persistentvolumeclaims"] += claims
                requested["requests.storage"] += claims * volume.size_bytes
    expose = plan.config.deployment.results.expose
    requested["services"] += expose != "port-forward"
    # A load balancer also uses a port of the nodes.
    requested["services.nodeports"] = expose in ("NodePort", "LoadBalancer")
    requested["services.loadbalancers"] = expose == "LoadBalancer"
    found = {name: float(value) for name, value in requested.items()}
    for name in ("requests.cpu", "limits.cpu"):
        found[name] /= 1000
    found["limits.memory"] = found["requests.memory"]
    accounts = 1 + bool(plan.jobs) + (plan.release is not None)
    objects = {
        "configmaps": 2 + bool(plan.shared_env), "secrets": 1 + len(plan.secret_keys),
        "serviceaccounts": 1 + accounts, "jobs.batch": len(plan.jobs),
        "deployments.apps": int(found["deployments"]),
        "replicasets.apps": int(found["deployments"]),
        "statefulsets.apps": int(found.get("statefulsets", 0)),
        "persistentvolumeclaims": int(found.get("persistentvolumeclaims", 0)),
        "roles.rbac.authorization.k8s.io": accounts,
        "rolebindings.rbac.authorization.k8s.io": accounts,
        "leases.coordination.k8s.io": 1,
        "networkpolicies.networking.k8s.io": len(plan.policies),
        "poddisruptionbudgets.policy": plan.budget is not None,
        "pods": int(found["pods"]),
        "services": int(found["services"]), "ingresses.networking.k8s.io": expose == "Ingress",
    }  # fmt: skip
    found |= {f"count/{name}": float(count) for name, count in objects.items()}
    short = ("configmaps", "secrets")
    found |= {name: float(objects[name]) for name in short}
    # Older names of the same resources.
    older = ("cpu", "memory", "ephemeral-storage")
    return found | {name: found[f"requests.{name}"] for name in older}


def _is_in_scope(plan: StackPlan, pod: PodPlan, scopes: Collection[str]) -> bool:
    is_of_job = any(job.pod.name == pod.name for job in plan.jobs)
    return (OF_OTHERS if is_of_job else OF_JOBS) not in scopes


def _cpu_limit_millis(pod: PodPlan, default: int) -> int:
    sidecars = (each for each in pod.preparations if each.is_sidecar)
    return sum(e.requests.cpu_limit_millis or default for e in (*pod.containers, *sidecars))


def judge_quotas(
    plan: StackPlan, quotas: Sequence[Json], ranges: Sequence[Json], nodes: Sequence[Room] = ()
) -> Check:
    """Check whether quotas leave enough for the stack, including the limits that limit ranges set
    on its containers and the pods of DaemonSets on these nodes."""
    plan = on_nodes(plan, nodes)
    default = _default_cpu_limit(ranges)
    short: list[str] = []
    unclear: list[str] = []
    for quota in quotas:
        name, spec = quota["metadata"]["name"], quota.get("spec", {})
        if spec.get("scopeSelector"):
            unclear.append(name)
            continue
        if not _counts_pods(quota):
            continue
        short += _missing(quota, _requested(quota, (plan,), default or "0"))
        if "limits.cpu" in _hard(quota) and not default:
            bare = _without_cpu_limit(plan, spec.get("scopes") or ())
            if bare:
                short.append(
                    f"{name} counts limits.cpu, so it refuses pods without a CPU limit "
                    f"({', '.join(bare)}; set {_limit_keys(bare)})"
                )
    if short:
        return Check(
            "quota",
            "failed",
            "; ".join(short),
            "raise the ResourceQuota, or lower what the stack asks for (workers, deployment.pods)",
        )
    if unclear:
        detail = f"ResourceQuota {', '.join(unclear)} applies to some priority classes only"
        return Check("quota", "not checked", detail)
    if not quotas:
        return Check("quota", "ok", "the namespace has no ResourceQuota")
    names = ", ".join(quota["metadata"]["name"] for quota in quotas)
    return Check("quota", "ok", f"ResourceQuota {names} leaves enough")


def _without_cpu_limit(plan: StackPlan, scopes: Collection[str] = ()) -> list[str]:
    counted = (pod for pod in plan.pods if _is_in_scope(plan, pod, scopes))
    return [pod.name for pod in counted if pod.total.cpu_limit_millis is None]


def _limit_keys(pods: Collection[str]) -> str:
    """Return the keys of the config that set a CPU limit on these pods."""
    keys = []
    if set(pods) - {HOST}:
        keys.append("deployment.pods.NAME.cpu_limit")
    if HOST in pods:
        keys.append("deployment.target.cpu_limit")
    return " and ".join(keys)


def _hard(quota: Json) -> Mapping[str, str]:
    hard: Mapping[str, str] = quota.get("spec", {}).get("hard") or {}
    return hard


def _missing(quota: Json, requested: Mapping[str, float]) -> Iterator[str]:
    used = quota.get("status", {}).get("used") or {}
    for resource, hard in _hard(quota).items():
        wanted = requested.get(resource, 0.0)
        left = parse_quantity(hard) - parse_quantity(used.get(resource, "0"))
        if wanted > left:
            name, free = quota["metadata"]["name"], format_quantity(max(left, 0), resource)
            yield (
                f"{name}: {resource}: the stack asks for {format_quantity(wanted, resource)}, and "
                f"{free} of {hard} are left"
            )


def _requested(
    quota: Json, stacks: Iterable[StackPlan], default_cpu_limit: str
) -> dict[str, float]:
    """Return the resources of these stacks that a quota counts."""
    requested = dict[str, float]()
    scopes = quota.get("spec", {}).get("scopes") or ()
    for each in stacks:
        counted = quota_requests(each, default_cpu_limit=default_cpu_limit, scopes=scopes)
        for name, value in counted.items():
            requested[name] = requested.get(name, 0.0) + value
    return requested


class Quotas(NamedTuple):
    """The quotas of a namespace, the running stacks whose pods there the quotas do not count yet,
    the default limit of containers, and the nodes, which pods of DaemonSets depend on."""

    quotas: Sequence[Json]
    starting: Sequence[StackPlan]
    default_cpu_limit: str
    nodes: Sequence[Room]

    def has_room(self, plan: StackPlan, others: Iterable[StackPlan] = ()) -> bool:
        """Return whether they leave enough for a stack and the others that are starting."""
        stacks = [on_nodes(each, self.nodes) for each in (plan, *self.starting, *others)]
        default, counting = self.default_cpu_limit, filter(_counts_pods, self.quotas)
        return not any(any(_missing(q, _requested(q, stacks, default))) for q in counting)


async def read_quotas(
    cluster: Cluster, space: Namespace, running: Sequence[StackPlan], nodes: Sequence[Room] = ()
) -> Quotas:
    """Return the quotas of a namespace in which some stacks run. The result is empty if each stack
    creates its own namespace, or if the user may not list quotas. A stack whose pods do not all
    exist yet counts by its plan, in addition to the part that the quotas already count. Raises
    Unreachable."""
    quotas = ranges = None
    if space.mode == "existing":
        inside = f"/api/v1/namespaces/{space.name}"
        quotas = await try_list(cluster, f"{inside}/resourcequotas")
        ranges = await try_list(cluster, f"{inside}/limitranges") if quotas else None
    starting = []
    for each in running if quotas else ():
        pods = await list_pods(cluster, str(space.name), each.identity.selector()) or []
        if sum(not has_ended(pod) for pod in pods) < on_nodes(each, nodes).totals.pods:
            starting.append(each)
    return Quotas(quotas or [], starting, _default_cpu_limit(ranges or ()) or "0", nodes)


def _counts_pods(quota: Json) -> bool:
    """Return whether a quota counts the pods of a stack. A quota for some priority classes may or
    may not count them; the result is then False."""
    spec = quota.get("spec", {})
    return not spec.get("scopeSelector") and not set(spec.get("scopes") or ()) - MATCHING_SCOPES


def judge_limit_ranges(plan: StackPlan, ranges: Sequence[Json]) -> Check:
    """Check whether every pod is within the bounds and not throttled by a default limit."""
    every = [
        (each["metadata"]["name"], limit)
        for each in ranges
        for limit in each.get("spec", {}).get("limits") or ()
    ]
    limits = [each for each in every if each[1].get("type") in ("Container", "Pod")]
    broken = [line for pod in plan.pods for line in _outside(pod, limits)]
    broken += [line for pod in plan.pods for line in _claims_outside(pod, every)]
    broken += [line for pod in plan.pods for line in _above_defaults(pod, limits)]
    if broken:
        return Check(
            "limit range",
            "failed",
            "; ".join(broken),
            "change the LimitRange, or the pod's requests and limits (deployment.pods.NAME.cpu, "
            "cpu_limit; deployment.ranks.volume.size)",
        )
    default = _default_cpu_limit(ranges)
    bare = _without_cpu_limit(plan)
    if default and bare:
        return Check(
            "limit range",
            "warning",
            f"pods without a CPU limit get one of {default}, which would throttle them and distort "
            f"the measurement ({', '.join(bare)})",
            f"set {_limit_keys(bare)}, or use a namespace without such a default",
        )
    if not limits:
        return Check("limit range", "ok", "the namespace has no LimitRange for pods")
    return Check("limit range", "ok", "every pod is within its bounds")


def _default_cpu_limit(ranges: Iterable[Json]) -> str:
    for each in ranges:
        for limit in each.get("spec", {}).get("limits") or ():
            cpu = (limit.get("default") or limit.get("max") or {}).get("cpu")
            if limit.get("type") == "Container" and cpu:
                return str(cpu)
    return ""


def _outside(pod: PodPlan, limits: Iterable[tuple[str, Json]]) -> Iterator[str]:
    for name, limit in limits:
        if limit["type"] == "Pod":
            yield from _beyond(pod, pod.total, name, limit)
        else:
            for container in pod.containers:
                yield from _beyond(pod, container.requests, name, limit)


def _claims_outside(pod: PodPlan, limits: Iterable[tuple[str, Json]]) -> Iterator[str]:
    """Yield the claims of a pod whose size a LimitRange does not allow. The dry run does not try
    them, because a StatefulSet creates them."""
    sizes = [v.size_bytes for v in pod.all_volumes if v.kind in ("claim", "shared-claim")]
    for name, limit in limits:
        if limit.get("type") != "PersistentVolumeClaim":
            continue
        for size in sizes:
            text = format_quantity(size, "storage")
            asks = f"{name}: pod {pod.name} asks for a claim of {text}"
            yield from _bounds(asks, "storage", size, size, limit)


def _above_defaults(pod: PodPlan, limits: Iterable[tuple[str, Json]]) -> Iterator[str]:
    """Yield the requests of containers that exceed the default limit of a LimitRange. The API
    server refuses such pods."""
    for container in (*pod.preparations, *pod.containers):
        requests, requested = container.requests, dict[str, float]()
        if not requests.cpu_limit_millis:
            requested["cpu"] = requests.cpu_millis / 1000
        for name, limit in limits:
            default = limit.get("default") or {}
            for resource, value in requested.items():
                if resource in default and value > parse_quantity(default[resource]):
                    yield (
                        f"{name}: container {container.name} of pod {pod.name} requests "
                        f"{format_quantity(value, resource)} {resource} and has no limit, so it "
                        f"gets the default limit of {default[resource]}, which is below its request"
                    )


def _beyond(pod: PodPlan, requests: Requests, name: str, limit: Json) -> Iterator[str]:
    requested = {"cpu": requests.cpu_millis / 1000, "memory": float(requests.memory_bytes)}
    limited = {"memory": requested["memory"]}
    if requests.storage_limit_bytes:
        requested["ephemeral-storage"] = float(requests.storage_bytes)
        limited["ephemeral-storage"] = float(requests.storage_limit_bytes)
    if requests.cpu_limit_millis:
        limited["cpu"] = requests.cpu_limit_millis / 1000
    for resource, value in requested.items():
        highest = max(value, limited.get(resource, 0.0))
        asks = f"{name}: pod {pod.name} asks for {format_quantity(highest, resource)} {resource}"
        yield from _bounds(asks, resource, value, highest, limit)


def _bounds(asks: str, resource: str, lowest: float, highest: float, limit: Json) -> Iterator[str]:
    highest_allowed = (limit.get("max") or {}).get(resource)
    lowest_allowed = (limit.get("min") or {}).get(resource)
    if highest_allowed is not None and highest > parse_quantity(highest_allowed):
        yield f"{asks}, and at most {highest_allowed} is allowed"
    if lowest_allowed is not None and lowest < parse_quantity(lowest_allowed):
        yield f"{asks}, and at least {lowest_allowed} is required"
