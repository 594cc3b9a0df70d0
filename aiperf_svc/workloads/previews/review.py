"""Facts for the reviewer of a stack besides its load, its pods and their totals. Pure."""

from collections.abc import Callable, Mapping
from itertools import chain

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.target import HOST, Target
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.number_text import gibibytes, significant
from aiperf_svc.plan.network import (
    DNS_PORTS,
    PROMETHEUS,
    LabelledPods,
    NamespacePods,
    Range,
    ReleasePods,
    StackPods,
)
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.previews.trial_lists import human_time


def facts(plan: StackPlan) -> list[tuple[str, str]]:
    """Return the applicable facts for a reviewer, besides load and totals, as pairs of name and
    text."""
    target = plan.config.deployment.target
    writable = [
        pod.name
        for pod in plan.pods
        if not all(each.read_only_root for each in (*pod.preparations, *pod.containers))
    ]
    found = [
        ("objectives", _objectives(plan)),
        ("secrets", ", ".join(f"aiperf:{key}" for key in chain(*plan.secret_keys.values()))),
        ("queue", _queue(plan)),
        ("room", _room(plan)),
        ("priority", _by_pod(plan, lambda pod: pod.placement.priority_class or "")),
        ("nodes", _by_pod(plan, _nodes_of)),
        ("egress", "; ".join(_egress(plan))),
        ("writable root", ", ".join(writable)),
        ("volumes", _volumes(target)),
        ("disk", _disk(plan)),
        ("results by", _exposure(plan)),
        ("monitoring", _monitoring(plan)),
        ("node drains", _drains(plan)),
        ("labels", _pairs(plan.config.deployment.labels)),
        ("annotations", _pairs(plan.config.deployment.annotations)),
    ]
    if target.downloads:
        found.append(("downloads", f"{HOST} may reach port 443 anywhere"))
    return [(name, text) for name, text in found if text]


def whole_cost(plan: StackPlan) -> str:
    """Return the maximum cost of the stack until it removes itself; empty without prices."""
    totals, ttl = plan.totals, plan.config.deployment.ttl
    if not totals.cost_per_hour:
        return ""
    max_cost = totals.cost_per_hour * ttl / HOUR_NS
    needed = plan.times.start + plan.times.load
    limit = f"at most {significant(max_cost)} {totals.currency} until it removes itself"
    if not plan.times.is_bounded:
        return limit
    usual = totals.cost_per_hour * needed / HOUR_NS
    cost = f"{significant(usual)} {totals.currency}"
    return f"{cost} for start and load ({human_time(needed)}), {limit}"


def _queue(plan: StackPlan) -> str:
    queue = plan.queue
    if queue is None:
        return ""
    limit = format_duration(plan.config.deployment.queue_timeout)
    return f"{queue.name} admits all {queue.pods} pods together, or the start fails after {limit}"


def _room(plan: StackPlan) -> str:
    wait_ns = plan.config.deployment.wait_for_room
    return f"the start waits for it, at most {format_duration(wait_ns)}" if wait_ns else ""


def _objectives(plan: StackPlan) -> str:
    slo = plan.config.slo
    parts = []
    for each in slo.objectives:
        bounds = [f"<= {each.max}"] if each.max is not None else []
        bounds += [f">= {each.min}"] if each.min is not None else []
        parts.append(f"{each.metric} {each.stat} {' and '.join(bounds)}")
    if slo.goodput:
        parts.append("goodput: " + ", ".join(f"{k} {v}" for k, v in slo.goodput.items()))
    return "; ".join(parts)


def _by_pod(plan: StackPlan, text_of: Callable[[PodPlan], str]) -> str:
    """Return a text about the pods, which groups pods with the same text."""
    groups: dict[str, list[str]] = {}
    for pod in plan.pods:
        groups.setdefault(text_of(pod), []).append(pod.name)
    if set(groups) == {""}:
        return ""
    if len(groups) == 1:
        return f"all pods: {next(iter(groups))}"
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in groups.items() if text)


def _nodes_of(pod: PodPlan) -> str:
    """Return the nodes that a pod may use. Spot nodes have a label or a taint."""
    place = pod.placement
    parts = [f"node {each.node}" for each in pod.sets if each.node]
    parts += [f"{key}={value}" for key, value in place.node_selector.items()]
    parts += [f"{key} in {'|'.join(values)}" for key, values in place.require_nodes.items()]
    parts += [f"prefers {key} in {'|'.join(values)}" for key, values in place.prefer_nodes.items()]
    parts += [f"tolerates {each.key or 'every taint'}" for each in place.tolerations]
    return ", ".join(parts)


def _egress(plan: StackPlan) -> list[str]:
    """Return what each pod may reach outside the stack, except the cluster's DNS."""
    found = []
    for policy in plan.policies:
        for rule in policy.egress:
            outside = [p for p in rule.peers if not isinstance(p, StackPods | ReleasePods)]
            is_own = bool(rule.peers) and not outside
            if policy.name == "default" or is_own or rule.ports == DNS_PORTS:
                continue
            peers = " and ".join(map(_peer, outside)) or "every address"
            ports = f" port {', '.join(map(str, rule.ports))}" if rule.ports else ""
            who = ", ".join(policy.components) or "the release"
            found.append(f"{who}: {peers}{ports}")
    return found


def _peer(peer: Range | NamespacePods | LabelledPods) -> str:
    match peer:
        case Range(cidr):
            return cidr
        case NamespacePods(namespace, labels):
            where = f"namespace {namespace}" if namespace else "the stack's namespace"
            return f"pods of {where}" + "".join(f" {k}={v}" for k, v in labels.items())
        case LabelledPods(labels):
            return "pods" + "".join(f" {k}={v}" for k, v in labels.items())


def _volumes(target: Target) -> str:
    """Return what exists already and is mounted into the target."""
    return "; ".join(
        f"{each.kind} {each.source} at {each.path}"
        + (", read-only" if each.read_only else ", which the target may change")
        for each in target.volumes
    )


def _disk(plan: StackPlan) -> str:
    requested = sum(plan.at_once[pod.name] * pod.total.storage_bytes for pod in plan.pods)
    max_bytes = sum(plan.at_once[pod.name] * pod.total.storage_limit_bytes for pod in plan.pods)
    bare = [pod.name for pod in plan.pods if not pod.total.storage_limit_bytes]
    unbound = f"; {', '.join(bare)} without a limit" if bare else ""
    return f"{gibibytes(requested)} of the nodes' disks, at most {gibibytes(max_bytes)}{unbound}"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _drains(plan: StackPlan) -> str:
    if plan.budget is None:
        return "evict pods, and the run fails"
    cap = plan.config.deployment.max_drain_hold
    if plan.jobs:
        max_wait = format_duration(
            min(cap or plan.config.deployment.ttl, plan.config.deployment.ttl)
        )
        return (
            f"of the collector wait until the stack is gone, at most {max_wait}; an index restarts "
            "on another node"
        )
    if cap is not None and plan.budget.hold == cap:
        return f"wait at most {format_duration(cap)} (max_drain_hold); then they may end the run"
    if plan.budget.hold is None:
        ttl = format_duration(plan.config.deployment.ttl)
        return f"wait until the stack is gone, at most {ttl}: load or warmup has no duration"
    return f"wait for the start and the load, at most {human_time(plan.budget.hold)}"


def _monitoring(plan: StackPlan) -> str:
    """Return who may read the metrics page, besides holders of the token."""
    deployment = plan.config.deployment
    if deployment.monitoring == "none":
        return ""
    text = "a PodMonitor with a token for /metrics only, and a PrometheusRule"
    if deployment.monitoring == "annotations":
        text = f"anyone who can reach {plan.results_pod} may read /metrics without a token"
    labels = " ".join(f"{key}={value}" for key, value in PROMETHEUS.items())
    is_limited = plan.policies and deployment.results.allow_cidrs
    return text + (f"; pods {labels} may reach it too" if is_limited else "")


def _exposure(plan: StackPlan) -> str:
    results, s3 = plan.config.deployment.results, plan.config.artifacts.s3
    parts = [results.expose, *([results.host] if results.host else [])]
    if results.expose != "port-forward":
        parts.append("with TLS" if results.tls_secret else "without TLS")
    parts += [f"from {', '.join(results.allow_cidrs)}"] if results.allow_cidrs else []
    parts += [f"and upload to {s3.url}"] if s3 else []
    return " ".join(parts)
